"""The space of Plans: what may be tried, and what a point makes of a Plan."""

from __future__ import annotations

from tuning_fakes import account

import headrace as hr
from headrace.base.plan import Plan, resolve
from headrace.stages.stage import Stage
from headrace.tune.space import IN_FLIGHT, SCALE, THREADS, Limits, Space, build_space


def spin(value: object) -> object:
    """Hold the GIL, as far as headrace is told."""
    return value


def space_of(stages: list[Stage], plan: Plan | None = None, **limits: object) -> Space:
    """Return the space around a Plan on four cores; every stage computes."""
    base = resolve(plan or Plan(), [stage.defaults() for stage in stages], 4)
    accounts = {stage.name: account(stage.name) for stage in stages}
    return build_space(stages, base, accounts, Limits(cores=4, **limits))  # type: ignore[arg-type]


def values_of(space: Space, key: str) -> tuple[object, ...]:
    """Return an axis's values; empty without such an axis."""
    return next((axis.values for axis in space.axes if axis.key == key), ())


def test_workers_go_down_as_well_as_up() -> None:
    """A stage that computes has fewer and more workers to choose from, up to one above the cores."""
    space = space_of([hr.stage("a", spin)], Plan().with_settings(["a.workers=3"]))
    assert values_of(space, "stages.a.workers") == (1, 2, 3, 4, 5)


def test_the_base_is_one_of_the_values_however_odd() -> None:
    """A number of workers that no ladder holds stays possible."""
    space = space_of([hr.stage("a", spin)], Plan().with_settings(["a.workers=37"]))
    assert 37 in values_of(space, "stages.a.workers")


def test_a_waiting_stage_may_have_many_workers() -> None:
    """Threads that wait are not bound by the cores."""
    space = space_of([hr.emulated("fetch", kind="io", seconds=0.1)])
    assert max(values_of(space, "stages.fetch.workers")) == 64  # type: ignore[type-var]


def test_a_device_that_is_waited_for_may_take_more_calls_than_there_are_cores() -> None:
    """It computes elsewhere; one that computes here needs the cores."""
    stages: list[Stage] = [hr.stage("device", spin, kind="device", releases_gil=True)]
    base = resolve(Plan(), [stages[0].defaults()], 2)
    for cpu, most in ((0.009, 2), (0.0001, 4)):
        space = build_space(stages, base, {"device": account("device", kind="device", cpu=cpu)}, Limits(cores=2))
        assert max(values_of(space, "stages.device.workers")) == most  # type: ignore[type-var]


def test_waiting_for_the_gil_is_no_waiting() -> None:
    """A stage that is blocked by the GIL gets no more workers than cores."""
    stages: list[Stage] = [hr.stage("a", spin)]
    base = resolve(Plan(), [stages[0].defaults()], 4)
    blocked = {"a": account("a", service=0.04, cpu=0.01, gil=0.03)}
    space = build_space(stages, base, blocked, Limits(cores=4))
    assert max(values_of(space, "stages.a.workers")) == 5  # type: ignore[type-var]


def test_a_stage_that_holds_the_gil_may_leave_to_processes() -> None:
    """Threads and processes are both tried; a stage that releases the GIL stays."""
    space = space_of([hr.stage("a", spin), hr.stage("b", spin, releases_gil=True)])
    assert "process" in values_of(space, "stages.a.executor")
    assert "process" not in values_of(space, "stages.b.executor")


def test_a_stage_that_cannot_be_sent_is_left_out_with_the_reason() -> None:
    """A local function keeps its stage in threads, and the reason says what to do."""
    space = space_of([hr.stage("a", lambda value: value)])
    assert "process" not in values_of(space, "stages.a.executor")
    assert any("functions of a module" in reason for reason in space.left_out)


def test_neighbours_that_compute_may_be_fused() -> None:
    """A cpu stage after a cpu stage may run in its workers; one after a download may not."""
    space = space_of([hr.emulated("fetch", kind="io", seconds=0.1), hr.stage("a", spin), hr.stage("b", spin)])
    assert "inline" not in values_of(space, "stages.a.executor")
    assert "inline" in values_of(space, "stages.b.executor")


