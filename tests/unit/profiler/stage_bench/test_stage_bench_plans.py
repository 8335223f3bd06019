"""Which settings are measured, and how pipelines are cut and put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import Job
from headrace.compare.turns import Turns
from headrace.profiler.stage_bench.background import Discard
from headrace.profiler.stage_bench.emulated_device import EmulatedDevice
from headrace.profiler.stage_bench.inputs import Inputs, Sample, StageInputs, collect
from headrace.profiler.stage_bench.scaling import list_settings, summarize
from headrace.profiler.stage_bench.stage_run import Setting
from headrace.profiler.stage_bench.variation_runs import Scenario, compare_rates
from headrace.profiler.stage_bench.variations import build, emulated_model, from_device, plan_from
from headrace.runs.formats.isolation import StageAlone


def device(name: str = "process") -> Any:
    """Return a device stage."""
    return hr.stage(name, list, kind="device")


def workers(found: list[Setting]) -> list[int]:
    """Return the workers of each setting."""
    return [load.workers for load in found]


def test_cpu_stages_go_up_to_twice_the_cores(bench: Callable) -> None:
    """In powers of two, and what the Plan says."""
    made = dataclasses.replace(bench([hr.stage("a", abs)]), cores=4)
    assert workers(list_settings(made.pipeline.stages[0], made)) == sorted({1, 2, 4, 8, made.workers["a"]})
    more = bench([hr.stage("a", abs)], plan=Plan.from_table({"stages": {"a": {"workers": 11}}}))
    assert 11 in workers(list_settings(more.pipeline.stages[0], more))


def test_processes_go_up_to_the_cores(bench: Callable) -> None:
    """More would only cost memory; inline stages share what their station has."""
    plan = Plan.from_table(
        {"stages": {"a": {"executor": "process", "workers": 1}, "b": {"executor": "inline"}, "deliver": {"workers": 1}}}
    )
    made = dataclasses.replace(bench([hr.stage("a", abs), hr.stage("b", abs)], plan=plan), cores=4)
    for stage in made.pipeline.stages[:2]:
        assert workers(list_settings(stage, made)) == [1, 2, 4]
        assert made.executors[stage.name] == "process"


@pytest.mark.parametrize(("planned", "most"), [(1, 2), (16, 32), (48, 64), (100, 100)])
def test_io_stages_go_up_to_twice_the_plan(bench: Callable, planned: int, most: int) -> None:
    """At most 64, unless the Plan has more: servers are others' too."""
    made = bench([hr.stage("a", abs, kind="io")], plan=Plan.from_table({"stages": {"a": {"workers": planned}}}))
    found = workers(list_settings(made.pipeline.stages[0], made))
    assert found[-1] == most
    assert planned in found


def test_devices_go_through_batch_sizes_and_then_calls(bench: Callable) -> None:
    """Powers of two up to the Plan's batch, then calls side by side at the largest."""
    made = dataclasses.replace(
        bench([device()], plan=Plan.from_table({"stages": {"process": {"batch": 6, "workers": 2}}})), cores=8
    )
    found = list_settings(made.pipeline.stages[0], made)
    assert found == [Setting(1, 1), Setting(1, 2), Setting(1, 4), Setting(1, 6), Setting(2, 6), Setting(4, 6)]


def test_the_plan_is_the_runs(bench: Callable) -> None:
    """Same id as a run of the same pipeline has."""
    plan = Plan.from_table({"run": {"ordered": True}})
    made = bench([hr.stage("a", abs)], [1, 2], plan=plan)
    assert made.plan.plan_id == hr.run(made.pipeline, plan).plan_id


def test_demands_come_from_one_worker(bench: Callable, measured: Callable) -> None:
    """And the knee from the points at the largest batch."""
    made = bench([hr.stage("a", abs)])
    stage = made.pipeline.stages[0]
    inputs = StageInputs(stage, [Sample(Job("x", 1), 1)])
    found = {
        Setting(1, None): [measured(cpu_seconds=0.7, run_delay_seconds=0.0)],
        Setting(2, None): [measured(throughput=101.0, wall_seconds=2.0)],
    }
    alone = summarize(made, inputs, found)
    assert (alone.cpu_demand, alone.wait_demand) == (pytest.approx(0.007), pytest.approx(0.003))
    assert (alone.knee_workers, alone.best_throughput) == (1, 101.0)


