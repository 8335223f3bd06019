"""Causes that are seen where they act: a limited rate, a log that nobody reads, threads of libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.concurrency import is_rationed
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.evidence import collect
from headrace.diagnose.lock_holders import share_of_lock_waits
from headrace.diagnose.verdict import pace
from headrace.diagnose.verdict.facts import Facts
from headrace.runs.formats import profiling
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Window
from headrace.runs.formats.profiling import ProfilingInfo
from headrace.runs.reader import Run, read_run

WORKERS = 8


@pytest.fixture
def diagnose(make_run: Callable[[Any], Run], pipe: Any) -> Callable[..., DiagnosisDocument]:
    """Makes a run and diagnoses it."""
    return lambda *stages, **settings: diagnosis_document(Analysis(make_run(pipe(stages=list(stages), **settings))))


def in_line(count: int, rate: float) -> np.ndarray:
    """Return what each request takes where one is answered every 1/rate seconds and eight are under way."""
    return np.minimum(np.arange(count) + 1, WORKERS) / rate


def test_answers_at_even_steps_are_a_limited_rate(diagnose: Any, made: Any) -> None:
    """Eight wait in line, the first of them hardly: RATE_LIMIT, no advice to use more workers, no latency beside it."""
    ask = made(name="ask", kind="io", work="download", cpu=1e-4, wait=in_line(400, 100.0), workers=WORKERS)
    found = diagnose(ask)
    assert (found.first.verdict, found.first.cause, found.first.stage) == (VerdictClass.RATE_LIMIT, "paced", "ask")
    assert not any("workers" in setting for remedy in found.first.remedies for setting in remedy.settings)
    named = [one.verdict for one in (found.runner_up, found.next_bottleneck) if one is not None]
    assert VerdictClass.DOWNLOAD_LATENCY not in named


def test_answers_that_are_taken_up_late_are_a_limited_rate(diagnose: Any, made: Any) -> None:
    """Forty stand in line, and take their answers up late by luck: uneven, but the first of them hardly waited."""
    late = np.random.default_rng(4).exponential(0.02, 600)
    wait = np.minimum(np.arange(600) + 1, 40) / 100.0 + late
    found = diagnose(made(name="ask", kind="io", cpu=1e-4, wait=wait, workers=40, queue=64), num_jobs=600, runtime=1e-5)
    assert (found.first.verdict, found.first.cause, found.first.stage) == (VerdictClass.RATE_LIMIT, "paced", "ask")
    assert "at even steps" not in found.first.says


def test_other_programs_that_hold_up_who_has_the_gil(make_run: Any, pipe: Any, made: Any) -> None:
    """Others take three quarters of the cores: threads wait for a core, and for the GIL of who waits for one."""
    parse = made(name="parse", cpu=0.0012, wait=0.0022, state="gil", delay=0.0012, workers=2, releases_gil=False)
    look = made(name="look", cpu=0.0028, wait=0.017, state="gil", delay=0.0115, workers=2)
    fetch = made(name="fetch", kind="io", cpu=0.0003, wait=0.017, delay=0.0029, workers=6, releases_gil=False)
    digest = made(name="digest", cpu=0.0015, wait=0.0077, state="gil", delay=0.0042, workers=4)
    run = make_run(pipe(stages=[parse, look, fetch, digest], cores=2, others=1.5, runtime=2e-4))
    replay = Analysis(run).replay
    assert replay.ratio(Change(quiet=True)) > 1.5
    assert diagnosis_document(Analysis(run)).first.verdict == VerdictClass.NEIGHBOUR


@pytest.mark.parametrize("is_staggered", [False, True])
def test_a_slow_server_sets_no_pace(facts_of: Callable[[Any], Facts], pipe: Any, made: Any, is_staggered: bool) -> None:
    """Every request takes 80 ms, alone as in company: no pace, though answers come at even steps if requests did."""
    ask = made(name="ask", kind="io", work="download", cpu=1e-4, wait=0.08, workers=WORKERS)
    arrivals = np.arange(400) * 0.0101 if is_staggered else None
    facts = facts_of(pipe(stages=[ask], arrivals=arrivals))
    view = facts.stage("ask")
    assert view is not None
    assert pace.find_pace(facts, view) is None


def by_luck(count: int, rate: float) -> np.ndarray:
    """Return what each call takes if one is answered every 1/rate seconds, any of the eight that are under way."""
    began, ended = answer_by_luck(count, rate)
    return ended - began


def answer_by_luck(count: int, rate: float, favour: float = 1.0, late: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return when each of those calls begins and is answered.

    Above 1 the newest ones are favoured; callers hear of their answer so many seconds late, on average.
    """
    lateness = np.random.default_rng(6).exponential(late, count)
    numbers, under_way = np.random.default_rng(5), list(range(WORKERS))
    began, ended = np.zeros(count), np.zeros(count)
    for number in range(count):
        place = len(under_way) - 1 - int(len(under_way) * numbers.random() ** favour)
        answered, following = under_way.pop(place), number + WORKERS
        ended[answered] = (number + 1) / rate + lateness[number]
        if following < count:
            began[following] = ended[answered]
            under_way.append(following)
    return began, ended


