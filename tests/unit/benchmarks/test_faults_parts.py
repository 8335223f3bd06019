"""The parts of the fault harness: work of a stated size, sources without end, changed copies of a case."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import time
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from benchmarks.faults import SHAPES, work
from benchmarks.faults.case import Case, environment
from benchmarks.faults.sources import Broker, BrokerQueue, FedQueue, RepeatedList
from headrace.base.plan import Plan, SourcePlan
from headrace.stages.stage import stage
from headrace.testing import FakeClock


def a_case(**changes: Any) -> Case:
    """Return a case of one stage."""
    case = Case(shape="tiny", stages=(stage("work", len),), payloads=lambda: [b"a", b"bc"], plan=Plan())
    return replace(case, **changes)


def test_burn_hashes_what_the_calibration_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1 MB a second, 2.5 s are 2.5 MB, in pieces of the buffer."""
    sizes: list[int] = []
    monkeypatch.setattr(work, "measure_bytes_per_second", lambda: 1e6)
    monkeypatch.setattr(hashlib, "sha256", lambda data: sizes.append(len(data)))
    work.burn(2.5)
    assert sum(sizes) == 2_500_000
    assert max(sizes) == 1 << 20


def test_spin_turns_as_often_as_the_calibration_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1,000 turns a second, half a second is 500 turns."""
    turns: list[int] = []
    monkeypatch.setattr(work, "measure_turns_per_second", lambda: 1e3)
    monkeypatch.setattr(work, "turn", turns.append)
    work.spin(0.5)
    assert turns == [500]


def test_photographs_have_the_size_asked_for() -> None:
    """Four images of 0.1 megapixels on average, each within 0.7 to 1.3 of it; asked for again, the same ones."""
    files = work.photographs(4, 0.1)
    pixels = [width * height for width, height in (Image.open(io.BytesIO(file)).size for file in files)]
    assert sum(pixels) / 4 == pytest.approx(1e5, rel=0.02)
    assert 0.69e5 < min(pixels) < max(pixels) < 1.31e5
    assert work.photographs(4, 0.1) is files


def test_a_list_is_given_around_with_an_id_for_each() -> None:
    """Payloads repeat in their order, ids do not."""
    entries = list(itertools.islice(RepeatedList([b"a", b"b"], 1e6).entries(), 5))
    assert [entry.payload for entry in entries] == [b"a", b"b", b"a", b"b", b"a"]
    assert len({entry.id for entry in entries}) == 5


def test_a_list_ends_when_its_time_is_over() -> None:
    """After no seconds at all there is nothing more."""
    assert list(RepeatedList([b"a"], 0.0).entries()) == []


def test_a_broker_gives_no_more_than_it_is_said_to() -> None:
    """One message per receive, however many are asked for."""
    queue = BrokerQueue(Broker(most_messages=1), FakeClock())
    queue.send([b"a", b"b"])
    assert len(queue.receive(10)) == 1


def test_a_broker_may_refuse_to_extend() -> None:
    """The refusal names the receipt, and the message comes back after its visibility timeout."""
    clock = FakeClock()
    queue = BrokerQueue(Broker(visibility_seconds=1.0, extends=False), clock)
    queue.send([b"a"])
    (message,) = queue.receive(1)
    assert queue.extend([message.receipt], 60.0) == {message.receipt: "AccessDenied"}
    clock.advance(1.1)
    assert queue.receive(1)[0].receive_count == 2


def test_a_fed_queue_has_a_backlog_of_jobs_with_ids_of_their_own() -> None:
    """Without a rate there are as many jobs as one asks for; two of one payload are two jobs."""
    source = FedQueue([b"a", b"b"], 1e6, Broker())
    source.open(SourcePlan())
    try:
        jobs = source.receive(10, 1.0) or []
    finally:
        source.close()
    assert [job.payload for job in jobs] == [b"a", b"b"] * 5
    assert len({job.id for job in jobs}) == 10


def test_a_fed_queue_ends_when_its_time_is_over() -> None:
    """It begins with the second receive; one that finds no time left returns the end."""
    source = FedQueue([b"a"], 0.0, Broker())
    source.open(SourcePlan())
    try:
        assert len(source.receive(10, 1.0) or []) == 10
        assert not source.is_exhausted
        assert source.receive(10, 1.0) is None
        assert source.is_exhausted
    finally:
        source.close()


def test_jobs_of_a_rate_begin_to_arrive_when_the_first_is_through() -> None:
    """One is there at once; while a run warms up with it, no others pile up."""
    source = FedQueue([b"a"], 60.0, Broker(rate_per_second=50.0))
    source.open(SourcePlan())
    try:
        assert len(source.receive(10, 1.0) or []) == 1
        time.sleep(0.3)
        assert source._fed.statistics().visible == 0
        assert source.receive(10, 60.0)
    finally:
        source.close()


def test_a_changed_case_leaves_the_first_as_it_was() -> None:
    """Each change makes a copy."""
    case = a_case()
    changed = case.with_settings("work.workers=3").with_broker(most_messages=1).around("work", lambda call: call)
    assert changed.plan.stages["work"].workers == 3
    assert changed.broker == Broker(most_messages=1)
    assert case == a_case(stages=case.stages, payloads=case.payloads)


def test_a_changed_stage_is_what_it_was_to_everybody_else() -> None:
    """Kind, role and what else the runtime asks for are those of the stage inside, and its call is changed."""
    inner = SHAPES["device_heavy"]().stage("process")
    changed = SHAPES["device_heavy"]().around("process", lambda call: call).stage("process")
    assert changed.defaults() == inner.defaults()
    assert (changed.releases_gil, changed.role) == (inner.releases_gil, inner.role)
    doubled = a_case().around("work", lambda call: lambda value: 2 * call(value)).stage("work")
    context: Any = type("Context", (), {"options": {}})
    assert doubled.open(context)(b"abc") == 6


def test_an_unknown_stage_is_told_with_those_there_are() -> None:
    """The message names the shape's stages."""
    with pytest.raises(ValueError, match="no stage 'decoder'; it has work"):
        a_case().around("decoder", lambda call: call)


def test_a_pipeline_does_not_say_what_was_done_to_it() -> None:
    """Whatever the case, the name in its run folder is the same."""
    names = set()
    for case in (a_case(), a_case(shape="other").with_settings("work.workers=3")):
        with case.opened() as pipeline:
            names.add(pipeline.name)
    assert len(names) == 1


def test_what_goes_on_beside_is_left_after_the_run() -> None:
    """It is entered before the pipeline is made and left after it."""
    events: list[str] = []

    class Beside:
        def __enter__(self) -> None:
            events.append("enter")

        def __exit__(self, *_: object) -> None:
            events.append("leave")

    with a_case().with_beside(Beside).opened():
        events.append("run")
    assert events == ["enter", "run", "leave"]


def test_environment_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were set have their value again, others are gone."""
    monkeypatch.setenv("HEADRACE_A", "before")
    monkeypatch.delenv("HEADRACE_B", raising=False)
    with environment({"HEADRACE_A": "x", "HEADRACE_B": "y"}):
        assert (os.environ["HEADRACE_A"], os.environ["HEADRACE_B"]) == ("x", "y")
    assert os.environ["HEADRACE_A"] == "before"
    assert "HEADRACE_B" not in os.environ
