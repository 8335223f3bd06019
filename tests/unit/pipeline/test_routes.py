"""Where items go: through stages one after another, by task, into children and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.records import OutcomeKind
from headrace.pipeline.definition import Pipeline
from headrace.testing import FaultyStage, ListSource

Run = Callable[..., Any]


class Doubler(hr.Module):
    """Doubles numbers."""

    input = hr.ArrayInput()

    def process(self, batch: Any) -> list[Any]:
        """Return twice the values."""
        return [2 * value for value in batch]


class Length(hr.Module):
    """Measures bytes."""

    def preprocess(self, value: bytes) -> int:
        """Return how long it is."""
        return len(value)

    def process(self, batch: Any) -> list[Any]:
        """Return the values."""
        return list(batch)


def test_linear(run: Run) -> None:
    """Every item passes every stage in order and is delivered once."""
    stages = [hr.stage("add", lambda x: x + 1), hr.stage("square", lambda x: x * x), hr.stage("text", str)]
    ran = run(stages, range(300))
    assert ran.results == {str(n): str((n + 1) ** 2) for n in range(300)}
    assert len(ran.delivered) == 300


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"source": "sqlite:///jobs.db"}, r"source is 'sqlite:///jobs\.db'; expected headrace\.queue"),
        ({"module": Doubler}, "module is the class Doubler; expected an instance"),
        ({"modules": {"a": Doubler}}, r"modules\['a'\] is the class Doubler"),
        ({"stages": [len]}, r"stages\[0\] is <built-in function len>; expected a Stage"),
        ({"stages": [hr.stage("a", len)], "delivery": "out.jsonl"}, r"delivery is 'out\.jsonl'"),
    ],
)
def test_what_is_easily_mistaken(parts: dict[str, Any], said: str) -> None:
    """A class for an instance, an address for a source: told where it is written, with what is expected."""
    with pytest.raises(SettingsError, match=said):
        Pipeline(parts.pop("source", ListSource([])), **parts)


def test_nothing_to_do(run: Run) -> None:
    """A source without jobs ends at once."""
    assert run([hr.stage("a", str)], []).result.counters.received == 0


def test_modules_by_task(run: Run) -> None:
    """The job's task picks the module; stages of all modules share fetch and deliver."""
    ran = run(
        None,
        [np.int64(3), b"four", b"12345", np.int64(-1)],
        modules={"double": Doubler(), "length": Length()},
        source={"tasks": ["double", "length", "length", "double"]},
    )
    assert ran.results == {"0": 6, "1": 4, "2": 5, "3": -2}
    stages = Counter(span.stage for span in ran.spans)
    assert stages == {
        "fetch": 2, "length.preprocess": 2, "length.process": 2, "double.process": 2, "deliver": 4
    }  # fmt: skip


def test_unknown_task_is_rejected(run: Run) -> None:
    """A task that no module takes is rejected with the tasks that there are."""
    ran = run(None, [b"x", b"y"], modules={"length": Length()}, source={"tasks": ["length", "faces"]})
    assert ran.ids(OutcomeKind.REJECTED) == {"1"}
    assert "'faces'" in ran.reason("1")
    assert "length" in ran.reason("1")
    assert ran.results == {"0": 1}


def test_fan_out_and_join(run: Run) -> None:
    """Children come back in their order, with what the fan-out kept."""
    ran = run(
        [
            hr.fan_out("cut", lambda n: hr.Fan([10 * n + k for k in range(n)], keep=f"kept {n}")),
            hr.stage("negate", lambda x: -x),
            hr.join("gather", lambda joined: (joined.keep, joined.results)),
        ],
        range(8),
        {"stages": {"negate": {"workers": 4}}},
    )
    assert ran.results == {str(n): (f"kept {n}", [-(10 * n + k) for k in range(n)]) for n in range(8)}