def test_waiting_for_a_librarys_threads_is_no_waiting_for_the_outside(bench: Callable, measured: Callable) -> None:
    """Where the two cannot be told apart there is no figure, and the reason is told."""
    made = bench([hr.stage("a", abs)])
    stage = made.pipeline.stages[0]
    found = {Setting(1, None): [measured(cpu_seconds=0.9, native_cpu_seconds=0.5, run_delay_seconds=0.0)]}
    alone = summarize(made, StageInputs(stage, [Sample(Job("x", 1), 1)]), found)
    assert alone.wait_demand is None
    assert "not told apart" in alone.says


def test_nothing_measured_is_said_so(bench: Callable, measured: Callable) -> None:
    """Every item failed, or it was stopped."""
    made = bench([hr.stage("a", abs)])
    stage = made.pipeline.stages[0]
    failed = {Setting(1, None): [measured(num_items=0, num_failed=3, error="broken")]}
    assert "every item failed, the first: broken" in summarize(made, StageInputs(stage), failed).says
    assert "stopped" in summarize(made, StageInputs(stage), {}).says


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([hr.stage("a", abs), device(), hr.stage("b", abs), device("second")], ["process", "b", "second"]),
        (
            [hr.fan_out("f", hr.Fan), hr.stage("a", abs), device(), hr.stage("b", abs), hr.join("j", len)],
            ["process", "b"],
        ),
        ([hr.fan_out("f", hr.Fan), hr.join("j", len), device()], ["process"]),
        ([device(), hr.fan_out("f", hr.Fan), hr.join("j", len)], ["process", "f", "j"]),
        ([hr.stage("a", abs)], []),
    ],
)
def test_a_route_is_cut_before_its_first_device(bench: Callable, stages: list[Any], expected: list[str]) -> None:
    """Within a fan-out only up to its join."""
    assert [stage.name for stage in from_device(bench(stages).pipeline.routes[""])] == expected


def test_a_cut_pipeline_keeps_its_settings(bench: Callable) -> None:
    """A device that was inline gets its station's workers; stages that are gone have no settings."""
    plan = Plan.from_table(
        {
            "stages": {"a": {"workers": 3}, "process": {"executor": "inline", "batch": 4}, "deliver": {"workers": 2}},
            "source": {"max_in_flight": 2},
        }
    )
    made = bench([hr.stage("a", abs), device()], plan=plan)
    stages = made.pipeline.routes[""]
    cut = plan_from(made, {"": (stages[1], stages[2])})
    assert set(cut.stages) == {"process", "deliver"}
    assert (cut.stages["process"].executor, cut.stages["process"].workers, cut.stages["process"].batch) == (
        "thread",
        3,
        4,
    )
    assert cut.stages["deliver"].workers == 2
    assert cut.source.max_in_flight is None


def built(made: Any) -> dict[str, Scenario | str]:
    """Return the variations of a pipeline, after collecting."""
    return build(made, Plan(), collect(made, 4, lambda: False), [])


def test_why_a_variation_is_not_possible_is_said(bench: Callable) -> None:
    """No device, no files, nothing measured alone."""
    found = built(bench([hr.stage("a", abs)], [1]))
    assert isinstance(found["as_is"], Scenario)
    assert "no device stage" in str(found["cached_items"])
    assert "no device stage" in str(found["emulated_model"])
    assert "not files" in str(found["cold_files"])
    with_device = built(bench([device()], [1]))
    assert isinstance(with_device["cached_items"], Scenario)
    assert "was not measured" in str(with_device["emulated_model"])


def test_an_emulated_model_is_not_emulated_again(bench: Callable) -> None:
    """Neither one of the engine nor a stage that sleeps."""
    found = built(bench([hr.emulated("process", seconds=0.0, kind="device")], [1]))
    assert "emulated already" in str(found["emulated_model"])


