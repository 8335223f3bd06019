"""Whether a stage got slower: what is found, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from headrace.monitor.history.baseline import FEWEST_WINDOWS, Window
from headrace.monitor.history.judging import MOST_WINDOWS, Judged, compare_windows, judge_windows
from headrace.monitor.history.moments import make_rows, sum_rows
from headrace.runs.formats.history import ALL_STAGES, StageDrift

_ITEMS = 200


def make_windows(
    number: int,
    *,
    slow: dict[str, float] | None = None,
    slow_from: int = 10**9,
    sizes: Sequence[float] | None = None,
    batches: Sequence[int] | None = None,
    machine: Sequence[float] | None = None,
    has_yardstick: bool = False,
    run_length: int = 1000,
    of_runs: Sequence[float] | None = None,
    seed: int = 0,
) -> list[Window]:
    """Return windows of three stages whose CPU time is 2 ms + 5 ms/MB, 3 ms, and 4 ms / batch size + 6 ms.

    Args:
        number: Of windows.
        slow: {stage: factor} from `slow_from` on.
        slow_from: Number of the first slow window.
        sizes: Mean MB of the items of each window.
        batches: Batch size of each window.
        machine: Factor of all times of each window.
        has_yardstick: Whether the same piece of work was measured beside it, which takes as long as the machine lets it.
        run_length: Windows of a run.
        of_runs: Factor of all times of each run, but for the yardstick's.
        seed: Of the items.
    """
    random = np.random.default_rng(seed)
    windows = []
    for at in range(number):
        size = random.lognormal(0, 0.4, _ITEMS) * (sizes[at] if sizes else 1.0)
        batch = np.full(_ITEMS, batches[at] if batches else 8.0)
        ones, nothing = np.ones(_ITEMS), np.zeros(_ITEMS)
        costs = {"decode": (size * 1e6, ones, 2 + 5 * size), "scale": (nothing, ones, 3 * ones)}
        costs["process"] = (nothing, batch, 4 / batch + 6)
        speed = (machine[at] if machine else 1.0) * np.exp(random.normal(0, 0.03))
        speed *= of_runs[at // run_length] if of_runs else 1.0
        stages = {}
        for stage, (bytes_in, batch_sizes, cpu) in costs.items():
            factor = speed * (slow or {}).get(stage, 1.0) if at >= slow_from else speed
            noisy = cpu * 1e6 * batch_sizes * factor * np.exp(random.normal(0, 0.1, _ITEMS))
            stages[stage] = sum_rows(make_rows(bytes_in, nothing, batch_sizes, noisy), ones)
        took = 5e5 * (machine[at] if machine else 1.0) * np.exp(random.normal(0, 0.03)) if has_yardstick else 0.0
        rows = make_rows(nothing, nothing, ones, took * np.exp(random.normal(0, 0.1, _ITEMS)))
        yardstick = sum_rows(rows, ones) if has_yardstick else None
        windows.append(Window(at * 3600.0, f"run {at // run_length}", stages, yardstick))
    return windows


def _stage(judged: Judged, name: str) -> StageDrift:
    return next(stage for stage in judged.stages if stage.stage == name)


def test_a_slower_stage_is_named() -> None:
    """10 % in one stage is found within three windows, with its size and its beginning, and no other stage is named."""
    judged = judge_windows(make_windows(MOST_WINDOWS + 23, slow={"decode": 1.1}, slow_from=MOST_WINDOWS + 20))
    decode = _stage(judged, "decode")
    assert [stage.stage for stage in judged.stages if stage.verdict == "slower"] == ["decode"]
    assert decode.low is not None
    assert decode.high is not None
    assert decode.low < 1.1 < decode.high
    assert decode.since_unix_seconds == (MOST_WINDOWS + 20) * 3600
    assert "decode is slower" in decode.says


def test_others_are_not_measured_by_a_slower_stage() -> None:
    """They are the same, although one of those that they are compared with changed."""
    judged = judge_windows(make_windows(MOST_WINDOWS + 44, slow={"decode": 1.2}, slow_from=MOST_WINDOWS + 20))
    assert _stage(judged, "scale").verdict == _stage(judged, "process").verdict == "same"


def test_a_quiet_pipeline_is_the_same() -> None:
    """No window raises an alarm, and each stage is called the same."""
    judged = judge_windows(make_windows(MOST_WINDOWS + 60))
    assert judged.alarms == ()
    assert {stage.verdict for stage in judged.stages if stage.stage != ALL_STAGES} == {"same"}


def test_larger_images_are_no_slowdown() -> None:
    """Items that are half as large again take more time, and the stage is the same."""
    sizes = [1.0 + 0.2 * (at % 3) for at in range(60)] + [1.5] * 20
    judged = judge_windows(make_windows(80, sizes=sizes))
    assert judged.alarms == ()
    assert _stage(judged, "decode").verdict == "same"


def test_smaller_batches_are_no_slowdown() -> None:
    """Less traffic makes smaller batches, of which an item takes more."""
    batches = [8 if at % 2 else 4 for at in range(60)] + [4] * 20
    judged = judge_windows(make_windows(80, batches=batches))
    assert judged.alarms == ()
    assert _stage(judged, "process").verdict == "same"


def test_items_unlike_any_of_the_baseline_are_left_out() -> None:
    """Sizes far beyond the baseline's are named instead of being judged."""
    judged = judge_windows(make_windows(80, sizes=[1.0] * 60 + [20.0] * 20))
    assert judged.alarms == ()
    assert all("decode: MB in is" in reason for reason in judged.unlike[-20:])
    assert _stage(judged, "scale").verdict == "same"


