"""Two Plans of one recorded run against each other, of which the answer is known because the spans are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.records import Counters, Span
from headrace.compare.comparison import METRICS, Question, compare_runs
from headrace.compare.plan_of_run import PlanOfRun, read_side
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter

STABLE, CANARY = "56b56dbd93e3", "78f5f184d5c8"
MakeRun = Callable[..., Path]


def _span(number: int, stage: str, plan: str, arrived: float, put: float, outcome: str, cpu: float) -> Span:
    times = {"arrived": arrived, "dequeued": arrived, "started": arrived, "ended": put, "put": put}
    nothing = dict.fromkeys(("parent_id", "run_delay", "batch_id", "batch_size", "release_reason", "shape_key"))
    values: dict[str, Any] = {
        "unit": "item", "unit_id": str(number), "stage": stage, "plan_id": plan, "host": "h", "process": 1, "thread": "w",
        "rank": 0, "attempt": 1, "outcome": outcome, "cpu": round(cpu * 1e9), "queue_depth": 0, "bytes_in": 0, "bytes_out": 0,
        **{key: round(value * 1e9) for key, value in times.items()},
    }  # fmt: skip
    return Span(**nothing, **values)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a run of 3,000 jobs in 30 s, on a machine that takes twice as long at its end; of the canary's five fail."""

    def make(canaries: np.ndarray, slowdown: float = 1.0) -> Path:
        plans = {STABLE: {"version": 1}, CANARY: {"version": 1}}
        folder = RunFolder.create(tmp_path / "served", pipeline="jobs:pipeline", plans=plans)
        writer, random, left = SpanWriter(folder.spans, rotate_seconds=3600), np.random.default_rng(3), 5
        for number, is_canary in enumerate(canaries):
            done = 1 + number * 0.01
            took = 0.05 * (1 + number / 3000) * (slowdown if is_canary else 1.0) * np.exp(random.normal(0, 0.05))
            plan, fails = (CANARY if is_canary else STABLE), bool(is_canary and left)
            left -= fails
            spans = [_span(number, "work", plan, done - took, done, "failed" if fails else "ok", took / 10)]
            if not fails:
                spans.append(_span(number, "deliver", plan, done, done, "ok", 0.0))
            writer.stage_finished(spans)
        writer.close()
        folder.finish("finished", counters=Counters(len(canaries), len(canaries) - 5, 5))
        return folder.path

    return make


def _sides(path: Path) -> tuple[Any, Any]:
    return read_side(f"{path}@{STABLE[:4]}"), read_side(f"{path}@{CANARY}")


def test_a_slower_arm_is_found_although_the_machine_drifted(make_run: MakeRun) -> None:
    """6 % more latency and CPU, below what two runs one after the other could tell, beside a drift of 100 %."""
    a, b = _sides(make_run(np.arange(3000) % 5 == 0, slowdown=1.06))
    for metric in ("latency", "cpu"):
        document = compare_runs(a, b, question=Question(metric=METRICS[metric]))
        assert document.paired
        assert (document.verdict, document.ratio) == ("worse", pytest.approx(1.06, abs=0.02)), metric
        assert (document.a.plan_ids, document.b.plan_ids) == ((STABLE,), (CANARY,))
    assert "at the same time" in " ".join(document.says)


def test_alike_arms_do_not_differ(make_run: MakeRun) -> None:
    """Their difference is within the margin, and the failures of one are counted for that one alone."""
    a, b = _sides(make_run(np.arange(3000) % 5 == 0))
    document = compare_runs(a, b, question=Question(metric=METRICS["latency"]))
    assert document.verdict == "no_difference"
    assert (a.info.counters.delivered, a.info.counters.rejected) == (2400, 0)
    assert (b.info.counters.delivered, b.info.counters.rejected) == (595, 5)


def test_the_rates_of_arms_are_no_answer(make_run: MakeRun) -> None:
    """They are how the jobs were divided; the error says what to ask instead."""
    a, b = _sides(make_run(np.arange(3000) % 5 == 0))
    with pytest.raises(SettingsError, match="--metric latency"):
        compare_runs(a, b)


def test_plans_one_after_the_other_are_two_runs(make_run: MakeRun) -> None:
    """As after `--follow`: the machine may have changed between them, so differences below 10 % count as none."""
    a, b = _sides(make_run(np.arange(3000) >= 1500))
    document = compare_runs(a, b)
    assert (document.paired, document.margin) == (False, 0.10)


def test_a_whole_run_beside_itself_is_two_runs(make_run: MakeRun) -> None:
    """Nothing was divided there, so that rates are an answer."""
    run = read_run(make_run(np.arange(3000) % 5 == 0))
    document = compare_runs(run, run)
    assert (document.paired, document.verdict) == (False, "no_difference")


@pytest.mark.parametrize("beginning", ["5x", "", "56b56dbd93e3x"])
def test_a_plan_that_is_not_there_is_refused_with_those_that_are(make_run: MakeRun, beginning: str) -> None:
    """So is a beginning that fits several, such as none at all."""
    run = read_run(make_run(np.arange(3000) % 5 == 0))
    with pytest.raises(RunFolderError, match=f"{STABLE}, {CANARY}"):
        PlanOfRun(run, beginning)


def test_what_names_no_run_folder_is_left_to_others(tmp_path: Path) -> None:
    """Such as a pipeline with a Plan, or a Plan alone."""
    assert read_side("jobs:pipeline@after.toml") is None
    assert read_side(str(tmp_path / "after.toml")) is None
