"""What a recorded run would have done under another Plan, against what can be worked out by hand."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.handoff import HandoffCost
from headrace.base.records import Counters, Receiving
from headrace.cli.change_arguments import add_change_arguments, change_of
from headrace.diagnose.bounds import bound_ratio, find_bounds
from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.diagnose.replay.costs import BatchCost
from headrace.diagnose.replay.demands import FailedTry
from headrace.diagnose.replay.structure import GilAcquisitions, build
from headrace.diagnose.simulator.system import GIL
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


def test_what_several_cores_lose_is_not_lost_on_one(replay_of: Make) -> None:
    """Waking up on another core, and two threads on one of them while the other idles: one core has neither."""
    steps = [step("a", cpu=0.003, workers=4), step("b", cpu=0.003, releases_gil=False), step("deliver", cpu=1e-6)]
    replay = replay_of(steps)
    fast, without = replay.simulate().throughput, replay.simulate(Change(cores=1)).throughput
    replay.machine = dataclasses.replace(replay.machine, slowdown=1.25, wake_seconds=0.002)
    assert replay.simulate().throughput < 0.95 * fast
    assert replay.simulate(Change(cores=1)).throughput == pytest.approx(without, rel=0.001)
    # Where the run itself had one core, what was found of it holds.
    replay.machine = dataclasses.replace(replay.machine, cores=1.0)
    assert replay.simulate(Change(cores=1), seed=1).throughput < 0.9 * without


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
    replay = replay_of(steps, settings=["b.executor=inline", "deliver.executor=inline"], cores=1, gap=0.008)
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


@pytest.mark.parametrize(
    ("again", "counted"),
    [
        ({"again_calls": 20, "again_call_seconds": 19.9}, {"retried": 20}),
        ({"again_calls": 30, "again_call_seconds": 20.0}, {"retried": 30}),
        ({}, {"returned": 20}),
    ],
)
def test_waiting_for_jobs_to_be_due_again_is_no_time_of_a_call(
    replay_of: Make, again: dict[str, Any], counted: dict[str, int]
) -> None:
    """Two thirds of the calls waited a second for retries: the source is not what limits, and more workers gain as ever."""
    received: dict[str, Any] = {
        "num_receivers": 1, "calls": 30, "empty_calls": 0, "full_calls": 0, "jobs": 120, "asked": 300, "call_seconds": 20.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 2.0, "inline_seconds": 0.0, "last_age_seconds": 30.0,
    }  # fmt: skip
    counters = Counters(received=140, delivered=120, **counted)
    replay = replay_of(WAITING, changes={"receiving": Receiving(**(received | again)), "counters": counters})
    assert replay.simulate().throughput == pytest.approx(100, rel=0.03)
    assert replay.ratio(Change(settings=("fetch.workers=4",))) == pytest.approx(2, rel=0.03)
    plain = replay_of(WAITING, changes={"receiving": Receiving(**received), "counters": Counters(120, 120)})
    assert plain.simulate().throughput < 20


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
    assert replay.change_plan(Change(settings=("fetch.workers=32",))).stages["fetch"].queue_items == 128
    chosen = replay.change_plan(Change(settings=("fetch.workers=32", "fetch.queue_items=20"))).stages["fetch"]
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


def test_a_batch_that_the_plan_allowed_and_never_came_is_no_obstacle(replay_of: Make) -> None:
    """A Plan for batches of 8, of which the run only made 4, is replayed; 16 stays beyond what was measured."""
    steps = [step("process", wait=0.04, kind="device", batch=4), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, settings=["process.batch=8"])
    assert replay.simulate().throughput == pytest.approx(4 / 0.04, rel=0.02)
    assert replay.ratio(Change(settings=("process.batch=4",))) == pytest.approx(1.0, rel=0.02)
    with pytest.raises(CannotReplay, match="batch of 16"):
        replay.ratio(Change(settings=("process.batch=16",)))


def test_a_model_with_threads_takes_the_time_that_was_measured(replay_of: Make) -> None:
    """Calls of 10 ms that keep two cores busy: 100/s on 4 cores beside another stage; with 4 threads twice that."""
    steps = [step("decode", cpu=0.006), step("process", cpu=0.010, kind="device"), step("deliver", cpu=1e-6)]
    replay = replay_of(
        steps, settings=["model.threads=2"], cores=4, changes={"variants": [{"engine": "onnx", "threads": 2}]}
    )
    simulated = replay.simulate()
    assert simulated.throughput == pytest.approx(100, rel=0.02)
    assert simulated.cpu_per_job == pytest.approx(0.006 + 2 * 0.010, rel=0.02)
    assert replay.ratio(Change(settings=("model.threads=1",))) == pytest.approx(0.5, rel=0.02)
    bounds = {bound.name: bound.throughput for bound in find_bounds(replay)}
    assert bounds["workers:process"] == pytest.approx(100, rel=0.02)
    assert bounds["cores"] == pytest.approx(4 / 0.026, rel=0.02)
    inline = replay.simulate(Change(settings=("process.executor=inline", "decode.workers=1")))
    assert inline.throughput == pytest.approx(1 / 0.016, rel=0.02)


def test_a_python_stage_that_comes_back_from_processes_has_to_have_the_gil(replay_of: Make) -> None:
    """Four threads of pure Python do no more than one, also where the run had processes."""
    steps = [step("loop", cpu=0.004, releases_gil=False, executor="process", workers=4), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, cores=8)
    threads = replay.simulate(Change(settings=("loop.executor=thread",)))
    assert threads.throughput == pytest.approx(250, rel=0.03)


def test_one_thread_carries_the_calls_of_all_workers(replay_of: Make) -> None:
    """Eight workers wait side by side, and what their calls cost the CPU comes one after another."""
    steps = [step("fetch", kind="io", wait=0.002, cpu=0.002, workers=8), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, cores=16)
    threads = replay.simulate()
    events = replay.simulate(Change(settings=("fetch.executor=events",)))
    assert threads.throughput > 1900
    assert events.throughput == pytest.approx(500, rel=0.05)


TASKS = [
    step("fetch", cpu=0.0001, kind="io"),
    step("faces.work", wait=0.010, task="faces"),
    step("plates.work", wait=0.004, task="plates"),
    step("deliver", cpu=1e-6),
]


def test_a_stage_of_one_task_is_bound_by_its_own_jobs(replay_of: Make) -> None:
    """Every other job takes 10 ms of the one worker for faces: 200/s are possible, and are what is simulated."""
    replay = replay_of(TASKS, cores=8)
    bounds = {bound.name: bound.throughput for bound in find_bounds(replay)}
    assert bounds["workers:faces.work"] == pytest.approx(200, rel=0.02)
    assert replay.simulate().throughput == pytest.approx(200, rel=0.03)


def test_tasks_are_mixed_as_their_jobs_came_where_the_meters_rested(replay_of: Make) -> None:
    """The CPU time of most jobs of one task was not measured: half of the jobs are of that task all the same."""
    rested = np.where(np.arange(120) % 12 == 0, 0.010, np.nan)
    steps = [TASKS[0], step("faces.work", cpu=rested, task="faces"), step("plates.work", cpu=0.004, task="plates")]
    replay = replay_of([*steps, TASKS[3]], cores=8)
    faces, plates = np.bincount(replay.demands.route)
    assert abs(int(faces) - int(plates)) <= 1
    assert replay.simulate().throughput == pytest.approx(200, rel=0.03)


def test_jobs_that_were_not_measured_are_left_out_where_all_go_one_way(replay_of: Make) -> None:
    """Of one route there is no mix to keep: what was measured stands for the rest."""
    rested = np.where(np.arange(120) % 4 == 0, 0.004, np.nan)
    replay = replay_of([step("decode", cpu=rested), step("deliver", cpu=1e-6)])
    assert replay.demands.num_jobs <= 30


def test_a_stage_of_one_task_in_the_workers_of_all_is_refused(replay_of: Make) -> None:
    """The runtime would give each task workers of its own for both stages: that is not simulated, and said."""
    with pytest.raises(CannotReplay, match=r"faces\.work runs inline in the workers of fetch"):
        replay_of(TASKS, cores=8).simulate(Change(settings=("faces.work.executor=inline",)))


def test_a_lock_is_not_taken_for_the_device(replay_of: Make) -> None:
    """A lock before the device is a resource as well: each keeps its own name and utilization."""
    steps = [
        step("decode", cpu=0.001, workers=2),
        step("process", wait=0.010, kind="device"),
        step("deliver", cpu=1e-6),
    ]
    replay = replay_of(steps)
    decode, process, _ = replay.demands.stages
    decode.mean_lock, process.is_exclusive = 0.001, True
    assert replay.simulate().utilization["device:process"] == pytest.approx(1.0, abs=0.02)
    bounds = {bound.name: bound.throughput for bound in find_bounds(replay)}
    assert bounds["device:process"] == pytest.approx(100, rel=0.02)
    assert bounds["lock:decode"] == pytest.approx(1000, rel=0.02)


def test_another_cost_curve_does_not_bend_the_spread_of_the_measured_one(replay_of: Make) -> None:
    """Batches of 1 and 2 that cost what the curve says differ in nothing else: a flat curve then costs the same for all."""
    size = np.where(np.arange(120) % 3 == 0, 1, 2)
    replay = replay_of([step("process", wait=size * 0.01, kind="device"), step("deliver", cpu=1e-6)])
    device = replay.demands.stages[0]
    device.batch_size = np.where(device.wait < 0.015, 1.0, 2.0)
    replay.costs["process"] = BatchCost(np.array([1.0, 2.0]), np.array([0.01, 0.02]), 0.0)
    flat = replay.scenario(Change(cost_curves={"process": {1: 0.02, 2: 0.02}}))
    program = build(flat).stations[0].batch_program
    assert program is not None
    assert {round(program(1, unit)[0][1], 6) for unit in range(6)} == {0.02}


def test_moments_with_the_gil_are_part_of_the_measured_time(replay_of: Make) -> None:
    """Taking the GIL back costs no CPU time that was not measured, however often it is found to happen."""
    replay = replay_of(
        [step("loop", cpu=0.0002, releases_gil=False), step("work", cpu=0.0002), step("deliver", cpu=1e-6)]
    )
    before = replay.simulate().cpu_per_job
    replay.gil_acquisitions["work"] = GilAcquisitions(60, 0.0)
    assert replay.simulate(Change(cores=2)).cpu_per_job == pytest.approx(before, rel=0.001)


def test_a_stage_that_does_less_takes_the_gil_back_less_often(replay_of: Make) -> None:
    """Of 60 waits for the GIL that another stage holds, half are left where half of the work is."""
    replay = replay_of([step("loop", cpu=0.0002), step("work", cpu=0.002), step("deliver", cpu=1e-6)])
    replay.holds_gil |= {"loop": 1.0}
    replay.gil_acquisitions["work"] = GilAcquisitions(60, 0.0)

    def count(speedup: float) -> int:
        structure = build(replay.scenario(Change(speedups={"work": speedup})))
        program = structure.stations[1].programs[0]
        return sum(kind == GIL for kind, _ in program)

    assert count(1.0) - count(2.0) == 30
    assert count(1.0) - count(1000.0) == 59


@pytest.mark.full
def test_a_stage_of_many_small_children_is_a_candidate(fan_of: Callable[..., Replay]) -> None:
    """A hundredth for each of 200 children is twice what the whole costs: it is tried, and is the bottleneck."""
    replay = fan_of(whole=0.020, child=0.0001, children=200)
    candidates = {candidate.name: candidate.gain for candidate in find_candidates(replay)}
    assert candidates["stage:piece"] > candidates.get("stage:cut", 1.0)


def test_children_share_what_workers_need_beside_the_stages(fan_of: Callable[..., Replay]) -> None:
    """What workers need for a job and all its children is measured for the job, and is not added once for each child."""
    replay = fan_of(whole=0.001, child=0.001, children=10)
    replay.machine = dataclasses.replace(replay.machine, overhead=0.002)
    assert replay.simulate().cpu_per_job == pytest.approx(0.001 + 10 * 0.001 + 0.002, rel=0.02)


def test_tasks_of_chained_modules_are_one_way(replay_of: Make) -> None:
    """A task chooses a model; where each job goes through both, the slower of the two limits them all."""
    steps = [
        step("det.work", wait=0.010, task="det", is_chained=True),
        step("rec.work", wait=0.004, task="rec", is_chained=True),
        step("deliver", cpu=1e-6),
    ]
    replay = replay_of(steps)
    assert replay.simulate().throughput == pytest.approx(100, rel=0.02)
    assert replay.ratio(Change(speedups={"det.work": 2})) == pytest.approx(2.0, rel=0.03)


def test_a_fan_out_between_the_tasks_of_chained_modules(fan_of: Callable[..., Replay]) -> None:
    """Children go on to the second module as they would without tasks, and every candidate can be simulated."""
    replay = fan_of(whole=0.004, child=0.001, children=3, tasks=("det", "rec"))
    plain = fan_of(whole=0.004, child=0.001, children=3)
    assert replay.simulate().throughput == pytest.approx(plain.simulate().throughput)
    assert {one.name for one in find_candidates(replay)} == {one.name for one in find_candidates(plain)}
    assert find_bounds(replay)


def test_jobs_without_children_are_replayed(fan_of: Callable[..., Replay]) -> None:
    """A picture without objects is a whole job: it passes the fan-out and the join, and nothing between them."""
    replay = fan_of(whole=0.004, child=0.001, children=3, childless=4)
    assert replay.demands.num_jobs == 60
    assert replay.simulate().cpu_per_job == pytest.approx(0.004 + 0.75 * 0.003, rel=0.02)


def test_models_of_two_tasks_share_the_one_device(replay_of: Make) -> None:
    """A call of 10 ms for every other job and one of 30 ms for the rest: 50/s, each with the times of its own model."""
    steps = [
        step("fetch", cpu=1e-5, kind="io"),
        step("faces.process", wait=0.010, kind="device", task="faces"),
        step("plates.process", wait=0.030, kind="device", task="plates"),
        step("deliver", cpu=1e-6),
    ]
    times = ("models.faces.options.launch_seconds=10ms", "models.plates.options.launch_seconds=0.03")
    settings = [*times, "models.faces.engine=emulated", "models.plates.engine=emulated"]
    variants = [{"engine": "emulated", "launch_seconds": seconds, "item_seconds": 0.0} for seconds in (0.01, 0.03)]
    replay = replay_of(steps, settings=settings, changes={"variants": variants})
    assert replay.simulate().throughput == pytest.approx(50, rel=0.02)
    assert replay.simulate().utilization["device:plates.process"] == pytest.approx(1.0, abs=0.02)
    assert replay.costs["faces.process"].at(8) == pytest.approx(0.010, rel=0.01)
    assert replay.ratio(Change(devices=2)) == pytest.approx(4 / 3, rel=0.03)
    faster = Change(settings=("models.plates.options.launch_seconds=10ms",))
    assert replay.ratio(faster) == pytest.approx(2.0, rel=0.03)


def test_models_share_what_the_plan_says_there_is(replay_of: Make) -> None:
    """One call at a time over both tasks: 50/s, as on one device; two at a time, and with two instances of each, 100/s."""
    steps = [
        step("fetch", cpu=1e-5, kind="io"),
        step("faces.process", wait=0.010, kind="device", task="faces"),
        step("plates.process", wait=0.030, kind="device", task="plates"),
        step("deliver", cpu=1e-6),
    ]
    times = {"faces": "10ms", "plates": "30ms"}
    settings = ["resources.gpu=1"]
    for task, launch in times.items():
        settings += [f"models.{task}.engine=emulated", f"models.{task}.uses.gpu=1"]
        settings += [f"models.{task}.options.launch_seconds={launch}"]
    variants = [{"engine": "emulated", "launch_seconds": seconds, "item_seconds": 0.0} for seconds in (0.01, 0.03)]
    replay = replay_of(steps, settings=settings, changes={"variants": variants})
    assert replay.simulate().throughput == pytest.approx(50, rel=0.02)
    assert replay.simulate().utilization["device:plates.process"] == pytest.approx(1.0, abs=0.02)
    assert find_bounds(replay)[0].says.startswith("1 gpu of faces.process,plates.process / 20")
    two = ("resources.gpu=2", "faces.process.workers=2", "plates.process.workers=2")
    assert replay.ratio(Change(settings=two)) == pytest.approx(2.0, rel=0.03)
    assert replay.ratio(Change(settings=two[1:])) == pytest.approx(1.0, rel=0.02)
    with pytest.raises(SettingsError, match=r"--set resources\.NAME=N"):
        replay.ratio(Change(devices=2))


def test_a_ratio_is_of_the_same_jobs(replay_of: Make) -> None:
    """Jobs grow by half towards the end of a long run: more workers, for which more jobs are simulated, are not blamed."""
    wait = np.linspace(0.02, 0.03, 2500)
    replay = replay_of([step("fetch", wait=wait, kind="io", workers=32), step("deliver", cpu=1e-6)], num=2500)
    assert replay.ratio(Change(settings=("fetch.workers=160",))) == pytest.approx(5.0, rel=0.02)


def test_nothing_left_is_no_throughput_without_limit(replay_of: Make) -> None:
    """Where no stage takes time any more there is no number, and no infinite one."""
    replay = replay_of([step("work", cpu=0.004), step("deliver", cpu=0.0)])
    replay.machine = dataclasses.replace(replay.machine, overhead=0.0)
    with pytest.raises(CannotReplay, match="no limit"):
        replay.ratio(Change(drop=("work",)))


def test_tries_that_failed_stay_where_stages_are_fused(replay_of: Make) -> None:
    """Each download fails once: 2 workers do 2 / 40 ms; with decoding in them 2 / 44 ms, and not as if none had failed."""
    replay = replay_of(WAITING)
    fetch, decode, _ = replay.demands.stages
    fetch.tries = {unit: [FailedTry(wait=0.02, cpu=0.0, delay=0.0)] for unit in range(120)}
    assert replay.simulate().throughput == pytest.approx(50, rel=0.02)
    fused = Change(settings=("decode.executor=inline",))
    assert replay.simulate(fused).throughput == pytest.approx(2 / 0.044, rel=0.02)
    decode.tries = {unit: [FailedTry(wait=0.0, cpu=0.004, delay=0.0)] for unit in range(120)}
    assert replay.simulate(fused, seed=1).throughput == pytest.approx(2 / 0.068, rel=0.02)


def test_inline_stages_keep_the_workers_of_a_dropped_one(replay_of: Make) -> None:
    """Without decoding its one worker still resizes, 1 / 4 ms; the 16 that download do not take that over."""
    steps = [
        step("fetch", wait=0.001, kind="io", workers=16),
        step("decode", cpu=0.004),
        step("resize", wait=0.004),
        step("deliver", cpu=1e-6),
    ]
    replay = replay_of(steps, settings=["resize.executor=inline"], cores=8)
    assert replay.simulate(Change(drop=("decode",))).throughput == pytest.approx(250, rel=0.03)


def test_a_long_run_is_more_than_its_first_jobs(replay_of: Make) -> None:
    """Of 4,000 jobs the later half takes three times as long: 1 / 20 ms, and not the 1 / 10 ms of the first."""
    wait = np.where(np.arange(4000) < 2000, 0.010, 0.030)
    replay = replay_of([step("fetch", wait=wait, kind="io"), step("deliver", cpu=1e-6)], num=4000, gap=0.02)
    done = np.diff(replay.simulate().trace.done)
    assert done.mean() == pytest.approx(0.020, rel=0.05)


def test_the_curve_of_a_run_is_that_of_its_own_batches(replay_of: Make) -> None:
    """Warm-up measured 20 ms, the run's own calls took 10 ms: put in the place of the same run's curve, nothing changes."""
    curve = {size: [0.02] * 3 for size in (1, 2)}
    steps = [step("process", wait=0.010, kind="device"), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, changes={"cost_curves": {"process": curve}})
    parser = argparse.ArgumentParser()
    add_change_arguments(parser)
    given = parser.parse_args(["--curve", f"process={replay.run.path}"])
    change = change_of(given, replay.plan, replay.run.info.stages)
    assert change.cost_curves["process"][1] == pytest.approx(0.010, rel=0.01)
    assert replay.ratio(change) == pytest.approx(1.0, rel=0.01)


def test_resampled_runs_differ_as_much_as_runs_of_that_length_would(replay_of: Make) -> None:
    """The mean of 60 exponential times has a standard error of 1 / sqrt(60), also where 400 jobs are simulated."""
    wait = np.random.default_rng(5).permutation(-0.01 * np.log((np.arange(60) + 0.5) / 60))
    replay = replay_of([step("fetch", wait=wait, kind="io"), step("deliver", cpu=1e-6)], num=60)
    means = [float(wait[replay.scenario(Change(), seed=seed, resampled=True).sample].mean()) for seed in range(200)]
    assert np.std(np.log(means)) == pytest.approx(wait.std() / wait.mean() / 60**0.5, rel=0.3)


def _priced(replay_of: Make, names: str, price: float | None) -> Replay:
    """Return a run of stages of 50 us that noted what a hand-off costs; None: it did not. Cores are as fast as they are."""
    handoff = None if price is None else HandoffCost(price, 2 * price)
    replay = replay_of(
        [step(name, cpu=50e-6) for name in (*names, "deliver")], gap=0.0001, changes={"handoff": handoff}
    )
    replay.machine = dataclasses.replace(replay.machine, slowdown=1.0)
    return replay


@pytest.mark.parametrize(("price", "saves"), [(None, False), (5e-6, True)])
def test_fusing_saves_what_handing_on_cost(replay_of: Make, price: float | None, saves: bool) -> None:
    """Where the run noted what a hand-off costs, fewer stations need less CPU time; else nothing is known of that."""
    replay = _priced(replay_of, "abc", price)
    fused = Change(settings=("b.executor=inline", "c.executor=inline"))
    base, after = replay.simulate().cpu_per_job, replay.simulate(fused).cpu_per_job
    assert (after < 0.98 * base) is saves
    assert after <= base * (1 + 1e-6)


def test_a_job_costs_more_where_workers_sleep_between_jobs(replay_of: Make) -> None:
    """Each hop of a job that comes alone wakes a worker; under load the workers are awake."""
    replay = _priced(replay_of, "ab", 5e-6)
    alone = replay.simulate(Change(arrival_rate=10.0)).cpu_per_job
    assert alone > 1.02 * replay.simulate().cpu_per_job


def test_a_model_on_several_devices(replay_of: Make) -> None:
    """Each takes a call: with a worker for each of two, twice as many."""
    steps = [step("fetch", cpu=1e-5, kind="io"), step("process", wait=0.010, kind="device"), step("deliver", cpu=1e-6)]
    settings = ["model.engine=emulated", "model.options.launch_seconds=10ms"]
    variants = [{"engine": "emulated", "launch_seconds": 0.01, "item_seconds": 0.0}]
    replay = replay_of(steps, settings=settings, changes={"variants": variants})
    two = Change(settings=("process.workers=2", "model.devices=[0, 1]"))
    assert replay.ratio(two) == pytest.approx(2.0, rel=0.03)
    assert replay.ratio(Change(settings=two.settings[:1])) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("work", "is_emulated"), [("preprocess", False), ("model", True), ("", True)])
def test_a_stage_that_takes_batches_and_runs_no_model(replay_of: Make, work: str, is_emulated: bool) -> None:
    """Beside an emulated model it has its own times, as they were measured, and a device of its own."""
    steps = [step("augment", cpu=0.004, kind="device", work=work), step("process", wait=0.010, kind="device")]
    settings = ["model.engine=emulated", "model.options.launch_seconds=10ms"]
    variants = [{"engine": "emulated", "launch_seconds": 0.01, "item_seconds": 0.0}]
    replay = replay_of([*steps, step("deliver", cpu=1e-6)], settings=settings, changes={"variants": variants})
    augment = replay.demands.stages[0]
    assert (augment.is_emulated, augment.is_exclusive) == (is_emulated, is_emulated)
    # One item of the model at a time, and side by side with it the augmentation: or both in turn on one device.
    assert replay.simulate().throughput == pytest.approx(1 / 0.014 if is_emulated else 100.0, rel=0.03)


def test_more_workers_of_augmentation_that_only_takes_time(replay_of: Make) -> None:
    """They wait for the one device; calls of a stage that is not emulated sleep side by side."""
    for is_emulated, gain in ((True, 1.0), (False, 2.0)):
        augment = step("augment", wait=0.010, kind="device", work="preprocess", is_emulated=is_emulated)
        replay = replay_of([augment, step("deliver", cpu=1e-6)])
        assert replay.ratio(Change(settings=("augment.workers=2",))) == pytest.approx(gain, rel=0.03)


@pytest.mark.parametrize(("price", "cores", "seconds"), [(5e-6, None, 0.0014), (5e-6, 1.5, 0.0), (None, None, 0.0)])
def test_threads_take_turns_on_whole_cores(
    replay_of: Callable[..., Replay], price: float | None, cores: float | None, seconds: float
) -> None:
    """Linux's slice on two cores; parts of cores are shared evenly, and so are those of runs that are older than prices."""
    handoff = None if price is None else HandoffCost(price, 2 * price)
    replay = replay_of([step("work", cpu=1e-3), step("deliver", cpu=1e-6)], changes={"handoff": handoff})
    assert replay.cores == 2
    assert build(replay.scenario(Change(cores=cores))).slice_seconds == seconds


def test_where_threads_take_turns_the_price_of_waking_is_no_more_than_that(replay_of: Callable[..., Replay]) -> None:
    """Simulated an eighth too fast: nobody else waits while one wakes up, so what is missing is not all the price of that."""
    steps = [
        step("hold", cpu=0.003, workers=2, releases_gil=False),
        step("call", cpu=0.0006, workers=2),
        step("deliver", cpu=1e-6),
    ]
    replay = replay_of(steps, gap=1.15 * 0.003, changes={"handoff": HandoffCost(5e-6, 10e-6)})
    assert build(replay.scenario(Change())).slice_seconds > 0
    assert 0 < replay.machine.wake_seconds <= 200e-6