def test_answers_that_are_taken_up_late_are_even_enough() -> None:
    """By 16 ms of the 25 ms between two, on average."""
    assert is_rationed(*answer_by_luck(400, 40.0, favour=3.0, late=0.016))


def test_refusals_that_the_stage_hides_are_a_limited_rate(diagnose: Any, made: Any) -> None:
    """Who asks again until it is let in waits by luck, and answers come at even steps: RATE_LIMIT, no slow download."""
    wait = by_luck(400, 40.0) - 1e-4
    found = diagnose(
        made(name="ask", kind="io", work="download", cpu=1e-4, wait=wait, state="sleep", workers=WORKERS),
        made(name="deliver", kind="io", work="deliver", cpu=2e-5, queue=400),
    )
    assert (found.first.verdict, found.first.cause, found.first.stage) == (VerdictClass.RATE_LIMIT, "rationed", "ask")
    assert "ask again later" in found.first.says
    assert not any("workers" in setting for remedy in found.first.remedies for setting in remedy.settings)


@pytest.mark.parametrize(("asleep", "spread", "cause"), [(7, 1.0, "asks again"), (1, 1.0, "tail"), (7, 0.1, "")])
def test_a_stage_that_sleeps_between_requests_asks_again(
    diagnose: Any, made: Any, asleep: int, spread: float, cause: str
) -> None:
    """Long for some items and hardly for others; answers come in no order. Not where it hardly sleeps, or always as long."""
    lengths = np.random.default_rng(8).gamma(1 / spread**2, spread**2, 400) * 0.2
    states = (["sleep"] * asleep + ["network"] * (10 - asleep)) * 40
    found = diagnose(
        made(name="ask", kind="io", work="download", cpu=1e-4, wait=lengths, state=states, workers=WORKERS),
        made(name="deliver", kind="io", work="deliver", cpu=2e-5, queue=400),
    )
    verdict = VerdictClass.RATE_LIMIT if asleep * spread > 1 else VerdictClass.DOWNLOAD_LATENCY
    assert (found.first.verdict, found.first.cause, found.first.stage) == (verdict, cause, "ask")


def test_a_service_that_refuses_is_simulated_as_one_server(make_run: Any, pipe: Any, made: Any) -> None:
    """It gives out 40 answers a second, however many callers and cores there are, and quickly to who comes less often."""
    wait = by_luck(400, 40.0) - 1e-4
    ask = made(name="ask", kind="io", work="download", cpu=1e-4, wait=wait, state="sleep", workers=WORKERS)
    deliver = made(name="deliver", kind="io", work="deliver", cpu=2e-5, queue=400)
    replay = Analysis(make_run(pipe(stages=[ask, deliver]))).replay
    for workers in (2, 16):
        assert replay.ratio(Change(settings=(f"ask.workers={workers}",))) == pytest.approx(1.0, abs=0.05)
    assert replay.ratio(Change(cores=1.0)) == pytest.approx(1.0, abs=0.05)
    assert replay.ratio(Change(speedups={"ask": 2.0})) == pytest.approx(2.0, rel=0.1)
    often, seldom = (
        np.median(replay.simulate(Change(arrival_rate=rate), num_jobs=400).latencies) for rate in (60.0, 20.0)
    )
    assert seldom < 0.1 < often


