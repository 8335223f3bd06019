"""A run whose jobs are pushed and whose results are replies."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

import headrace as hr
from headrace.base.passage import Passage
from headrace.base.plan import Plan
from headrace.pipeline.execute import Result, run
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import FrontDoor, State
from headrace.serve.reply import Reply
from headrace.serve.source import RequestSource


class Lengths(hr.Module):
    """Returns how long each item is; one that is empty is refused."""

    def process(self, batch: list[bytes]) -> list[int]:
        """Return lengths."""
        if any(not one for one in batch):
            raise ValueError("nothing in it")
        return [len(one) for one in batch]


class Spans(hr.Observer):
    """Keeps spans."""

    def __init__(self) -> None:
        self.all: list[hr.Span] = []

    def stage_finished(self, spans: Sequence[hr.Span]) -> None:
        """Keep them."""
        self.all += spans


class Served:
    """A pipeline that answers in a thread of its own."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.source = RequestSource()
        self.door = FrontDoor(self.source)
        self.threads: set[str] = set()
        self._stop = threading.Event()
        self._result: list[Result] = []
        self.spans = Spans()
        pipeline = hr.Pipeline(self.source, module=Lengths(), delivery=Reply())
        self._thread = threading.Thread(
            target=lambda: self._result.append(run(pipeline, plan, stop=self._stop, observers=[self.spans]))
        )
        is_open = threading.Event()
        opened = self.source.on_ready
        self.source.on_ready = lambda: (opened(), is_open.set())
        self._thread.start()
        assert is_open.wait(30)

    def ask(self, payload: bytes, passages: list[Passage] | None = None) -> Ended:
        """Return how a job ended."""
        done, ended = threading.Event(), []

        def note(one: Ended) -> None:
            self.threads.add(threading.current_thread().name)
            ended.append(one)
            done.set()

        ticket = self.door.submit(Work(payload=payload, on_end=note, passages=passages))
        assert not isinstance(ticket, Refused)
        assert done.wait(30)
        assert len(ended) == 1
        return ended[0]

    def end(self) -> Result:
        """Stop it and return what it came to."""
        self._stop.set()
        self._thread.join(30)
        return self._result[0]


@pytest.fixture
def served() -> Iterator[Served]:
    """A run in progress."""
    served = Served()
    yield served
    served.end()


def test_results_come_back(served: Served) -> None:
    """Each job gets its own result, and the counts say so."""
    assert [served.ask(b"x" * size).result for size in (1, 5, 3)] == [1, 5, 3]
    result = served.end()
    assert (result.counters.received, result.counters.delivered) == (3, 3)


def test_an_error_of_one_comes_back_to_it_alone(served: Served) -> None:
    """The user's exception is one request's 500."""
    assert served.ask(b"12").result == 2
    failed = served.ask(b"")
    assert (failed.status, failed.result) == (500, None)
    assert "nothing in it" in failed.reason
    assert served.ask(b"123").result == 3


def test_a_reply_needs_no_thread_of_its_own(served: Served) -> None:
    """Whoever has the result gives it back, and reports say that the stage is inline."""
    served.ask(b"12")
    assert not any(name.startswith("deliver") for name in served.threads)
    stages = {stage.name: stage for stage in served.end().stages}
    assert (stages["deliver"].executor, stages["deliver"].station) == ("inline", "process")


def test_a_reply_waits_for_nothing(served: Served) -> None:
    """It comes to its stage when the stage before it ends; else the wait for that one would count twice."""
    served.ask(b"12")
    served.end()
    spans = {span.stage: span for span in served.spans.all}
    assert spans["deliver"].arrived >= spans["process"].ended
    assert spans["process"].put == spans["deliver"].arrived


def test_bytes_are_not_fetched(served: Served) -> None:
    """What is there already skips the downloads' queue."""
    served.ask(b"12")
    summary = served.end().summary.as_dict()
    items = {stage["name"]: stage["items"] for stage in summary["stages"]}
    assert (items.get("fetch", 0), items["process"]) == (0, 1)


def test_the_end_refuses_and_answers_all(served: Served) -> None:
    """Who comes after the end of the run hears that it stops."""
    served.ask(b"1")
    served.end()
    assert served.door.state is State.DRAINING
    assert isinstance(served.door.submit(Work(payload=b"x", on_end=print)), Refused)
    assert served.source.num_open == 0


def test_passages_are_noted_before_the_answer(served: Served) -> None:
    """Each stage of a job that asked, the delivery too, is there when its end is told, whether it failed or not."""
    passages: list[Passage] = []
    assert served.ask(b"xyz", passages).result == 3
    stages = [one.stage for one in passages]
    assert stages[-2:] == ["process", "deliver"]
    assert passages[-2].batch_size == 1
    assert all(before.ended <= after.started for before, after in pairwise(passages))
    failed: list[Passage] = []
    assert served.ask(b"", failed).code
    assert [one.stage for one in failed] == stages[:-1]