def test_when_everything_fails_no_variation_is_run(bench: Callable) -> None:
    """Each says that no item came through."""
    found = built(bench([hr.stage("a", lambda value: 1 / 0), device()], [1]))
    assert all(isinstance(one, str) for one in found.values())
    assert "no item came through" in str(found["as_is"])


def test_the_real_delivery_is_replaced_everywhere(bench: Callable) -> None:
    """In the pipeline's parts and at the end of each route; the user's own pipeline stays as it was."""
    made = bench([hr.stage("a", abs), device()], [1])
    delivery = made.pipeline.delivery
    scenarios = [one for one in built(made).values() if isinstance(one, Scenario)]
    assert len(scenarios) == 2
    for one in scenarios:
        assert isinstance(one.pipeline.delivery, Discard)
        assert all(route[-1].delivery is one.pipeline.delivery for route in one.pipeline.routes.values())
    assert made.pipeline.delivery is delivery
    assert made.pipeline.routes[""][-1].delivery is delivery


def test_children_are_counted_per_item(bench: Callable) -> None:
    """A device behind a fan-out of four has four inputs per item."""
    stages = [
        hr.fan_out("f", lambda value: hr.Fan([value] * 4)),
        device(),
        hr.join("j", lambda joined: len(joined.results)),
    ]
    found = built(bench(stages, [1, 2, 3]))["cached_items"]
    assert isinstance(found, Scenario)
    assert found.outputs_per_item == 4


def test_ratios_are_taken_within_a_round() -> None:
    """A drift of the machine by half, which both feel, leaves the ratio alone."""
    turns = Turns([{"cached_items": 2 * rate, "as_is": rate} for rate in (100.0, 50.0, 25.0)])
    one = compare_rates("cached_items", turns, "")
    assert one.ratio == 2.0
    assert (one.ratio_low, one.ratio_high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (one.throughput, one.throughput_low, one.throughput_high) == (100.0, 50.0, 200.0)


def test_rounds_that_lack_one_are_left_out() -> None:
    """Whichever of the two is missing; with none there is no ratio, and without values nothing."""
    turns = Turns([{"a": 200.0, "as_is": 100.0}, {"as_is": 50.0}, {"a": 60.0}])
    assert compare_rates("a", turns, "").ratio == 2.0
    assert compare_rates("a", Turns([{"a": 200.0}]), "").ratio is None
    nothing = compare_rates("a", Turns([{"as_is": 1.0}]), "why")
    assert (nothing.throughput, nothing.ratio, nothing.says) == (None, None, "why")


def test_inputs_of_a_made_up_pipeline_need_no_device(bench: Callable) -> None:
    """A pipeline whose items all failed before the device says so."""
    made = bench([hr.stage("a", abs), device()], [1])
    inputs = Inputs([Job("0", 1)], {stage.name: StageInputs(stage) for stage in made.pipeline.stages}, num_delivered=1)
    assert "no item comes to its device stage" in str(build(made, Plan(), inputs, [])["cached_items"])


@pytest.mark.parametrize(("beside", "seconds_of_8"), [(200.0, 0.08), (100.0, 0.16), (50.0, 0.32)])
def test_a_emulated_takes_as_long_as_calls_side_by_side_do(
    bench: Callable, point: Callable, beside: float, seconds_of_8: float
) -> None:
    """Two workers of a device that serves two calls at once, or one after another, or slower, have its throughput."""
    made = bench([device("device")], plan=Plan().with_settings(["device.workers=2", "device.batch=8"]))
    curve = (
        point(1, 100.0, batch_size=4, service=0.04, run_delay=0.0),
        point(1, 100.0, batch_size=8, service=0.08, run_delay=0.0),
        point(2, beside, batch_size=8, service=16 / beside, run_delay=0.0),
    )
    alone = StageAlone(
        name="device",
        kind="device",
        executor="thread",
        cpu_demand=None,
        wait_demand=None,
        curve=curve,
        knee_workers=None,
        best_throughput=beside,
    )
    scenario = emulated_model(made, made.plan, collect(made, 1, lambda: False), [alone])
    emulated = scenario.pipeline.stages[0]
    assert isinstance(emulated, EmulatedDevice)
    assert emulated.cost.launch_seconds + 8 * emulated.cost.item_seconds == pytest.approx(seconds_of_8)
