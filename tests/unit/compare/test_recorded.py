"""Recorded runs of which the answer is known, because the spans are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.documents import encode_document
from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.records import Counters, Span
from headrace.compare.comparison import METRICS, Question, compare_runs
from headrace.compare.recorded import read_recording, warm_up_length
from headrace.runs.formats import profiling
from headrace.runs.reader import Run, read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.runs.whole_run import read_whole

MakeRun = Callable[..., Run]


def _span(number: int, stage: str, arrived: float, put: float, **changes: Any) -> Span:
    times = {"arrived": arrived, "dequeued": arrived, "started": arrived, "ended": put, "put": put}
    values: dict[str, Any] = {
        "unit": "item",
        "unit_id": str(number),
        "parent_id": None,
        "stage": stage,
        "plan_id": "p",
        "host": "h",
        "process": 1,
        "thread": "w",
        "rank": 0,
        "attempt": 1,
        "outcome": "ok",
        "cpu": None,
        "run_delay": None,
        "batch_id": None,
        "batch_size": None,
        "release_reason": None,
        "queue_depth": 0,
        "bytes_in": 0,
        "bytes_out": 0,
        "shape_key": None,
        **{key: round(value * 1e9) for key, value in times.items()},
    }
    return Span(**(values | changes))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a run of one stage and its delivery from the seconds between results, with a latency and CPU per item."""

    def make(
        name: str,
        gaps: np.ndarray,
        *,
        latency: float = 0.05,
        cpu: float | None = 0.004,
        batch: int | None = None,
        failed: int = 0,
    ) -> Run:
        folder = RunFolder.create(tmp_path / name, pipeline="jobs:pipeline", plans={"p": {"version": 1}})
        writer = SpanWriter(folder.spans, rotate_seconds=3600)
        spans = []
        for number, done in enumerate(np.cumsum(gaps)):
            nanoseconds = None if cpu is None else round(cpu * 1e9 * (batch or 1))
            work = {"cpu": nanoseconds, "batch_id": number, "batch_size": batch}
            spans.append(_span(number, "work", done - latency, done - 0.001, **work))
            spans.append(_span(number, "deliver", done - 0.001, done, cpu=None if cpu is None else 0))
        writer.stage_finished(spans)
        writer.close()
        folder.finish("finished", counters=Counters(len(gaps) + failed, len(gaps), failed))
        return read_run(folder.path)

    return make


def _gaps(rate: float, seed: int, count: int = 3000) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1 / rate, count)


def test_recorded_throughput_latency_and_cpu(make_run: MakeRun) -> None:
    """The values of even results every 10 ms are 100 per second, the latency and the CPU that were written."""
    run = make_run("a", np.full(1200, 0.01))
    assert np.allclose(read_recording(run, "throughput").values, 100, rtol=0.06)
    assert np.mean(read_recording(run, "throughput").values) == pytest.approx(100, rel=0.01)
    assert np.allclose(read_recording(run, "latency_p50").values, 0.05)
    assert np.mean(read_recording(run, "cpu_per_item").values) == pytest.approx(0.004, rel=0.01)


def test_a_batch_is_divided_among_its_items(make_run: MakeRun) -> None:
    """Each span of a batch of 4 carries the batch's CPU and service; an item's are a quarter."""
    recording = read_recording(make_run("a", np.full(600, 0.01), batch=4, latency=0.041), "cpu_per_item")
    assert np.mean(recording.values) == pytest.approx(0.004, rel=0.02)
    assert recording.stages["work"] == pytest.approx(0.01)


def test_warm_up_is_left_out(make_run: MakeRun) -> None:
    """Three slow seconds at the start do not count."""
    gaps = np.concatenate([np.full(60, 0.05), np.full(2700, 0.01)])
    recording = read_recording(make_run("a", gaps), "throughput")
    assert recording.warm_up_seconds >= 2.5
    assert np.mean(recording.values) == pytest.approx(100, rel=0.01)