def test_a_pipe_is_read_no_faster_by_more_writers(make_run: Any, pipe: Any, made: Any) -> None:
    """It is read on while its one writer computes, and then blocks that until there is room: four get no more through it."""
    clean = made(name="clean", work="preprocess", cpu=0.005, wait=0.02, state="output", workers=1)
    replay = Analysis(make_run(pipe(stages=[clean]))).replay
    assert replay.misfit == pytest.approx(0.0, abs=0.05)
    assert replay.ratio(Change(settings=("clean.workers=4",))) == pytest.approx(1.0, abs=0.05)
    assert replay.ratio(Change(speedups={"clean": 2.0})) == pytest.approx(2.0, rel=0.1)


def test_writers_that_wait_for_one_another_and_the_gil_wait_for_the_reader(make_run: Any, pipe: Any, made: Any) -> None:
    """Of two, one waits until its line is read and one for the lock of who writes, and both for the GIL in between."""
    waits_for = ["output", "lock", "output", "lock", "gil", "gil", "lock", "output", "gil", "gil"] * 40
    log = made(name="log", cpu=0.0015, wait=0.019, state=waits_for, workers=2, releases_gil=False)
    replay = Analysis(make_run(pipe(stages=[log], runtime=1e-5))).replay
    assert replay.misfit == pytest.approx(0.0, abs=0.05)
    assert replay.ratio(Change(settings=("log.workers=4",))) == pytest.approx(1.0, abs=0.05)
    assert replay.ratio(Change(speedups={"log": 2.0})) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("second", "ratio"), [("pipe:[7]", 1.0), ("pipe:[8]", 2.0)])
def test_workers_that_were_seen_with_a_pipe_each_do_not_share_one(
    make_run: Any, pipe: Any, made: Any, second: str, ratio: float
) -> None:
    """Two workers wait for readers: of one pipe, and four get no more through it; of one each, and four get twice as much."""
    clean = made(name="clean", work="preprocess", cpu=0.001, wait=0.02, state="output", workers=2)
    run = make_run(pipe(stages=[clean]))
    written = ProfilingInfo(outputs={"clean-0": ["pipe:[7]"], "clean-1": [second]})
    (run.path / profiling.FILE).write_bytes(msgspec.json.encode(written))
    replay = Analysis(read_run(run.path)).replay
    assert replay.ratio(Change(settings=("clean.workers=4",))) == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("spread", [0.6, 1.0, 1.5])
def test_unequal_calls_that_nobody_limits_are_not_rationed(spread: float) -> None:
    """Eight callers whose calls take any time get answers at random moments: in 50 runs none is taken for a limit."""
    for seed in range(50):
        seconds = np.random.default_rng(seed).lognormal(-2.5, spread, (WORKERS, 60))
        ended = np.cumsum(seconds, axis=1)
        assert not is_rationed((ended - seconds).ravel(), ended.ravel())


def test_refusals_are_a_limited_rate_and_not_failures(make_run: Any, pipe: Any, made: Any) -> None:
    """Most deliveries were answered 429: RATE_LIMIT, with the jobs that were given up."""
    run = make_run(
        pipe(
            stages=[made(name="fetch", kind="io", work="download", cpu=1e-4, wait=0.01, workers=2)],
            changes={"counters": Counters(received=1000, delivered=400, retried=350, dead_lettered=250)},
        )
    )
    reason = {"code": "http.status", "count": 250, "example": "http://h/a answered 429, expected 200", "retried": 350}
    assert run.info.summary is not None
    run.info.summary["reasons"] = [reason]
    found = diagnosis_document(Analysis(run))
    assert (found.first.verdict, found.first.cause) == (VerdictClass.RATE_LIMIT, "refused")
    assert "250 jobs were dead-lettered" in found.first.says
    run.info.summary["reasons"] = [reason | {"example": "http://h/429 answered 500, expected 200"}]
    assert diagnosis_document(Analysis(run)).first.verdict is VerdictClass.FAILURES


def test_a_log_that_nobody_reads(diagnose: Any, made: Any) -> None:
    """A stage is blocked writing to a pipe: LOGGING, and no DISK."""
    found = diagnose(made(name="clean", work="preprocess", cpu=0.002, wait=0.02, state="output", workers=2))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LOGGING, "clean")
    assert "a pipe or terminal" in found.first.says


