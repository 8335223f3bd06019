"""Which steps a ladder has, and what each of them changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.base.plan_changes import list_changed_settings
from headrace.compare.blocks import read_items
from headrace.pipeline.definition import Pipeline
from headrace.stages.stage import Fan, Joined
from headrace.testing import ListSource
from headrace.tune.ladder import climb, full_plan
from headrace.tune.ladder_steps import find_steps


class Images(hr.Module):
    """Takes images."""

    input = hr.ImageInput(short_side=32, crop=24)

    def preprocess(self, value: Any) -> Any:
        """Return it."""
        return value

    def process(self, batch: Any) -> list[int]:
        """Return a zero each."""
        return [0] * len(batch)


class Arrays(Images):
    """Takes what it is given."""

    input = hr.ArrayInput()


def pipeline_of(module: hr.Module) -> Pipeline:
    """Return a pipeline of one module."""
    return Pipeline(ListSource([]), module=module)


def names(pipeline: Pipeline, plan: Plan | None = None) -> list[str]:
    """Return the steps' names."""
    return [step.name for step in find_steps(pipeline, full_plan(pipeline, plan))]


def test_images_have_all_steps_but_the_engine() -> None:
    """Without a Plan there are batches of 8, and nothing is said of another engine."""
    assert names(pipeline_of(Images())) == ["sequential", "threads", "overlap", "batch", "decode at scale"]


def test_without_images_there_is_no_decode_step() -> None:
    """An array is decoded by nobody; one receiver less is no step of its own."""
    assert names(pipeline_of(Arrays())) == ["sequential", "threads", "overlap", "batch"]


def test_a_plan_without_batches_has_no_batch_step() -> None:
    """A step that would change nothing is left out."""
    assert "batch" not in names(pipeline_of(Images()), Plan())


def test_threads_of_the_model_are_an_engine_step() -> None:
    """Another number of threads, another file and another engine come last."""
    plan = Plan().with_settings(["model.threads=2"])
    pipeline = pipeline_of(Arrays())
    last = find_steps(pipeline, full_plan(pipeline, plan))[-1]
    assert (last.name, last.settings) == ("engine", ("model.threads=2",))


def test_the_emulated_device_is_no_step() -> None:
    """Its times say what the device is; there is no other engine to go back to."""
    plan = Plan().with_settings(["model.engine=emulated", "model.options.item_seconds=0.01"])
    pipeline = pipeline_of(Arrays())
    steps = find_steps(pipeline, full_plan(pipeline, plan))
    assert "engine" not in [step.name for step in steps]
    assert {step.plan.model.engine for step in steps} == {"emulated"}


def test_each_step_leads_to_the_next_by_its_settings() -> None:
    """The settings of a step, put on the Plan before it, give its Plan; the last one is the full Plan."""
    pipeline = pipeline_of(Images())
    full = full_plan(pipeline, None)
    steps = find_steps(pipeline, full)
    for before, step in itertools.pairwise(steps):
        assert before.plan.with_settings(step.settings) == step.plan
    assert steps[-1].plan == full


def test_the_first_step_has_one_thread() -> None:
    """Every stage is inline, one receiver runs them, the device takes one item, and images are decoded in full."""
    pipeline = pipeline_of(Images())
    plan = find_steps(pipeline, full_plan(pipeline, Plan().with_settings(["source.receivers=4"])))[0].plan
    assert {stage.executor for stage in plan.stages.values()} == {"inline"}
    assert {stage.batch for stage in plan.stages.values()} == {1}
    assert plan.source.receivers == 1
    assert plan.decode.scale == "full"


def test_threads_leave_one_worker_for_the_rest() -> None:
    """After the second step downloads and deliveries have their workers; one thread decodes and runs the model."""
    pipeline = pipeline_of(Images())
    plan = find_steps(pipeline, full_plan(pipeline, None))[1].plan
    how = {name: (stage.executor, stage.workers) for name, stage in plan.stages.items()}
    assert how["fetch"] == ("events", 16)
    assert how["decode"] == ("thread", 1)
    assert how["process"][0] == how["preprocess"][0] == "inline"
    assert how["deliver"][0] == "thread"


def test_without_a_step_the_rest_of_the_full_plan_stays() -> None:
    """What a step gives alone is told by the full Plan with that step alone taken back."""
    pipeline = pipeline_of(Images())
    full = full_plan(pipeline, None)
    steps = {step.name: step for step in find_steps(pipeline, full)}
    batch, scale = steps["batch"].without, steps["decode at scale"].without
    assert batch is not None
    assert scale is not None
    assert list_changed_settings(batch, full) == ("process.batch=8",)
    assert list_changed_settings(scale, full) == ("decode.scale=auto",)
    assert steps["sequential"].without is None


def test_what_cannot_be_inline_keeps_one_worker() -> None:
    """A join and the stage after a fan-out have queues of their own, however sequential the Plan."""
    stages = [
        hr.fan_out("cut", lambda value: Fan([value])),
        hr.stage("look", lambda value: value),
        hr.join("glue", lambda joined: Joined),
    ]
    pipeline = Pipeline(ListSource([]), stages=stages)
    plan = find_steps(pipeline, full_plan(pipeline, None))[0].plan
    how = {name: (stage.executor, stage.workers) for name, stage in plan.stages.items()}
    assert how["cut"][0] == how["deliver"][0] == "inline"
    assert how["look"] == how["glue"] == ("thread", 1)


def test_each_module_of_several_begins_with_its_own_worker() -> None:
    """With several modules the second one's decoder follows fetch too, and must not run in its 16 threads."""
    pipeline = Pipeline(ListSource([]), modules={"cats": Images(), "dogs": Images()})
    plan = find_steps(pipeline, full_plan(pipeline, None))[1].plan
    how = {name: (stage.executor, stage.workers) for name, stage in plan.stages.items()}
    assert how["cats.decode"] == how["dogs.decode"] == ("thread", 1)
    assert how["cats.process"][0] == how["dogs.process"][0] == "inline"


def test_a_sequential_plan_is_no_ladder(tmp_path: Any) -> None:
    """Where the Plan at the top is the first step already, the command says so instead of measuring one Plan."""
    (tmp_path / "one.bin").write_bytes(b"x")
    pipeline = Pipeline(hr.folder(tmp_path, patterns=["*.bin"]), stages=[hr.stage("work", len)])
    settings = ["work.executor=inline", "deliver.executor=inline"]
    full = full_plan(pipeline, Plan().with_settings(settings))
    with pytest.raises(SettingsError, match="no step to climb"):
        climb(pipeline, full, read_items(pipeline))
