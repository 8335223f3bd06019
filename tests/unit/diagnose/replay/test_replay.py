"""What a recorded run would have done under another Plan, against what can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.diagnose.bounds import bound_ratio, find_bounds
from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.runs.formats.prediction import Change

Make = Callable[..., Replay]


def step(name: str, **values: Any) -> dict[str, Any]:
    """Return one stage of a recorded run; see `conftest.Step`."""
    return {"name": name, **values}


#: Waits 20 ms in `fetch` with two workers, computes 4 ms in `decode`, and delivers.
WAITING = [
    step("fetch", wait=0.02, kind="io", workers=2),
    step("decode", cpu=0.004),
    step("deliver", cpu=0.00001, kind="io"),
]


def test_workers_of_a_waiting_stage_add_up_until_the_next_limit(replay_of: Make) -> None:
    """2 workers wait 20 ms: 100/s; 4: 200/s; 16 meet the decoder's 1 / 4 ms = 250/s."""
    replay = replay_of(WAITING)
    assert replay.simulate().throughput == pytest.approx(100, rel=0.02)
    assert replay.ratio(Change(settings=("fetch.workers=4",))) == pytest.approx(2, rel=0.02)
    assert replay.ratio(Change(settings=("fetch.workers=16",))) == pytest.approx(2.5, rel=0.03)


def test_run_delay_is_not_replayed(replay_of: Make) -> None:
    """Waiting for a core was the machine's doing: without others, 4 ms of CPU are 4 ms, however long they took."""
    replay = replay_of([step("decode", cpu=0.004, delay=0.02), step("deliver", cpu=1e-5)])
    assert replay.simulate().throughput == pytest.approx(250, rel=0.02)


def test_cores_are_shared_by_all_stages(replay_of: Make) -> None:
    """3 + 3 ms of CPU on two cores: 333/s, whatever the number of workers; on one core half of it."""
    steps = [step("a", cpu=0.003, workers=4), step("b", cpu=0.003, workers=4), step("deliver", cpu=1e-6)]
    replay = replay_of(steps)
    assert replay.simulate().throughput == pytest.approx(2 / 0.006, rel=0.02)
    assert replay.ratio(Change(cores=1)) == pytest.approx(0.5, rel=0.02)


def test_a_python_stage_gains_nothing_from_threads_and_all_from_processes(replay_of: Make) -> None:
    """4 ms with the GIL: 250/s with one thread or four; two processes do nearly twice that: moving items has its price."""
    steps = [step("loop", cpu=0.004, releases_gil=False), step("deliver", cpu=1e-6)]
    replay = replay_of(steps)
    assert replay.ratio(Change(settings=("loop.workers=4",))) == pytest.approx(1.0, rel=0.02)
    processes = Change(settings=("loop.workers=2", "loop.executor=process"))
    assert 1.6 < replay.ratio(processes) < 2.0


def test_a_batch_costs_what_was_measured_and_no_more_is_made_up(replay_of: Make) -> None:
    """A device of 10 ms + 1 ms per item: batches of 8 do 8 / 18 ms; a batch of 64 was never measured and is refused."""
    curve = {size: [0.010 + 0.001 * size] * 3 for size in (1, 2, 4, 8)}
    steps = [
        step("fetch", wait=0.001, kind="io", workers=4),
        step("process", wait=0.011, kind="device"),
        step("deliver", cpu=1e-6),
    ]
    replay = replay_of(steps, changes={"cost_curves": {"process": curve}})
    assert replay.simulate().throughput == pytest.approx(1 / 0.011, rel=0.02)
    assert replay.ratio(Change(settings=("process.batch=8",))) == pytest.approx(8 / 0.018 * 0.011, rel=0.03)
    with pytest.raises(CannotReplay, match=r"batch of 64.*up to 8.*headrace profile"):
        replay.ratio(Change(settings=("process.batch=64",)))


def test_another_cost_curve_replaces_the_measured_one(replay_of: Make) -> None:
    """An engine that takes half as long for each size does twice as many."""
    steps = [step("process", wait=0.010, kind="device"), step("deliver", cpu=1e-6)]
    replay = replay_of(steps)
    change = Change(cost_curves={"process": {1: 0.005, 8: 0.010}})
    assert replay.ratio(change) == pytest.approx(2.0, rel=0.02)
    assert replay.ratio(Change(cost_curves={"process": {1: 0.005, 8: 0.010}}, settings=("process.batch=8",))) > 4


def test_large_images_stay_large_in_every_stage(replay_of: Make) -> None:
    """Units keep their own times: a line of inline stages takes the sum of what each item needs."""
    sizes = np.where(np.arange(120) % 4 == 0, 0.010, 0.002)
    steps = [step("a", cpu=sizes), step("b", cpu=sizes), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, settings=["b.executor=inline", "deliver.executor=inline"], cores=1)
    assert replay.simulate().throughput == pytest.approx(1 / (2 * 0.004), rel=0.02)
    latencies = replay.simulate(Change(settings=("source.max_in_flight=1",))).latencies
    assert sorted({round(float(value), 3) for value in latencies}) == [0.004, 0.020]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change(speedups={"fetsch": 2.0}), "fetch"),
        (Change(speedups={"fetch": 0.0}), "above 0"),
        (Change(cache_hits={"fetch": 1.5}), "0 to 1"),
        (Change(settings=("fetch.wrokers=2",)), "wrokers"),
        (Change(drop=("deliver",)), "deliver"),
        (Change(cores=0), "more than 0"),
        (Change(arrival_rate=-1.0), "more than 0"),
    ],
)
def test_an_impossible_change_is_refused_by_name(replay_of: Make, change: Change, says: str) -> None:
    """What is not there or cannot be is an error that names it, not a number."""
    replay = replay_of(WAITING)
    with pytest.raises(SettingsError, match=says):
        replay.simulate(change)