def test_a_reader_sets_the_pace_whatever_else_uses_the_cores(make_run: Any, pipe: Any, made: Any) -> None:
    """Others take three quarters of the cores, and writers wait for a pipe: LOGGING, then NEIGHBOUR, which gains nothing."""
    waits_for = ["output", "lock", "output", "lock", "gil"] * 80
    log = made(name="log", cpu=0.0016, wait=0.02, state=waits_for, delay=0.006, workers=2, releases_gil=False)
    look = made(name="look", cpu=0.004, wait=0.019, state="gil", delay=0.017, workers=4)
    analysis = Analysis(make_run(pipe(stages=[log, look], cores=2, others=1.5, runtime=2e-4)))
    assert analysis.replay.ratio(Change(quiet=True)) > 1.2
    found = diagnosis_document(analysis)
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LOGGING, "log")
    assert found.runner_up is not None
    assert found.runner_up.verdict == VerdictClass.NEIGHBOUR


def test_waiting_for_the_lock_of_who_writes(builder: Any) -> None:
    """Of twenty looks that find a worker at a lock, fifteen find another one writing."""
    builder.stage("clean", workers=2)
    for worker in ("clean-0", "clean-1"):
        builder.spans("clean", arrived=[0.0], ended=[10.0], thread=worker, unit_id=[worker])
    at = np.arange(1, 21) * 0.4
    builder.states(at, "clean-0", "lock").states(at[:15], "clean-1", "output").states(at[15:], "clean-1", "running")
    evidence = collect(builder.finish())
    window = Window(from_seconds=0.0, to_seconds=10.0, warm_up_seconds=0.0, is_steady=None, says="")
    share = share_of_lock_waits(evidence.spans, evidence.states, window, "clean", ("output", "disk"))
    assert share == pytest.approx(0.75)
    assert share_of_lock_waits(evidence.spans, evidence.states, window, "clean", ("disk",)) == 0.0


def test_waiting_for_a_lock_whose_holder_waits_for_the_gil(builder: Any) -> None:
    """Of twenty looks that find a worker at a lock, twelve find another of its stage waiting for the GIL; no other counts."""
    for name in ("clean", "parse"):
        builder.stage(name, workers=2)
        for worker in (f"{name}-0", f"{name}-1"):
            builder.spans(name, arrived=[0.0], ended=[10.0], thread=worker, unit_id=[worker])
    at = np.arange(1, 21) * 0.4
    builder.states(at, "clean-0", "lock").states(at[:12], "clean-1", "gil").states(at[12:], "parse-0", "gil")
    evidence = collect(builder.finish())
    window = Window(from_seconds=0.0, to_seconds=10.0, warm_up_seconds=0.0, is_steady=None, says="")
    asked = (evidence.spans, evidence.states, window, "clean", ("gil",))
    assert share_of_lock_waits(*asked, by_own=True) == pytest.approx(0.6)
    assert share_of_lock_waits(*asked) == 1.0


@pytest.mark.parametrize(
    ("wanting", "native", "verdict"),
    [
        (8.0, 0.003, VerdictClass.OVERSUBSCRIPTION),
        (0.9, 0.003, VerdictClass.OVERSUBSCRIPTION),
        (0.1, 0.0002, VerdictClass.LOCK),
    ],
    ids=["too many", "one call after the other", "none to speak of"],
)
def test_threads_of_libraries_fight(
    diagnose: Any, made: Any, wanting: float, native: float, verdict: VerdictClass
) -> None:
    """Workers wait at locks while BLAS's threads want more than the cores, or compute for one call at a time: no own lock."""
    found = diagnose(
        made(name="project", work="preprocess", cpu=0.004, wait=0.012, state="lock", workers=4),
        cores=2,
        runtime=1e-5,
        native=native,
        gauges={("processes", "native_runnable"): wanting},
    )
    assert (found.first.verdict, found.first.stage) == (verdict, "project"), found.first.says
    if verdict is VerdictClass.OVERSUBSCRIPTION:
        assert found.first.cause == "native"
        assert "OPENBLAS_NUM_THREADS=1" in found.first.remedies[0].command