def test_no_children(run: Run) -> None:
    """An item without children goes straight to the join."""
    ran = run(
        [hr.fan_out("cut", lambda n: hr.Fan([])), hr.stage("never", lambda x: 1 / 0), hr.join("gather", tuple_of)],
        [1, 2],
    )
    assert ran.results == {"0": (), "1": ()}


def tuple_of(joined: Any) -> tuple[Any, ...]:
    """Return the results."""
    return tuple(joined.results)


@pytest.mark.parametrize("inline", [False, True])
def test_nested_fan_out(run: Run, inline: bool) -> None:
    """Children may be cut again: each join gets the results of its own fan-out, those without children too."""
    ran = run(
        [
            hr.fan_out("outer", lambda sizes: hr.Fan(sizes, keep=len(sizes))),
            hr.stage("pass", lambda size: size),
            hr.fan_out("inner", lambda size: hr.Fan([size] * size, keep=size)),
            hr.stage("times", lambda x: 10 * x),
            hr.join("inner_join", lambda joined: (joined.keep, joined.results)),
            hr.stage("after", lambda pair: pair),
            hr.join("outer_join", lambda joined: (joined.keep, joined.results)),
        ],
        [[2, 0, 1], [], [0], [3]],
        {"stages": {"inner": {"executor": "inline"}}} if inline else None,
    )
    assert ran.results == {
        "0": (3, [(2, [20, 20]), (0, []), (1, [10])]),
        "1": (0, []),
        "2": (1, [(0, [])]),
        "3": (1, [(3, [30, 30, 30])]),
    }


def test_fan_out_right_after_a_join_in_one_worker(run: Run) -> None:
    """A fan-out fused behind a join finds its own join, also without children."""
    ran = run(
        [
            hr.fan_out("one", hr.Fan),
            hr.join("one_join", lambda joined: joined.results),
            hr.fan_out("two", hr.Fan),
            hr.stage("neg", lambda x: -x),
            hr.join("two_join", lambda joined: joined.results),
        ],
        [[1, 2], []],
        {"stages": {"two": {"executor": "inline"}}},
    )
    assert ran.results == {"0": [-1, -2], "1": []}


def test_children_may_be_an_array(run: Run) -> None:
    """The rows of an array are children, as crops of one size are."""
    crops = np.arange(12, dtype=np.uint8).reshape(3, 4)
    ran = run([hr.fan_out("cut", hr.Fan), hr.stage("sum", lambda row: int(row.sum())), hr.join("j", tuple_of)], [crops])
    assert ran.results == {"0": (6, 22, 38)}


@pytest.mark.parametrize(
    "wrong", [5, [1], hr.Fan(x for x in "ab"), hr.Fan(None)], ids=["number", "list", "generator", "None"]
)
def test_wrong_fan_fails_the_item(run: Run, wrong: Any) -> None:
    """A fan-out that returns something else fails its item with what was expected, and the run goes on."""
    ran = run([hr.fan_out("cut", lambda x: wrong if x else hr.Fan([7])), hr.join("j", tuple_of)], [0, 1])
    assert ran.results == {"0": (7,)}
    assert "must return headrace.Fan" in ran.reason("1")


def test_failing_child_fails_its_parent_once(run: Run) -> None:
    """One bad child fails the whole job, with the child's id, and its siblings are dropped."""
    calls: list[Any] = []
    ran = run(
        [
            hr.fan_out("cut", hr.Fan),
            FaultyStage("work"),
            hr.stage("later", lambda x: calls.append(x) or x),
            hr.join("gather", tuple_of),
        ],
        [["a", "b"], ["!raise", "c", "!raise", "!reject"], ["d"]],
        {"stages": {"work": {"workers": 1}}},
    )
    assert ran.results == {"0": ("a", "b"), "2": ("d",)}
    assert [outcome.kind for outcome in ran.source.outcomes["1"]] == [OutcomeKind.DEAD_LETTERED]
    assert ran.reason("1").startswith("work: item 1/0: ValueError")
    assert "!raise" not in calls