def test_the_warm_up_of_a_steady_series_is_short() -> None:
    """Of even noise hardly anything is left out, and never more than half."""
    random = np.random.default_rng(2)
    lengths = [warm_up_length(random.normal(100, 3, 60)) for _ in range(100)]
    assert np.median(lengths) <= 6
    assert max(lengths) <= 30


def test_the_same_twice_is_no_difference(make_run: MakeRun) -> None:
    """Two runs at one rate differ by less than the machine may have drifted."""
    document = compare_runs(make_run("a", _gaps(100, 1)), make_run("b", _gaps(100, 2)))
    assert (document.verdict, document.paired, document.margin) == ("no_difference", False, 0.10)
    assert document.ratio_low is not None
    assert document.ratio_high is not None
    assert document.ratio_low < 1 < document.ratio_high
    assert any("not made at the same time" in line for line in document.says)


@pytest.mark.parametrize(("rate", "verdict"), [(150, "better"), (70, "worse"), (112, "underpowered")])
def test_only_large_differences_are_told(make_run: MakeRun, rate: float, verdict: str) -> None:
    """Half as much again is better and a third less worse; 12 % may still be the machine's drift."""
    document = compare_runs(make_run("a", _gaps(100, 1)), make_run("b", _gaps(rate, 2)))
    assert document.verdict == verdict
    assert document.ratio == pytest.approx(rate / 100, rel=0.06)
    assert document.pairs_needed is None


def test_a_loss_beyond_the_budget(make_run: MakeRun) -> None:
    """A third less is beyond a budget of 3 %, and an even result cannot tell: the drift is larger than the budget."""
    question = Question(budget=0.03)
    a = make_run("a", _gaps(100, 1))
    slower = compare_runs(a, make_run("b", _gaps(66, 2)), question=question)
    assert (slower.is_regression, slower.budget_met) == (True, False)
    even = compare_runs(a, make_run("c", _gaps(100, 3)), question=question)
    assert (even.is_regression, even.budget_met) == (False, None)


def test_lower_latency_is_better(make_run: MakeRun) -> None:
    """A latency of half the size is a ratio of a half, and better."""
    question = Question(metric=METRICS["latency"])
    a, b = make_run("a", _gaps(100, 1), latency=0.05), make_run("b", _gaps(100, 2), latency=0.025)
    document = compare_runs(a, b, question=question)
    assert (document.verdict, document.higher_is_better) == ("better", False)
    assert document.ratio == pytest.approx(0.5)


def test_losing_jobs_is_worse_whatever_the_rate(make_run: MakeRun) -> None:
    """B is twice as fast and fails half of its jobs: it is worse, and says why."""
    a, b = make_run("a", _gaps(100, 1)), make_run("b", _gaps(200, 2), failed=3000)
    document = compare_runs(a, b, question=Question(budget=0.03))
    assert (document.verdict, document.is_regression) == ("worse", True)
    assert "delivers 50.0% of the jobs" in document.says[0]
    assert any("did not do the same work" in warning for warning in document.warnings)


def test_a_killed_run_is_not_one_that_lost_its_jobs(make_run: MakeRun) -> None:
    """A run that was killed counted no jobs: how many it delivered is not known, and its rate alone is judged."""
    a, b = make_run("a", _gaps(100, 1)), make_run("b", _gaps(100, 2))
    b.info.status, b.info.counters = "running", Counters()
    for first, second, name in ((a, b, "B"), (b, a, "A")):
        document = compare_runs(first, second, question=Question(budget=0.2))
        assert (document.verdict, document.is_regression) == ("no_difference", False)
        assert any(f"failed is not known of {name}" in warning for warning in document.warnings)


def test_a_recorded_run_with_an_emulated_device_says_so(make_run: MakeRun) -> None:
    """Times of an emulated device are settings, in recorded runs as well."""
    a, b = make_run("a", _gaps(100, 1)), make_run("b", _gaps(100, 2))
    b.info.variants = [{"engine": "emulated", "launch_seconds": 0.0}]
    assert "The device was emulated: its times are settings, not measurements." in compare_runs(a, b).says


