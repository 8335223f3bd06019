"""Spans: one row per item and stage, whose times follow one another, under every executor."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.records import Span
from headrace.stages.stage import FunctionStage
from headrace.testing import FaultyStage

Run = Callable[..., Any]
NAMES = ["first", "second", "device", "last", "deliver"]


def chain() -> list[Any]:
    """Return stages that can be sent anywhere."""
    return [
        FunctionStage("first", np.negative),
        FunctionStage("second", np.cbrt),
        FunctionStage("device", np.abs, kind="device"),
        FunctionStage("last", np.negative),
    ]


def by_item(spans: list[Span]) -> dict[str, list[Span]]:
    """Return each item's spans, in order of time."""
    found = defaultdict(list)
    for span in spans:
        found[span.unit_id].append(span)
    return {id_: sorted(rows, key=lambda span: (span.started, span.ended)) for id_, rows in found.items()}


@pytest.mark.parametrize(
    "executors",
    [
        {},
        {"second": "inline", "last": "inline"},
        {"first": "inline", "second": "inline", "device": "inline", "last": "inline", "deliver": "inline"},
        {"second": "process", "device": "inline"},
        {"first": "inline", "device": "process", "last": "inline"},
    ],
    ids=["threads", "fused", "inline", "process", "device in process"],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_columns_are_sane(run: Run, executors: dict[str, str], ordered: bool) -> None:
    """Each item has one span per stage; an item arrives, is taken, begins, ends and leaves in this order, for good."""
    stages = {
        name: {"executor": executor} | ({"workers": 1} if executor == "process" else {})
        for name, executor in executors.items()
    }
    # A batch cannot be delivered in order by the worker that made it.
    stages.setdefault("device", {})["batch"] = 1 if ordered and len(executors) == 5 else 4
    ran = run(chain(), [np.full(5, float(n)) for n in range(40)], {"stages": stages, "run": {"ordered": ordered}})
    items = by_item(ran.spans)
    assert len(items) == 40
    own_queue = {name for name in NAMES if executors.get(name) != "inline"}
    for id_, spans in items.items():
        assert [span.stage for span in spans] == NAMES
        for span in spans:
            assert span.arrived <= span.dequeued <= span.started <= span.ended <= span.put
            assert (span.unit, span.unit_id, span.parent_id, span.outcome) == ("item", id_, None, "ok")
            assert (span.host, span.rank, span.attempt) == (socket.gethostname(), 0, 1)
            assert span.plan_id == ran.result.plan_id
            assert span.cpu is span.run_delay is None
            assert 0 <= span.queue_depth <= 40
            in_child = any(executors.get(name) == "process" for name in head_chain(span.stage, executors))
            assert (span.process != os.getpid()) == in_child
        for before, after in itertools.pairwise(spans):
            if after.stage in own_queue:
                held_back = ordered and after.stage == "deliver"
                assert before.put <= after.arrived if held_back else before.put == after.arrived
            else:  # it begins when the one before ends
                assert after.arrived == after.dequeued == before.ended == before.put
                assert after.queue_depth == 0
            assert before.bytes_out == after.bytes_in
        assert {span.shape_key for span in spans if span.stage != "deliver"} == {"float64[5]"}
        assert spans[0].bytes_in == 40
        device = spans[2]
        assert device.batch_size is not None
        assert 1 <= device.batch_size <= 4
        assert device.release_reason in ("full", "idle", "drain")
        assert all(span.batch_id is span.batch_size is span.release_reason is None for span in spans if span != device)


def head_chain(name: str, executors: dict[str, str]) -> list[str]:
    """Return the stage whose worker runs this one."""
    index = NAMES.index(name)
    while index and executors.get(NAMES[index]) == "inline":
        index -= 1
    return [NAMES[index]]


def test_batches_are_shared_rows(run: Run) -> None:
    """All rows of one batch have its id, its size, and the times of its call."""
    ran = run(chain(), [np.zeros(3)] * 50, {"stages": {"device": {"batch": 8}}})
    batches = defaultdict(list)
    for span in ran.spans:
        if span.batch_id is not None:
            batches[span.process, span.batch_id].append(span)
    for rows in batches.values():
        assert {row.batch_size for row in rows} == {len(rows)}
        assert len({(row.started, row.ended, row.thread) for row in rows}) == 1


def test_outcomes(run: Run) -> None:
    """The span of the stage in which an item ends says how, and no later stage has one."""
    ran = run([FaultyStage("a"), FaultyStage("b")], ["x", "!raise", "!reject"])
    assert Counter((span.unit_id, span.stage, span.outcome) for span in ran.spans) == Counter(
        [("0", "a", "ok"), ("0", "b", "ok"), ("0", "deliver", "ok"), ("1", "a", "failed"), ("2", "a", "rejected")]
    )


def test_each_try_has_a_row(run: Run) -> None:
    """Tries in a stage have a row each; those after another delivery say which."""
    ran = run([FaultyStage("a")], ["!raise"], {"stages": {"a": {"attempts": 2}}}, source={"max_receives": 2})
    assert [(span.attempt, span.outcome) for span in ran.spans] == [(1, "failed")] * 2 + [(2, "failed")] * 2
    first, second = ran.spans[:2]
    assert second.arrived >= first.put


def test_time_held_back_for_the_order_shows(run: Run) -> None:
    """An item done before its turn leaves its stage when it is done, and arrives at the delivery when it is let go."""
    second_done = threading.Event()
    let_go: list[int] = []

    def work(number: int) -> int:
        if number == 0:
            assert second_done.wait(60)
            let_go.append(time.monotonic_ns())
        return number

    class Watching(hr.Observer):
        def stage_finished(self, spans: Any) -> None:
            """Note that the second is held."""
            if any((span.stage, span.unit_id) == ("work", "1") for span in spans):
                second_done.set()

    plan = {"stages": {"work": {"workers": 2}}, "run": {"ordered": True}}
    ran = run([hr.stage("work", work)], [0, 1], plan, observers=[Watching()])
    rows = {(span.unit_id, span.stage): span for span in ran.spans}
    assert [id_ for id_, _ in ran.delivered] == ["0", "1"]
    assert rows["1", "work"].put < let_go[0] <= rows["1", "deliver"].arrived
    assert rows["0", "work"].put == rows["0", "deliver"].arrived


def test_blocked_time_shows(run: Run) -> None:
    """An item that waits for room in the next queue has put later than ended."""
    ran = run(
        [hr.stage("fast", lambda x: x), hr.emulated("slow", seconds=0.01)],
        range(12),
        {"stages": {"fast": {"workers": 1}, "slow": {"workers": 1, "queue_items": 1}}},
    )
    blocked = [span.put - span.ended for span in ran.spans if span.stage == "fast"]
    assert max(blocked) > 5_000_000


def test_spans_reach_the_run_folder(run: Run, tmp_path: Any) -> None:
    """What observers see is what the run folder keeps."""
    from headrace.runs.reader import read_run

    ran = run([hr.stage("a", str)], range(20), output=tmp_path / "run")
    table = read_run(tmp_path / "run").spans()
    kept = {(row["unit_id"], row["stage"]) for row in table.to_pylist()}
    assert kept == {(span.unit_id, span.stage) for span in ran.spans}
