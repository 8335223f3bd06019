"""`headrace run --shadow`: opens the candidate, names the command that follows, and keeps what came of it in the ledger."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.formatting import quote_arg
from headrace.cli.pipeline_arguments import list_choosing_options

if TYPE_CHECKING:
    from headrace.base.plan import ModelPlan, Plan
    from headrace.base.protocols import Model
    from headrace.pipeline.execute import Result
    from headrace.pipeline.shadow import Shadow
    from headrace.runs.formats.optimization import Attempt
    from headrace.runs.formats.outcomes import Decided
    from headrace.runs.formats.shadow import ShadowDocument
    from headrace.validate.shadow import ShadowRecord
    from headrace.validate.variant_spec import VariantSpec

_OUTCOMES: Mapping[str, Decided] = {"promote": "passed", "keep": "inconclusive", "roll back": "rejected"}


@dataclasses.dataclass(frozen=True, slots=True)
class ShadowCandidate:
    """A candidate that runs beside the model in use."""

    spec: VariantSpec
    model: Model
    shadow: Shadow
    record: ShadowRecord
    began: float
    num_bytes: int
    """Of its files."""

    def document(self, args: argparse.Namespace, result: Result, task: str = "") -> ShadowDocument:
        """Return what came of it, written to the ledger if one was named.

        Args:
            args: Of `headrace run`.
            result: Of the run.
            task: Of the stage beside whose model it ran; empty: the pipeline has no tasks.
        """
        import msgspec

        found = self.record.document(self.shadow.num_passed_by, self.shadow.failures)
        found = msgspec.structs.replace(found, next_command=self._next_command(found, args, result, task))
        ledger = _ledger(args)
        if not ledger:
            return found
        from headrace.ledger.ledger import Ledger

        with Ledger.open(ledger) as opened:
            written = opened.attempts.write_attempt(self.attempt(found, result, task))
        return msgspec.structs.replace(found, attempt=written.id)

    def _next_command(self, found: ShadowDocument, args: argparse.Namespace, result: Result, task: str) -> str:
        """Return what to type: run with it, measure it in a fair race, or take it out where it is in use.

        PLAN, MODEL and GOLDEN.npz stand for files that are not known here.
        """
        if found.advice == "promote":
            # Without the limit of a trial, which is none of production's.
            given = list(list_choosing_options(argparse.Namespace(**{**vars(args), "limit": None})))
            for key, value in self._settings(result, task):
                given += ["--set", f"{key}={value}"]
            return " ".join(["headrace run", *(quote_arg(one) for one in (args.pipeline, *given))])
        if found.advice == "keep":
            variants = f"{quote_arg(incumbent_text(result, task))} {quote_arg(self.spec.text)}"
            return f"headrace validate {variants} --golden GOLDEN.npz"
        plan = quote_arg(args.plan) if args.plan else "PLAN"
        return f"headrace ledger rollback {plan} --why {quote_arg(f'shadow: {found.says}')}"

    def _settings(self, result: Result, task: str) -> Iterator[tuple[str, str]]:
        """Give what `--set` has to change so that the Plan in use names the candidate: of its task, where it names one."""
        model, used = self.spec.model, _find_model_in_use(result, task)
        table = f"models.{task}" if task in result.plan.models else "model"
        yield f"{table}.artifact", _toml(model.artifact)
        yield f"{table}.engine", _toml(model.engine)
        yield f"{table}.threads", _toml(model.threads)
        if used.sha256 is not None:  # else the pin of the old file would refuse the new one
            yield f"{table}.sha256", _toml(str(self.model.variant.get("sha256", "")))
        if used.options:  # else they would stay, and may be none of the new engine's
            yield f"{table}.options", "{}"
        for key, value in model.options.items():
            yield f"{table}.options.{key}", _toml(value)

    def attempt(self, found: ShadowDocument, result: Result, task: str = "") -> Attempt:
        """Return what came of it as an attempt of the ledger."""
        from headrace.ledger.ledger import hardware_fingerprint
        from headrace.runs.formats.optimization import SHADOW, Artifact, Attempt
        from headrace.runs.formats.outcomes import ACCEPTANCE
        from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide
        from headrace.runs.hardware import find_hardware
        from headrace.validate.variant_spec import variant_settings

        file, incumbent = Path(self.spec.model.artifact or ""), _incumbent(result)
        outcome = _OUTCOMES[found.advice]
        verdict = ACCEPTANCE[outcome]
        gate = Gate(
            name="shadow", outcome=outcome, says=found.says,
            values={
                "disagreement": found.disagreement, "low": found.low, "high": found.high, "broken": float(found.broken),
                **dict(zip(("speed_low", "speed", "speed_high"), found.speed or (), strict=False)),
            },
            limits={"max_disagreement": found.max_disagreement},
        )  # fmt: skip
        sides = [
            VariantSide(name=name, variant=dict(ran), open_seconds=0.0)
            for name, ran in ((incumbent_text(result, task), incumbent), (self.spec.text, self.model.variant))
        ]
        return Attempt(
            model=str(incumbent.get("sha256", "")),
            technique=SHADOW,
            kind="lossy",  # nobody knows what was done to it
            hypothesis="beside the model in use, on live traffic, it answers alike and takes less time",
            candidate=self.spec.text,
            settings=variant_settings(self.spec.model),
            artifact=Artifact(
                sha256=str(self.model.variant.get("sha256", "")), file=str(file),
                num_bytes=self.num_bytes,
            ),
            verdict=verdict,
            gate=None if verdict == "accept" else "shadow",
            says=found.says,
            seconds=time.monotonic() - self.began,
            validation=ValidationDocument(
                a=sides[0], b=sides[1], verdict=verdict, says=found.says, gates=(gate,), batch=0, golden="live traffic",
                num_items=found.num_items,
            ),
            hardware=hardware_fingerprint(find_hardware()),
        )  # fmt: skip


def open_candidate(args: argparse.Namespace, plan: Plan) -> ShadowCandidate | None:
    """Return the candidate that `--shadow` names; None if there is none.

    Raises:
        SettingsError: If a ledger is named and nothing that it would keep, or the candidate takes images of another size.
        LedgerError: If the ledger cannot be used: after the traffic is gone it would be too late to say so.
    """
    from headrace.base.errors import SettingsError
    from headrace.engines.model_files import model_files
    from headrace.ledger.ledger import Ledger
    from headrace.pipeline.shadow import Shadow
    from headrace.validate.shadow import ShadowRecord
    from headrace.validate.variant_spec import parse_variant

    if args.ledger and not (args.shadow or args.canary or plan.budget):
        raise SettingsError(
            "--ledger keeps what comes of --shadow MODEL, --canary DIR or a Plan's [budget]; name one, or leave --ledger out"
        )
    ledger = _ledger(args) if args.shadow else args.ledger
    if ledger:
        Ledger.open(ledger).close()
    if not args.shadow:
        return None
    spec, record = parse_variant(args.shadow), ShadowRecord(args.shadow, args.max_disagreement)
    sides = {one.input_side for one in (plan.model, *plan.models.values())}
    if spec.model.input_side not in sides:
        wanted = " or ".join(f"input_side {one or 'as the module says'}" for one in sides)
        raise SettingsError(
            f"--shadow {args.shadow} takes images of another size (input_side {spec.model.input_side or 'as the module says'}) "
            f"than the Plan's model ({wanted}): a shadow answers the same batches. If its file takes those, say so "
            "(MODEL@ENGINE,input_side=N); else hold the two against each other with headrace validate and a golden set"
        )
    model = spec.open()
    file = Path(spec.model.artifact or "")
    num_bytes = model_files(file).num_bytes if file.is_file() else 0  # an emulated one needs none
    return ShadowCandidate(spec, model, Shadow(model, record.add), record, time.monotonic(), num_bytes)


def _ledger(args: argparse.Namespace) -> str | None:
    return args.ledger or os.environ.get("HEADRACE_LEDGER")


def _find_model_in_use(result: Result, task: str) -> ModelPlan:
    return result.plan.model_of(task)


def incumbent_text(result: Result, task: str = "") -> str:
    """Return the variant in use as `headrace validate` takes it; MODEL for a file that the pipeline's own code names."""
    from headrace.validate.variant_spec import variant_text

    model = _find_model_in_use(result, task)
    if model.artifact is None:
        return "MODEL"
    return variant_text(dataclasses.replace(model, threads=model.threads or 1))


def _incumbent(result: Result) -> Mapping[str, Any]:
    """Return how the model in use ran, as far as the run knows."""
    return next((variant for variant in result.variants if variant.get("sha256")), {})


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