def test_a_slow_machine_is_not_a_slow_stage() -> None:
    """A machine that is slower by half is named as what all stages have in common, and no stage is."""
    machine = [1.0] * 110 + [1.5] * 30
    judged = judge_windows(make_windows(140, machine=machine))
    assert [stage.stage for stage in judged.stages if stage.verdict == "slower"] == [ALL_STAGES]
    assert "the machine is slower, or something changed that all stages use" in _stage(judged, ALL_STAGES).says


_WANDERS = [1.0 + 0.25 * np.sin(at / 5) for at in range(MOST_WINDOWS + 60)]


def test_a_yardstick_tells_a_slow_machine_from_slow_stages() -> None:
    """A fifth in all stages is found on a machine that wanders by a quarter; a machine that wanders further is no slowdown."""
    everything = dict.fromkeys(("decode", "scale", "process"), 1.2)
    start = MOST_WINDOWS + 20
    slow = make_windows(start + 10, slow=everything, slow_from=start, machine=_WANDERS, has_yardstick=True)
    found = _stage(judge_windows(slow), ALL_STAGES)
    assert found.verdict == "slower"
    assert found.machine_taken_out
    assert "not the machine, whose speed was measured beside the run" in found.says
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.2 < found.high
    machine = [*_WANDERS[:start], *(1.5 for _ in range(10))]
    assert judge_windows(make_windows(start + 10, machine=machine, has_yardstick=True)).alarms == ()


def test_a_run_that_is_slower_as_a_whole_beside_the_yardstick_is_no_slowdown() -> None:
    """Two programs start in another place of memory each time: a run 5 % off may come, even if the first four are alike."""
    of_runs = [1.0, 1.01, 0.99, 1.005, 1.055]
    quiet = make_windows(MOST_WINDOWS + 24, of_runs=of_runs, run_length=24, has_yardstick=True, seed=1)
    assert judge_windows(quiet).alarms == ()
    of_runs[-1] = 1.2
    slow = make_windows(MOST_WINDOWS + 24, of_runs=of_runs, run_length=24, has_yardstick=True, seed=1)
    assert _stage(judge_windows(slow), ALL_STAGES).verdict == "slower"


