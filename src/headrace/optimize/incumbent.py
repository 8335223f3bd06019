"""The variant that a Plan uses already, where that is not the model as it was given: what is faster has to be faster than it.

A candidate is compared twice. Its speed is compared with what runs today, the incumbent: half the speed of that is no gain,
however slow the model as given is. Its answers are compared with the model as it was given, because the incumbent may have lost
something already, and compared with the incumbent a candidate could lose as much again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import DEFAULT_ENGINE, ModelPlan
from headrace.engines import engine_for, reads, traits_of, versions_of
from headrace.engines.model_files import model_files
from headrace.runs.formats.optimization import Artifact
from headrace.validate.variant_spec import VariantSpec, variant_text

#: Name of the attempt that judges the incumbent's answers.
IN_USE = "in-use"


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What runs today."""

    artifact: Artifact
    spec: VariantSpec

    def is_same(self, artifact: Artifact, spec: VariantSpec) -> bool:
        """Return whether a candidate is this very variant."""
        return settings_of(self.artifact, self.spec) == settings_of(artifact, spec)

    @property
    def decides(self) -> list[Any]:
        """What a speed relative to it depends on."""
        return [*settings_of(self.artifact, self.spec), versions_of(self.spec.model.engine)]


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
    if traits_of(model.engine).is_emulated:
        raise SettingsError(
            "--plan uses the emulated device, whose times are settings: no speed is over them; leave it out"
        )
    artifact = original if model.artifact is None else _artifact(Path(model.artifact))
    # A Plan that names no engine says nothing of a file that the default one does not open.
    is_silent = model.engine == DEFAULT_ENGINE and not reads(model.engine, artifact.file)
    engine = engine_for(artifact.file) if is_silent else model.engine
    used = dataclasses.replace(model, artifact=artifact.file, engine=engine, threads=model.threads or threads)
    is_elsewhere = used.engine != engine_for(original.file) or bool(used.options) or used.input_side is not None
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
