"""The Amdahl bound: what a pipeline would gain if its model cost nothing, so that nobody spends a week on a tenth.

References:
    G. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967; the
    figure here is a simulation of the recorded run, in which other stages go on to use the cores that the model leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.errors import SettingsError
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.runs.formats.diagnosis import Finding
from headrace.runs.formats.optimization import Ceiling
from headrace.runs.formats.prediction import Change

#: Below this bound the model is not what to work on.
LEAST_BOUND = 1.25
_FREE = 1000.0


def find_amdahl_bound(analysis: Analysis) -> Ceiling:
    """Return what a model that costs nothing would make of a recorded run.

    Raises:
        CannotReplay: If the run cannot be simulated.
        SettingsError: If no stage of it runs a model.
    """
    stage, ratio = predict_free_model(analysis)
    shares = work_shares({one.name: one.busy_seconds for one in analysis.profile.stages})
    return describe_bound(stage, ratio, shares, diagnosis_document(analysis).first)


def predict_free_model(analysis: Analysis) -> tuple[str, float]:
    """Return the stage that runs the model, and the pipeline's throughput without its cost over that of the recorded run.

    Raises:
        CannotReplay: If the run cannot be simulated.
        SettingsError: If no stage of it runs a model.
    """
    stage = next((stage.name for stage in analysis.profile.stages if stage.kind == "device"), None)
    if stage is None:
        raise SettingsError(f"{analysis.run.path}: no stage runs a model; expected a run of a pipeline with one")
    analysis.replay.check_understood()
    return stage, analysis.replay.ratio(Change(speedups={stage: _FREE}))


def work_shares(busy_seconds: Mapping[str, float | None]) -> dict[str, float]:
    """Return for each stage its share of the time that all of them worked; empty where that was not measured."""
    known = {name: seconds for name, seconds in busy_seconds.items() if seconds is not None}
    total = sum(known.values())
    return {name: seconds / total for name, seconds in known.items()} if total > 0 else {}


def describe_bound(stage: str, ratio: float, shares: Mapping[str, float], limits: Finding) -> Ceiling:
    """Return the bound with its words.

    Args:
        stage: That runs the model.
        ratio: Throughput with a free model over that of the run.
        shares: Of each stage's work in the work of all.
        limits: What the diagnosis puts first.
    """
    is_low, share = ratio < LEAST_BOUND, shares.get(stage)
    others = {name: one for name, one in shares.items() if name != stage}
    first = limits.stage if limits.stage != stage else None
    instead = first or max(others, key=lambda name: others[name], default="")
    of_time = "" if share is None else f"{stage}, the model, is {share:.0%} of the time that all stages work: "
    gain = f"{of_time}if it cost nothing at all, the pipeline would be {ratio:.2f} times as fast"
    fix = f"; fix {instead} first" + (f" ({shares[instead]:.0%})" if instead in shares else "") if instead else ""
    return Ceiling(
        stage=stage, ratio=ratio, share=share, instead=instead if is_low else "", is_low=is_low,
        says=f"{gain}{fix}. What limits it: {limits.says}" if is_low else gain,
    )  # fmt: skip