def test_batches_stay_within_what_was_measured() -> None:
    """No batch beyond the largest whose cost is known."""
    stages: list[Stage] = [hr.emulated("d", kind="device", seconds=0.1)]
    assert values_of(space_of(stages, largest_batch={"d": 16}), "stages.d.batch") == (1, 2, 4, 8, 16)
    unknown = space_of(stages)
    assert values_of(unknown, "stages.d.batch") == ()
    assert any("d.batch" in reason for reason in unknown.left_out)


def test_threads_times_workers_fit_the_cores() -> None:
    """A point with more of the model's threads than cores is not possible, unless the base has as many."""
    stages: list[Stage] = [hr.stage("d", spin, kind="device")]
    space = space_of(stages, Plan().with_settings(["model.threads=2"]), largest_batch={"d": 4}, has_model_threads=True)
    base = dict(space.base)
    assert space.is_possible({**base, THREADS: 2, "stages.d.workers": 2})
    assert not space.is_possible({**base, THREADS: 2, "stages.d.workers": 4})


def test_the_models_threads_are_written_down_when_the_workers_change() -> None:
    """What the Plan leaves open would follow from the workers, and a prediction holds for one number."""
    space = space_of([hr.stage("d", spin, kind="device")], largest_batch={"d": 4}, has_model_threads=True)
    changed = space.settings({**space.base, "stages.d.workers": 2})
    assert set(changed) == {"stages.d.workers=2", f"{THREADS}={space.base[THREADS]}"}


def test_workers_of_an_inline_stage_change_nothing() -> None:
    """Points that mean the same are one."""
    space = space_of([hr.stage("a", spin), hr.stage("b", spin)])
    point = {**space.base, "stages.b.executor": "inline", "stages.b.workers": 3}
    assert space.settings(point) == ('stages.b.executor="inline"',)


def test_settings_make_the_plan() -> None:
    """What a point changes can be applied to the Plan as the user wrote it; the base changes nothing."""
    space = space_of([hr.stage("faces.decode", spin)])
    assert space.settings(space.base) == ()
    plan = Plan().with_settings(space.settings({**space.base, "stages.faces.decode.workers": 2}))
    assert plan.stages["faces.decode"].workers == 2


def test_jobs_in_flight_are_limited_only_for_latency() -> None:
    """Without a goal of latency a pipeline is kept full."""
    stages: list[Stage] = [hr.stage("a", spin)]
    assert values_of(space_of(stages), IN_FLIGHT) == ()
    values = values_of(space_of(stages, limits_in_flight=True), IN_FLIGHT)
    assert values[0] == 1
    assert values[-1] is None


def test_decoding_at_scale_is_tried_where_every_pixel_is_decoded() -> None:
    """A Plan that says full may say auto."""
    stages: list[Stage] = [hr.stage("a", spin)]
    full = Plan().with_settings(['decode.scale="full"'])
    assert values_of(space_of(stages, full, decodes=True), SCALE) == ("auto", "full")
    assert values_of(space_of(stages, decodes=True), SCALE) == ()


def test_a_setting_that_is_to_stay_is_no_axis() -> None:
    """It keeps the Plan's value, is named among what is left out, and others are tried; both ways of writing it do."""
    plan = Plan().with_settings(['decode.scale="full"', "a.workers=3"])
    for keep in ("a.workers", "stages.a.workers"):
        space = space_of([hr.stage("a", spin)], plan, decodes=True, keep=frozenset({keep, "decode.scale"}))
        assert values_of(space, "stages.a.workers") == values_of(space, SCALE) == ()
        assert space.base["stages.a.workers"] == 3
        assert len([reason for reason in space.left_out if "to stay" in reason]) == 2
        assert space.settings(space.base) == ()
    assert values_of(space_of([hr.stage("a", spin)], plan, decodes=True), SCALE) == ("auto", "full")