def test_rejected_child_rejects_its_parent(run: Run) -> None:
    """A child that is rejected rejects the job."""
    ran = run([hr.fan_out("cut", hr.Fan), FaultyStage("work"), hr.join("j", tuple_of)], [["!reject"]])
    assert ran.ids(OutcomeKind.REJECTED) == {"0"}


def test_children_name_their_parents(run: Run) -> None:
    """Spans of children carry their parent's id, over two levels; parents' own spans have none."""
    ran = run(
        [
            hr.fan_out("outer", hr.Fan),
            hr.fan_out("inner", hr.Fan),
            hr.stage("leaf", lambda x: x),
            hr.join("inner_join", lambda j: j.results),
            hr.join("outer_join", lambda j: j.results),
        ],
        [["ab", "c"]],
    )
    ids = {(span.stage, span.unit_id, span.parent_id) for span in ran.spans}
    assert ids == {
        ("outer", "0", None),
        ("inner", "0/0", "0"),
        ("inner", "0/1", "0"),
        ("leaf", "0/0/0", "0/0"),
        ("leaf", "0/0/1", "0/0"),
        ("leaf", "0/1/0", "0/1"),
        ("inner_join", "0/0", "0"),
        ("inner_join", "0/1", "0"),
        ("outer_join", "0", None),
        ("deliver", "0", None),
    }


def test_fan_out_with_retries_in_every_place(run: Run) -> None:
    """Children that succeed at the second try are joined once each."""
    seen: set[Any] = set()

    def second_time(value: Any) -> Any:
        if value not in seen:
            seen.add(value)
            raise OSError("not yet")
        return value

    ran = run(
        [hr.fan_out("cut", hr.Fan), hr.stage("flaky", second_time), hr.join("j", tuple_of)],
        [[1, 2, 3], [4, 5]],
        {"stages": {"flaky": {"attempts": 2, "workers": 2}}},
    )
    assert ran.results == {"0": (1, 2, 3), "1": (4, 5)}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([hr.stage("a", str), hr.stage("a", str)], "two stages are named 'a'"),
        ([hr.stage("a\nb", str)], r"named 'a\\nb'; expected letters"),
        ([hr.stage("", str)], "named ''; expected letters"),
        ([hr.join("j", str)], "no fan_out stage stands before it"),
        ([hr.fan_out("f", hr.Fan)], "needs a join"),
    ],
)
def test_impossible_pipelines(stages: list[Any], message: str) -> None:
    """A pipeline that cannot work is refused when it is made."""
    with pytest.raises(SettingsError, match=message):
        Pipeline(ListSource([]), stages=stages)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"stages": {"j": {"executor": "inline"}}}, "a join waits for all children"),
        ({"stages": {"work": {"executor": "inline"}}}, "after the fan_out stage cut"),
        ({"stages": {"cut": {"executor": "process"}}}, "cannot run in a process"),
        ({"run": {"ordered": True}, "stages": {"deliver": {"workers": 2}}}, "allowed: 1"),
        ({"run": {"ordered": True}, "stages": {"x": {"batch": 4}, "deliver": {"executor": "inline"}}}, "batch above 1"),
    ],
)
def test_impossible_plans(run: Run, plan: dict[str, Any], message: str, tmp_path: Any) -> None:
    """A Plan that the runtime cannot carry out is refused before anything runs, and leaves no run folder."""
    stages = [
        hr.fan_out("cut", hr.Fan), FaultyStage("work"), hr.join("j", tuple_of), FaultyStage("x", kind="device")
    ]  # fmt: skip
    with pytest.raises(SettingsError, match=message):
        run(stages, [[1]], plan, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_limit(run: Run) -> None:
    """Not more than the limit is received, also by several receivers."""
    ran = run([hr.stage("a", str)], range(100), {"source": {"receivers": 4, "wait_seconds": 0.05}}, limit=33)
    assert (ran.result.counters.received, ran.result.counters.delivered) == (33, 33)
