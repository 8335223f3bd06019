"""Stages that compute with the GIL share a worker unless the Plan says otherwise."""

import time
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan, resolve
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Result, run
from headrace.pipeline.fused_waits import warn_of_waits
from headrace.pipeline.stage_defaults import fused_because, stage_defaults
from headrace.runs.fused import explain_fused
from headrace.runs.reader import read_run
from headrace.runs.run_folder import StageInfo
from headrace.stages.stage import Stage


def add_one(value: int) -> int:
    """Return the next number."""
    return value + 1


def cpu(name: str, **settings: Any) -> Stage:
    """Return a stage that computes with the GIL unless `settings` say otherwise."""
    return hr.stage(name, add_one, **settings)


def executors(stages: list[Stage], table: dict[str, Any] | None = None) -> dict[str, str | None]:
    """Return the executor of each stage under a Plan with these `[stages]`."""
    plan = Plan.from_table({"stages": table or {}})
    pipeline = Pipeline(hr.items([1]), stages=stages)
    resolved = resolve(plan, stage_defaults(pipeline, plan), 2)
    return {name: stage.executor for name, stage in resolved.stages.items() if name != "deliver"}


def test_stages_that_keep_the_gil_share_a_worker() -> None:
    """The second and third of three stages run in the worker of the first; the delivery has its own."""
    pipeline = Pipeline(hr.items([1]), stages=[cpu("a"), cpu("b"), cpu("c")])
    resolved = resolve(Plan(), stage_defaults(pipeline, Plan()), 2)
    assert [stage.executor for stage in resolved.stages.values()] == ["thread", "inline", "inline", "thread"]


@pytest.mark.parametrize("first", [{"kind": "io"}, {"releases_gil": True}, {"kind": "device"}])
def test_no_stage_joins_one_that_can_run_beside_it(first: dict[str, Any]) -> None:
    """After a stage that waits, lets go of the GIL or takes batches, overlap may bring something."""
    made = hr.stage("a", (lambda batch: batch) if first.get("kind") == "device" else add_one, **first)
    assert executors([made, cpu("b"), cpu("c")]) == {"a": "thread", "b": "thread", "c": "inline"}


def test_a_stage_that_lets_go_of_the_gil_keeps_its_workers() -> None:
    """It can run beside the one before it."""
    assert executors([cpu("a"), cpu("b", releases_gil=True)]) == {"a": "thread", "b": "thread"}


@pytest.mark.parametrize("said", [{"executor": "thread"}, {"workers": 2}, {"queue_items": 8}, {"queue_bytes": 1000}])
def test_what_the_plan_says_holds(said: dict[str, Any]) -> None:
    """A stage of which the Plan says anything that needs workers of its own has them, and the next one joins it."""
    assert executors([cpu("a"), cpu("b"), cpu("c")], {"b": said}) == {"a": "thread", "b": "thread", "c": "inline"}


def test_tries_of_a_stage_are_its_own() -> None:
    """A stage that is tried again neither joins another nor is joined: a group is tried again as a whole."""
    assert set(executors([cpu("a"), cpu("b"), cpu("c")], {"b": {"attempts": 3}}).values()) == {"thread"}


def test_options_of_a_stage_do_not_part_it() -> None:
    """The stage's own settings say nothing about where it runs."""
    assert executors([cpu("a"), cpu("b")], {"b": {"options": {"x": 1}}})["b"] == "inline"


@pytest.mark.parametrize("head", [{"executor": "process"}, {"executor": "inline"}, {"attempts": 3}])
def test_no_stage_joins_a_worker_that_the_plan_made_special(head: dict[str, Any]) -> None:
    """A process takes what can be pickled, the receiver is to receive, and a try again would do the joined stage again."""
    assert executors([cpu("a"), cpu("b")], {"a": head})["b"] == "thread"


