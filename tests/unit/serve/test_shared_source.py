"""What tells requests apart of which one may kill its process."""

import threading

import numpy as np
import pytest

import headrace as hr
from headrace.base.in_flight import InFlightTable
from headrace.base.plan import SourcePlan
from headrace.base.policies.blame import BlameBook, Death
from headrace.base.records import DELIVERED
from headrace.base.worker_slot import WorkerSlot
from headrace.pipeline.execute import run
from headrace.serve.door import Ended, Work
from headrace.serve.reply import Reply
from headrace.serve.shared_source import SharedRequestSource, digest


class Lengths(hr.Module):
    """Returns how long each item is."""

    def process(self, batch: list[bytes]) -> list[int]:
        """Return lengths."""
        return [len(one) for one in batch]


class Asked:
    """A source in a worker after some crashes, and what its table says whenever an answer is made."""

    def __init__(self, *deaths: Death) -> None:
        blame = BlameBook()
        for death in deaths:
            blame.note_death(death)
        self.table = InFlightTable(4)
        self.slot = WorkerSlot(0, 1, 1, self.table, blame, None)
        self.source = SharedRequestSource()
        self.source.take(self.slot)
        self.source.open(SourcePlan())
        self.at_answers: list[list[bool]] = []
        self.ended: list[Ended] = []
        self.is_answered = threading.Event()

    def ask(self) -> None:
        """Send the request."""
        self.source.put("id", Work(payload=b"a", on_end=self._end))

    def in_work(self) -> list[bool]:
        """Return of each job in flight whether it is in work."""
        return [message.in_work for message in self.table.messages()]

    def _end(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.at_answers.append(self.in_work())
        self.is_answered.set()


def test_a_suspect_is_in_work_from_when_it_is_handed_out() -> None:
    """Also between its stages: what kills there is found as what kills in one. It was all that a crashed worker had."""
    asked = Asked(Death("SIGSEGV", True, [], [digest("", b"a")]))
    asked.ask()
    assert (asked.source.receive(1, 0.0), asked.in_work()) == ([], [False])
    (job,) = asked.source.receive(1, 0.0) or []
    assert asked.in_work() == [True]
    job.settle(DELIVERED)
    assert (asked.at_answers, asked.in_work()) == ([[True]], [])


def test_a_suspect_that_killed_alone_is_refused() -> None:
    """The first crash made it a suspect, the second one blames it: the third request is refused."""
    key = digest("", b"a")
    asked = Asked(Death("SIGSEGV", True, [], [key]), Death("SIGSEGV", True, [key], []))
    asked.ask()
    assert [(one.status, one.code) for one in asked.ended] == [(422, "serve.killer")]


def test_a_job_is_in_work_until_its_answer_is_made() -> None:
    """Making it runs code of the user's results, in the same process: what kills there is found too."""
    asked, stop, is_open = Asked(), threading.Event(), threading.Event()
    asked.source.on_ready = is_open.set
    pipeline = hr.Pipeline(asked.source, module=Lengths(), delivery=Reply())
    runs = threading.Thread(target=run, args=(pipeline,), kwargs={"stop": stop, "slot": asked.slot})
    runs.start()
    assert is_open.wait(30)
    asked.ask()
    assert asked.is_answered.wait(30)
    stop.set()
    runs.join(30)
    assert (asked.at_answers, asked.in_work()) == ([[True]], [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", b"x"), ("b", b"x")),
        (("", b"a" * 600 + b"KILL" + b"a" * 2_396), ("", b"a" * 600 + b"GOOD" + b"a" * 2_396)),
        (("", "http://x/1"), ("", "http://x/2")),
        (("", np.zeros(9)), ("", np.eye(3))),
        (("a", b""), ("", b"a")),
    ],
)
def test_what_differs_anywhere_is_another_request(one: tuple[str, object], other: tuple[str, object]) -> None:
    """An innocent request is never taken for the one that kills."""
    assert digest(*one) == digest(*one)
    assert digest(*one) != digest(*other)
