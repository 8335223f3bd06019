"""The changes whose worth a capacity plan shows: the diagnosis's remedies, better Plans, each stage twice as fast, more cores.

Better Plans are looked for by simulation only, one setting at a time and then together; `headrace tune` searches further and
measures what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.whatif import in_words
from headrace.runs.formats.prediction import Change
from headrace.tune.capacity import Wanted

if TYPE_CHECKING:
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.replay import Replay
    from headrace.runs.run_folder import StageInfo

#: A setting that gives less than this in simulation is not worth a line.
_LEAST_GAIN = 1.02
#: Plan changes that are shown one by one, beside all of them together.
_MOST_SHOWN = 3
#: Workers that a stage gets which had none of its own.
_IO_WORKERS = 16
_FASTER = 2.0


def find_improvements(analysis: Analysis) -> list[Wanted]:
    """Return the changes to show: remedies, the best Plan changes, all of them together, each stage faster, more cores."""
    replay = analysis.replay
    found = [*remedies(analysis), *plan_changes(replay), *_faster_stages(replay), _more_cores(replay)]
    changes = [one.change for one in found]
    return [one for number, one in enumerate(found) if one.change not in changes[:number]]


def remedies(analysis: Analysis) -> list[Wanted]:
    """Return what the diagnosis of the run advises, as far as it can be predicted."""
    document = diagnosis_document(analysis)
    found = [finding for finding in (document.first, document.runner_up) if finding is not None]
    return [
        _make_wanted_from_settings(remedy.settings)
        for finding in found
        for remedy in finding.remedies
        if remedy.settings and remedy.ratio
    ]


def plan_changes(replay: Replay) -> list[Wanted]:
    """Return settings that give at least 2 % in simulation, the best first, and those that go together as one more."""
    gains = [(gain, settings) for settings in _settings(replay) if (gain := _gain(replay, settings)) >= _LEAST_GAIN]
    gains.sort(key=lambda entry: -entry[0])
    found = [_make_wanted_from_settings(settings) for _, settings in gains[:_MOST_SHOWN]]
    together = _together(replay, [settings for _, settings in gains])
    if together and all(together != one.change.settings for one in found):
        found.insert(0, _make_wanted_from_settings(together))
    return found


def _together(replay: Replay, ranked: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what is left of the settings when each one must still give something on top of those before it."""
    kept: tuple[str, ...] = ()
    best = 1.0
    for settings in ranked:
        keys = {setting.partition("=")[0] for setting in kept}
        if any(setting.partition("=")[0] in keys for setting in settings):
            continue
        gain = _gain(replay, (*kept, *settings))
        if gain >= best * _LEAST_GAIN:
            kept, best = (*kept, *settings), gain
    return kept


def _settings(replay: Replay) -> list[tuple[str, ...]]:
    """Return the settings to try, each with what has to go with it."""
    stages = replay.run.info.stages
    ordered = replay.plan.run.ordered
    found = [_own_workers(stages, ordered=ordered)] if _is_fused(stages) else []
    for stage in stages:
        plan = replay.plan.stages[stage.name]
        if stage.executor != "inline" and not _must_be_alone(stage, ordered=ordered):
            found.append((f"{stage.name}.workers={2 * (plan.workers or 1)}",))
        if stage.kind == "device":
            found += [(f"{stage.name}.batch={size}",) for size in _larger_batches(replay, stage.name, plan.batch or 1)]
    if replay.plan.decode.scale == "full" and any(stage.work == "decode" for stage in stages):
        found.append(("decode.scale=auto",))
    return found


def _larger_batches(replay: Replay, stage: str, batch: int) -> list[int]:
    """Return the sizes above the Plan's that were measured at warm-up: of others nothing is known."""
    return sorted(size for size in replay.run.info.cost_curves.get(stage, {}) if size > batch)


def _is_fused(stages: Sequence[StageInfo]) -> bool:
    """Return whether a stage that waits shares its worker: downloading in a thread that also computes, or the other way."""
    return any(stage.kind == "io" and stage.executor == "inline" for stage in stages)


def _must_be_alone(stage: StageInfo, *, ordered: bool) -> bool:
    return stage.keeps_streams or (ordered and stage.role == "deliver")  # several workers would overtake one another


def _own_workers(stages: Sequence[StageInfo], *, ordered: bool) -> tuple[str, ...]:
    """Return settings that give workers of their own to what waits, and to what comes after it."""
    found = []
    before = None
    for stage in stages:
        is_seam = stage.kind in ("io", "device") or before in (None, "io", "device")
        if stage.executor == "inline" and is_seam:
            found.append(f"{stage.name}.executor=thread")
            workers = 1 if _must_be_alone(stage, ordered=ordered) else _IO_WORKERS
            found += [f"{stage.name}.workers={workers}"] if stage.kind == "io" else []
        before = stage.kind
    return tuple(found)


def _gain(replay: Replay, settings: tuple[str, ...]) -> float:
    try:
        return replay.ratio(Change(settings=settings))
    except (HeadraceError, ValueError):
        return 0.0  # it cannot be predicted, so it cannot be shown


def _make_wanted_from_settings(settings: tuple[str, ...]) -> Wanted:
    return _make_wanted(Change(settings=settings))


def _faster_stages(replay: Replay) -> list[Wanted]:
    return [_make_wanted(Change(speedups={stage.name: _FASTER})) for stage in replay.run.info.stages]


def _more_cores(replay: Replay) -> Wanted:
    note = "counted at the same price; what such a machine costs more has to be taken off"
    return _make_wanted(Change(cores=2 * replay.cores), note)


def _make_wanted(change: Change, note: str = "") -> Wanted:
    return Wanted(in_words(change), change, note)
