"""What is collected of every stage, and what is left as it was: the source, the delivery, the values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import ItemRejected, SettingsError, SourceError
from headrace.base.plan import Plan, SourcePlan
from headrace.base.records import Job, OutcomeKind
from headrace.profiler.stage_bench.inputs import (
    Sample,
    available_bytes,
    collect,
    find_join,
    refuse_queue,
    same_shape_batches,
    take_jobs,
)
from headrace.testing import ListSource, MemoryQueue


def never() -> bool:
    """Do not stop."""
    return False


def values(inputs: Any, name: str) -> list[Any]:
    """Return the values that a stage was given."""
    return [one.value for one in inputs.stages[name].given]


def test_each_stage_gets_what_the_one_before_made(bench: Callable) -> None:
    """Also the delivery, whose inputs are the results."""
    stages = [hr.stage("double", lambda value: value * 2), hr.stage("add", lambda value: value + 1)]
    inputs = collect(bench(stages, [1, 2, 3]), 10, never)
    assert values(inputs, "double") == [1, 2, 3]
    assert values(inputs, "add") == [2, 4, 6]
    assert values(inputs, "deliver") == [3, 5, 7]
    assert (inputs.num_jobs, inputs.num_delivered, inputs.is_cut) == (3, 3, False)


def test_the_source_gets_every_job_back_and_nothing_is_delivered(bench: Callable) -> None:
    """Each is returned once, none is acked; the delivery sees nothing."""
    source, delivery = ListSource([1, 2, 3]), hr.collect()
    collect(bench([hr.stage("a", abs)], source=source, delivery=delivery), 10, never)
    assert [[outcome.kind for outcome in ends] for ends in source.outcomes.values()] == [[OutcomeKind.RETURNED]] * 3
    assert source.in_flight == []
    assert source.closed
    assert delivery.results == []


def test_no_more_jobs_than_wanted_are_received(bench: Callable) -> None:
    """Of a source that nothing is known of."""
    source = ListSource(range(100))
    inputs = collect(bench([hr.stage("a", abs)], source=source), 7, never)
    assert (inputs.num_jobs, len(source.outcomes)) == (7, 7)


def test_a_folder_gives_more_jobs_than_inputs_are_kept_of(bench: Callable, tmp_path: Path) -> None:
    """Paths cost nothing, and more of them mean less that a cache already holds."""
    for number in range(20):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"x")
    inputs = collect(bench([hr.fetch("fetch")], source=hr.folder(tmp_path)), 4, never)
    assert (inputs.num_jobs, len(inputs.jobs)) == (4, 20)
    assert values(inputs, "deliver") == [b"x"] * 4


def test_a_queue_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(SettingsError, match=r"headrace\.folder"):
        refuse_queue(hr.queue(MemoryQueue()))


def test_a_source_without_jobs_is_told() -> None:
    """Also one without end, that has nothing for now."""
    for source in (ListSource([]), ListSource([], endless=True)):
        with pytest.raises(SourceError, match="gave no job"):
            take_jobs(source, SourcePlan(wait_seconds=0.0), 4, never)


def test_failing_items_are_left_out_and_counted(bench: Callable) -> None:
    """From the stage where they fail on."""

    def reject_odd(value: int) -> int:
        if value % 2:
            raise ItemRejected(f"{value} is odd")
        return value

    inputs = collect(bench([hr.stage("even", reject_odd), hr.stage("after", abs)], [1, 2, 3, 4]), 10, never)
    assert values(inputs, "even") == [2, 4]
    assert values(inputs, "after") == [2, 4]
    assert inputs.stages["even"].num_failed == 2
    assert "1 is odd" in inputs.stages["even"].first_error
    assert inputs.num_delivered == 2


def test_inputs_are_copies(bench: Callable) -> None:
    """A stage that writes into one buffer again and again does not change what was kept."""
    buffer = np.zeros(2)

    def fill(value: int) -> np.ndarray:
        buffer[:] = value
        return buffer

    inputs = collect(bench([hr.stage("fill", fill), hr.stage("sum", np.sum)], [1, 2, 3]), 3, never)
    assert [value.tolist() for value in values(inputs, "sum")] == [[1, 1], [2, 2], [3, 3]]


def test_a_stage_that_changes_its_input_is_found(bench: Callable) -> None:
    """The input from before is kept, and the stage is marked."""

    def clear(value: np.ndarray) -> int:
        value[:] = 0
        return 1

    inputs = collect(bench([hr.stage("clear", clear), hr.stage("after", abs)], [np.ones(2), np.ones(2)]), 2, never)
    assert [value.tolist() for value in values(inputs, "clear")] == [[1, 1], [1, 1]]
    assert [inputs.stages[name].mutates for name in ("clear", "after")] == [True, False]


def test_a_device_gets_batches_of_one_shape(bench: Callable) -> None:
    """Its results are kept beside its inputs, for the emulated twin."""
    shapes: list[tuple[int, ...]] = []

    def process(batch: np.ndarray) -> list[int]:
        shapes.append(batch.shape)
        return [len(one) for one in batch]

    plan = Plan.from_table({"stages": {"process": {"batch": 4}}})
    payloads = [np.zeros(2 + (number > 4) * 3) for number in range(9)]
    inputs = collect(bench([hr.stage("process", process, kind="device")], payloads, plan=plan), 9, never)
    assert {shape[1:] for shape in shapes} == {(2,), (5,)}
    assert max(shape[0] for shape in shapes) == 4
    assert inputs.stages["process"].results == [2] * 5 + [5] * 4


def test_children_and_joins(bench: Callable) -> None:
    """Stages between fan-out and join get the children, the join what all of them came to."""
    stages = [
        hr.fan_out("cut", lambda value: hr.Fan(list(range(value)), keep=value)),
        hr.stage("square", lambda value: value**2),
        hr.join("add", lambda joined: (joined.keep, sum(joined.results))),
    ]
    inputs = collect(bench(stages, [3, 0, 2]), 3, never)
    assert values(inputs, "square") == [0, 1, 2, 0, 1]
    assert [value.results for value in values(inputs, "add")] == [[0, 1, 4], [], [0, 1]]
    assert values(inputs, "deliver") == [(3, 5), (0, 0), (2, 1)]


def test_a_failing_child_takes_its_parent_along(bench: Callable) -> None:
    """As in a run; a fan-out that returns something else fails too."""

    def cut(value: int) -> Any:
        return hr.Fan([value, 1]) if value else "no fan"

    def invert(value: int) -> float:
        return 1 / (value - 5)

    stages = [hr.fan_out("cut", cut), hr.stage("invert", invert), hr.join("all", lambda joined: joined.results)]
    inputs = collect(bench(stages, [4, 5, 0]), 3, never)
    assert len(inputs.stages["all"].given) == 1
    assert inputs.stages["invert"].num_failed == 1
    assert inputs.stages["cut"].num_failed == 1
    assert inputs.num_delivered == 1


class Doubles(hr.Module):
    """Doubles what it gets."""

    input = hr.ArrayInput()

    def process(self, batch: Any) -> list[Any]:
        """Return twice each value."""
        return [2 * value for value in batch]


def test_each_task_goes_its_own_way(bench: Callable) -> None:
    """A job whose task no module takes is counted."""
    source = ListSource([1, 2, 3], tasks=["a", "b", "c"])
    inputs = collect(bench(modules={"a": Doubles(), "b": Doubles()}, source=source), 3, never)
    assert values(inputs, "a.process") == [1]
    assert values(inputs, "b.process") == [2]
    assert inputs.no_route == 1


def test_memory_bounds_the_number_of_items(bench: Callable) -> None:
    """What was kept stays within the bound, and it is told that there are fewer."""
    payloads = [np.zeros(1000, np.uint8) for _ in range(50)]
    inputs = collect(bench([hr.stage("a", lambda value: value[:10])], payloads), 50, never, max_bytes=10_500)
    assert inputs.is_cut
    assert 8 <= inputs.num_jobs <= 10
    assert inputs.num_bytes <= 10_500


def test_a_stop_keeps_what_is_there(bench: Callable) -> None:
    """Collecting ends between jobs."""
    answers = iter([False] * 4 + [True] * 100)
    inputs = collect(bench([hr.stage("a", abs)], range(50)), 50, lambda: next(answers))
    assert 1 <= inputs.num_jobs < 50


def test_batches_are_full_and_of_one_shape() -> None:
    """Inputs are repeated to fill them up; none is left out."""
    given = [Sample(Job(str(number), b""), np.full(2 + number % 2, number)) for number in range(5)]
    batches = same_shape_batches(given, 4)
    assert all(len(batch) == 4 for batch in batches)
    assert all(len({one.value.shape for one in batch}) == 1 for batch in batches)
    assert {one.job.id for batch in batches for one in batch} == {"0", "1", "2", "3", "4"}


def test_nested_fan_outs_find_their_joins() -> None:
    """The outer one the outer join."""
    outer, inner = hr.fan_out("outer", hr.Fan), hr.fan_out("inner", hr.Fan)
    stages = [outer, inner, hr.join("inner-join", len), hr.join("outer-join", len)]
    assert (find_join(stages, 0), find_join(stages, 1)) == (3, 2)
    with pytest.raises(ValueError, match="no join"):
        find_join([outer], 0)


def test_available_memory_is_read(tmp_path: Path) -> None:
    """What the kernel calls available, at most the machine's; a kernel that does not tell gives the machine's."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable:    300 kB\n")
    assert available_bytes(meminfo) == 300 * 1024
    assert available_bytes(tmp_path / "missing") > 300 * 1024