def test_what_was_not_measured_is_refused(make_run: MakeRun) -> None:
    """CPU that no span carries, and a run that is too short, are errors that say what helps."""
    with pytest.raises(RunFolderError, match="headrace profile"):
        read_recording(make_run("a", _gaps(100, 1), cpu=None), "cpu_per_item")
    with pytest.raises(RunFolderError, match="119 results"):
        read_recording(make_run("b", _gaps(100, 1, count=119)), "throughput")


def test_the_document_repeats_with_its_seed(make_run: MakeRun) -> None:
    """The same folders and the same seed give the same document."""
    a, b = make_run("a", _gaps(100, 1)), make_run("b", _gaps(105, 2))
    assert compare_runs(a, b, seed=4) == compare_runs(a, b, seed=4)
    assert not math.isclose(compare_runs(a, b, seed=4).ratio_low or 0, compare_runs(a, b, seed=5).ratio_low or 0)


def test_a_run_of_two_plans_is_compared_with_a_warning(make_run: MakeRun) -> None:
    """A canary's measurements are not those of the Plan that comes first."""
    a, b = make_run("a", _gaps(100, 1)), make_run("b", _gaps(100, 2))
    b.info.plans["canary"] = {"version": 1}
    document = compare_runs(a, b)
    assert (document.a.plan_ids, document.b.plan_ids) == (("p",), ("p", "canary"))
    assert [one for one in document.warnings if "was answered by 2 Plans (p, canary)" in one]


def _read_from(run: Run, share: float) -> Run:
    """Let a run have begun with so much of its input files in memory."""
    (run.path / profiling.FILE).write_bytes(encode_document(profiling.ProfilingInfo(page_cache_share=share)))
    return run


def test_cold_is_not_held_against_warm(make_run: MakeRun) -> None:
    """Files from the disk beside files from memory: the difference may be the disk's alone."""
    cold, warm = _read_from(make_run("a", _gaps(70, 1)), 0.0), _read_from(make_run("b", _gaps(100, 2)), 1.0)
    with pytest.raises(SettingsError, match=r"of .*/a cold, of .*/b warm.*--cold"):
        compare_runs(cold, warm)


def test_the_page_cache_of_recorded_runs_is_named(make_run: MakeRun) -> None:
    """Alike it is a fact of both sides; unlike by a part, a warning; unknown, nothing."""
    cold, also, mixed, unknown = (make_run(name, _gaps(100, number)) for number, name in enumerate("abcd"))
    _read_from(cold, 0.0), _read_from(also, 0.01), _read_from(mixed, 0.5)
    alike = compare_runs(cold, also)
    assert (alike.a.page_cache, alike.b.page_cache) == ("cold", "cold")
    assert not any("page cache" in warning for warning in alike.warnings)
    unlike = compare_runs(cold, mixed)
    assert any("page cache was cold when A began and mixed when B did" in warning for warning in unlike.warnings)
    assert compare_runs(cold, unknown).b.page_cache is None


def test_runs_of_several_processes_are_compared_as_wholes(make_run: MakeRun, tmp_path: Path) -> None:
    """Two workers of 50/s each against three: the whole has the rate of all, and the latency of any."""
    for name, count in (("a", 2), ("b", 3)):
        for number in range(count):
            make_run(f"{name}/worker-{number}-1", np.full(1200, 0.02))
    before, after = read_whole(tmp_path / "a"), read_whole(tmp_path / "b")
    document = compare_runs(before, after)
    assert document.a.median == pytest.approx(100, rel=0.05)
    assert document.ratio == pytest.approx(1.5, rel=0.05)
    assert document.verdict == "better"
    assert compare_runs(before, after, question=Question(metric=METRICS["latency"])).ratio == pytest.approx(
        1.0, rel=0.02
    )


def test_recorded_trainings_are_not_compared(tmp_path: Path) -> None:
    """Their spans are steps, not results: the command that compares trainings is named."""
    RunFolder.create(tmp_path / "run", pipeline="train.py", unit="step").finish("finished")
    with pytest.raises(RunFolderError, match="headrace train compare"):
        read_recording(read_run(tmp_path / "run"), "throughput")
