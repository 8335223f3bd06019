"""The variant that a Plan uses already, where that is not the model as it was given: what is faster has to be faster than it.

Two things are asked of a candidate, and each has its own comparison. How fast it is, is held against what runs today, the
incumbent: half the speed of that is no gain, however slow the model as given is. What it answers is held against the model as
it was given, for the incumbent may have lost something already, and who is held against it may lose as much again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan
from headrace.engines.model_files import model_files
from headrace.optimize.techniques import Candidate, Technique
from headrace.runs.formats.optimization import Artifact
from headrace.runs.formats.variants import GateName, ValidationDocument
from headrace.validate.golden import Golden
from headrace.validate.kept_answers import KeptAnswers
from headrace.validate.model_speed import Settled
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import VariantSpec, variant_text
from headrace.validate.variants import CHEAP_GATES, validate_variants

#: Name of the attempt that judges the incumbent's answers.
IN_USE = "in-use"


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What runs today."""

    artifact: Artifact
    spec: VariantSpec

    def is_candidate(self, candidate: Candidate) -> bool:
        """Return whether a candidate is this very variant."""
        return settings_of(self.artifact, self.spec) == settings_of(candidate.artifact, candidate.spec)

    @property
    def decides(self) -> list[Any]:
        """What a speed that was held against it depends on."""
        return list(settings_of(self.artifact, self.spec))


def find_incumbent(model: ModelPlan, original: Artifact, threads: int) -> Incumbent | None:
    """Return the variant that a Plan uses; None where that is the model as it was given, on ONNX Runtime in float32.

    A Plan that names no file runs the one that the pipeline's module names, which is taken for the model as given.

    Args:
        model: The `[model]` table of the Plan.
        original: The model as it was given.
        threads: Inside one call, where the Plan does not say.

    Raises:
        EngineError: If the file that the Plan names cannot be read.
        SettingsError: If the Plan uses the emulated device: its times are settings.
    """
    if model.engine == "emulated":
        raise SettingsError(
            "--plan uses the emulated device, whose times are settings: no speed is over them; leave it out"
        )
    artifact = original if model.artifact is None else _artifact(Path(model.artifact))
    used = dataclasses.replace(model, artifact=artifact.file, threads=model.threads or threads)
    is_elsewhere = used.engine != "onnx" or bool(used.options) or used.input_side is not None
    if not is_elsewhere and (model.artifact is None or (artifact.sha256, used.threads) == (original.sha256, threads)):
        return None
    return Incumbent(artifact, VariantSpec(variant_text(used), used))


def _artifact(file: Path) -> Artifact:
    """Return the record of a file where it lies: a copy would leave behind what it refers to, such as weights beside it.

    Its path is absolute, for the ledger is used from other folders too.
    """
    try:
        files = model_files(file)
        return Artifact(sha256=files.sha256(), file=str(file.absolute()), num_bytes=files.num_bytes)
    except (EngineError, OSError) as error:
        raise EngineError(
            f"the Plan's model {file} cannot be read: {error}; mend the Plan, or leave --plan out"
        ) from None


def settings_of(artifact: Artifact, spec: VariantSpec) -> tuple[Any, ...]:
    """Return what makes a variant the one it is, wherever its file lies."""
    side = () if spec.model.input_side is None else (spec.model.input_side,)
    return artifact.sha256, spec.model.engine, spec.model.threads, dict(spec.model.options), *side


#: Where the Plan uses another variant, the model as it was given may be the better one.
AS_GIVEN = Technique(
    name="as-given", kind="lossless", option="--plan", says="the model as it was given, on ONNX Runtime in float32",
    why_not=lambda subject: None if subject.incumbent else "the Plan uses it",
    candidates=lambda subject: iter([(subject.original, subject.baseline())]),
)  # fmt: skip


def ask_cheap_gates(
    given: VariantSpec,
    used: VariantSpec,
    candidate: VariantSpec,
    items: Golden | None,
    policy: Policy,
    gates: Sequence[GateName] = CHEAP_GATES,
    kept: KeptAnswers | None = None,
    settled: Settled | None = None,
) -> ValidationDocument:
    """Return what the cheap gates say: answers held against the model as given, speed against the variant in use.

    Args:
        given: The model as it was given.
        used: What runs today; `given` itself where that is it.
        candidate: The one that is judged.
        items: That are answered; None: made up.
        policy: What is asked.
        gates: Those of the cheap gates to ask.
        kept: What the model as given answered before; None: it is asked anew.
        settled: As `measure_speed` takes it.
    """
    if used.text == given.text:
        return validate_variants(given, candidate, items, policy, gates=gates, kept=kept, settled=settled)
    untimed = [gate for gate in gates if gate != "speed"]
    answers = validate_variants(given, candidate, items, policy, gates=untimed, kept=kept)
    if answers.verdict == "reject" or answers.interrupted or "speed" not in gates:
        return answers
    timed = validate_variants(used, candidate, items, policy, gates=("speed",), settled=settled)
    return msgspec.structs.replace(
        timed, gates=(*answers.gates, *timed.gates), warnings=(*answers.warnings, *timed.warnings), layers=answers.layers,
        diverges_at=answers.diverges_at,
    )  # fmt: skip