def test_children_are_not_cut_and_worked_on_in_one_worker() -> None:
    """The stage after a fan-out has its queue, the next one joins it, and what follows a join may join that."""
    stages = [
        hr.fan_out("cut", lambda value: hr.Fan([value, value])), cpu("a"), cpu("b"),
        hr.join("gather", lambda joined: sum(joined.results)), cpu("c"),
    ]  # fmt: skip
    expected = {"cut": "thread", "a": "thread", "b": "inline", "gather": "thread", "c": "inline"}
    assert executors(stages) == expected


def test_a_resolved_plan_is_one_to_run_again() -> None:
    """Resolving what was resolved changes nothing, and says that the Plan said so."""
    pipeline = Pipeline(hr.items([1]), stages=[cpu("a"), cpu("b")])
    stages = stage_defaults(pipeline, Plan())
    once = resolve(Plan(), stages, 2)
    assert resolve(once, stages, 2) == once
    assert fused_because(Plan(), once, stages) == {"b": "gil"}
    assert fused_because(once, once, stages) == {"b": "plan"}


def _run(executor: str | None, folder: Any) -> Result:
    table = {} if executor is None else {"b": {"executor": executor}}
    delivery = hr.collect()
    pipeline = Pipeline(hr.items(range(50)), stages=[cpu("a"), cpu("b")], delivery=delivery)
    result = run(pipeline, Plan.from_table({"stages": table}), output=folder)
    assert sorted(one for _, one in delivery.results) == list(range(2, 52))
    return result


def test_fused_or_not_the_results_and_spans_are_the_same(tmp_path: Any) -> None:
    """Each stage has a span for each item, and the run says which stages shared a worker and what a hand-off costs."""
    _run(None, tmp_path / "fused")
    _run("thread", tmp_path / "apart")
    fused, apart = read_run(tmp_path / "fused"), read_run(tmp_path / "apart")
    for found in (fused, apart):
        rows = {row["name"]: row["items"] for row in (found.info.summary or {})["stages"]}
        assert rows == {"a": 50, "b": 50, "deliver": 50}
    (line,) = explain_fused(fused.info)
    assert line.startswith("b runs in the workers of a: ")
    assert "a hand-off costs" in line
    assert explain_fused(fused.info, by_plan=False) == [line]
    assert explain_fused(apart.info) == []


def _info(name: str, fused: str = "") -> StageInfo:
    return StageInfo(
        name=name, kind="cpu", role="map", releases_gil=False, executor="inline" if fused else "thread", station="a",
        workers=2, queue_capacity=16, fused=fused,
    )  # fmt: skip


def _summary(busy: float) -> dict[str, Any]:
    rows = [{"name": "a", "busy_seconds": 0.1}, {"name": "b", "busy_seconds": busy}]
    return {"elapsed_seconds": 10.0, "stages": rows}


def test_fused_stages_that_wait_are_named() -> None:
    """Workers that are always busy in a process that computes little wait: the stage is of another kind than it says."""
    (warning,) = warn_of_waits([_info("a"), _info("b", "gil")], _summary(19.0), cpu_seconds=0.5)
    assert "so b waits" in warning
    assert "stages.b.workers" in warning


@pytest.mark.parametrize(("busy", "cpu_seconds", "fused"), [(19.0, 9.9, "gil"), (5.0, 0.5, "gil"), (19.0, 0.5, "plan")])
def test_others_are_not(busy: float, cpu_seconds: float, fused: str) -> None:
    """Neither where they compute, nor where they are mostly idle, nor where the Plan says that they share a worker."""
    assert warn_of_waits([_info("a"), _info("b", fused)], _summary(busy), cpu_seconds) == []


@pytest.mark.full
def test_a_run_of_stages_that_wait_says_so() -> None:
    """The warning is in the result of such a run."""

    def wait(value: int) -> int:
        time.sleep(0.05)
        return value

    stages = [hr.stage("a", add_one), hr.stage("b", wait)]
    result = run(Pipeline(hr.items(range(60)), stages=stages), Plan.from_table({"stages": {"a": {"workers": 2}}}))
    assert any("so b waits" in warning for warning in result.warnings)