def test_windows_without_a_yardstick_are_not_compared_with_ones_that_have_it() -> None:
    """Nor are all stages compared with a yardstick that few windows of the baseline have."""
    windows = make_windows(MOST_WINDOWS + 20, has_yardstick=True)
    late = [replace(one, yardstick=None) for one in windows[MOST_WINDOWS:]]
    assert _stage(judge_windows([*windows[:MOST_WINDOWS], *late]), ALL_STAGES).ratio is None
    early = [replace(one, yardstick=None) for one in windows[:MOST_WINDOWS]]
    assert not _stage(judge_windows([*early, *windows[MOST_WINDOWS:]]), ALL_STAGES).machine_taken_out


def test_one_odd_window_is_no_alarm() -> None:
    """However odd it is: the next ones are as usual."""
    windows = make_windows(120)
    windows[110] = make_windows(111, slow={"scale": 8.0}, slow_from=110)[110]
    assert judge_windows(windows).alarms == ()


def test_a_recovery_ends_the_alarm() -> None:
    """After as many usual windows the stage is no longer called slower."""
    slow = make_windows(120, slow={"decode": 1.3}, slow_from=110)
    assert _stage(judge_windows(slow), "decode").verdict == "slower"
    judged = judge_windows([*slow, *make_windows(160)[120:]])
    assert judged.alarms != ()
    assert _stage(judged, "decode").verdict != "slower"


def test_a_slowdown_stops_the_baseline_from_growing() -> None:
    """The slow windows are not taken for usual ones later."""
    judged = judge_windows(make_windows(200, slow={"decode": 1.3}, slow_from=40))
    assert judged.num_reference <= 2 * FEWEST_WINDOWS
    assert _stage(judged, "decode").verdict == "slower"


@pytest.mark.parametrize("number", [0, 1, FEWEST_WINDOWS])
def test_few_windows_tell_nothing(number: int) -> None:
    """Until there is a baseline and a window to compare."""
    assert judge_windows(make_windows(number)) == Judged(0, (), (), ())


def test_short_runs_are_units_of_their_own() -> None:
    """A job of one window a night is compared from the thirteenth night on."""
    judged = judge_windows(make_windows(40, run_length=1, slow={"scale": 1.3}, slow_from=30))
    assert "scale" in {stage.stage for stage in judged.stages if stage.verdict == "slower"}


def test_stages_that_come_and_go_do_no_harm() -> None:
    """A stage that the baseline lacks is not judged, and windows without a stage do not count for it."""
    windows = make_windows(60)
    windows[40:] = [Window(one.began, one.run, {**one.stages, "new": one.stages["scale"]}) for one in windows[40:]]
    windows[50:] = [
        Window(one.began, one.run, {name: sums for name, sums in one.stages.items() if name != "decode"})
        for one in windows[50:]
    ]
    judged = judge_windows(windows)
    assert {stage.stage for stage in judged.stages} == {ALL_STAGES, "decode", "scale", "process"}
    assert judged.alarms == ()


def test_a_single_stage_is_compared_with_the_machine_in_it() -> None:
    """There is nothing to tell the machine's speed from."""
    windows = [Window(one.began, one.run, {"scale": one.stages["scale"]}) for one in make_windows(60)]
    assert [stage.stage for stage in judge_windows(windows).stages] == [ALL_STAGES]


def test_the_machines_speed_is_in_the_plain_ratios() -> None:
    """What the page draws is each window over the baseline at equal input."""
    windows = make_windows(60, sizes=[1.0 + 0.2 * (at % 3) for at in range(60)], slow={"scale": 2.0}, slow_from=50)
    ratios = compare_windows(windows, 24)
    assert 1.8 < np.mean([ratio for ratio in ratios["scale"][50:] if ratio]) < 2.2
    assert 0.9 < np.mean([ratio for ratio in ratios["decode"] if ratio]) < 1.1
    assert compare_windows(windows, 0) == {}


def test_a_verdict_is_written_and_read() -> None:
    """Its figures are finite, as JSON needs them."""
    judged = judge_windows(make_windows(80))
    for stage in judged.stages:
        assert msgspec.json.decode(msgspec.json.encode(stage), type=StageDrift) == stage
        assert np.isfinite([stage.ratio, stage.low, stage.high, stage.evidence, stage.limit]).all()