def test_a_cache_and_a_dropped_stage_take_their_share(replay_of: Make) -> None:
    """Half of the downloads from a cache: twice as many; no decode: only the downloads limit."""
    replay = replay_of(WAITING)
    assert replay.ratio(Change(cache_hits={"fetch": 0.5})) == pytest.approx(2.0, rel=0.03)
    assert replay.ratio(Change(drop=("decode",))) == pytest.approx(1.0, rel=0.02)
    assert replay.ratio(Change(drop=("decode",), settings=("fetch.workers=16",))) == pytest.approx(8.0, rel=0.03)


def test_arrivals_below_capacity_are_the_throughput(replay_of: Make) -> None:
    """50 jobs a second through a line that does 100 come out at 50 a second, and no faster than 20 ms + 4 ms."""
    simulated = replay_of(WAITING).simulate(Change(arrival_rate=50.0))
    assert simulated.throughput == pytest.approx(50, rel=0.1)
    assert simulated.latencies.min() >= 0.024 - 1e-9


def test_the_same_seed_gives_the_same_answer(replay_of: Make) -> None:
    """Nothing is left to chance but what the seed decides."""
    change = Change(arrival_rate=60.0)
    first = replay_of(WAITING).simulate(change, seed=3, resampled=True).latencies
    other = replay_of(WAITING).simulate(change, seed=4, resampled=True).latencies
    assert np.array_equal(first, replay_of(WAITING).simulate(change, seed=3, resampled=True).latencies)
    assert not np.array_equal(first, other)


def test_too_few_jobs_are_refused_with_what_to_do(replay_of: Make) -> None:
    """Five jobs say nothing of the others."""
    with pytest.raises(CannotReplay, match=r"only 5 jobs.*Profile more"):
        replay_of(WAITING, num=5)


def test_a_run_without_clocks_is_refused_with_what_to_do(replay_of: Make) -> None:
    """Without CPU times nothing can be told apart."""
    with pytest.raises(CannotReplay, match="headrace profile"):
        replay_of([one | {"cpu": np.nan} for one in WAITING])


def test_default_queues_grow_with_the_workers_and_chosen_ones_stay(replay_of: Make) -> None:
    """A bound that is the runtime's own default follows the workers; one that somebody chose does not."""
    replay = replay_of(WAITING)
    assert replay.changed_plan(Change(settings=("fetch.workers=32",))).stages["fetch"].queue_items == 128
    chosen = replay.changed_plan(Change(settings=("fetch.workers=32", "fetch.queue_items=20"))).stages["fetch"]
    assert chosen.queue_items == 20


def test_bounds_can_be_worked_out_by_hand(replay_of: Make) -> None:
    """2 workers / 20 ms = 100/s, 1 worker / 4 ms = 250/s, 2 cores / 4.01 ms; the tightest first."""
    bounds = {bound.name: bound.throughput for bound in find_bounds(replay_of(WAITING))}
    assert next(iter(bounds)) == "workers:fetch"
    assert bounds["workers:fetch"] == pytest.approx(100, rel=0.02)
    assert bounds["workers:decode"] == pytest.approx(250, rel=0.02)
    assert bounds["cores"] == pytest.approx(2 / 0.00401, rel=0.03)
    assert bound_ratio(replay_of(WAITING), Change(settings=("fetch.workers=3",))) == pytest.approx(1.5, rel=0.01)


def test_the_largest_gain_is_the_bottleneck(replay_of: Make) -> None:
    """Downloading is the limit: a fifth faster gives a fifth; what is not the limit gives nothing."""
    candidates = {candidate.name: candidate.gain for candidate in find_candidates(replay_of(WAITING))}
    assert candidates["stage:fetch"] == pytest.approx(1.2, rel=0.01)
    assert candidates["workers:fetch"] == pytest.approx(1.2, rel=0.01)
    assert candidates["stage:decode"] == pytest.approx(1.0, rel=0.01)
    assert candidates["cores"] == pytest.approx(1.0, rel=0.01)


def test_after_a_fix_the_next_limit_shows(replay_of: Make) -> None:
    """With enough downloads at once it is the decoder that gains."""
    candidates = find_candidates(replay_of(WAITING), Change(settings=("fetch.workers=16",)))
    assert candidates[0].stage == "decode"


def test_workers_for_an_inline_stage_come_with_threads(replay_of: Make) -> None:
    """A Plan that says inline would ignore workers: settings to apply say thread as well."""
    steps = [step("a", cpu=0.001), step("b", cpu=0.004), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, settings=["b.executor=inline"])
    assert replay.applicable(["b.workers=3"]) == ("b.workers=3", "b.executor=thread")
    assert replay.applicable(["a.workers=3"]) == ("a.workers=3",)
    assert replay.plan.with_settings(replay.applicable(["b.workers=3"])).stages["b"].executor == "thread"
