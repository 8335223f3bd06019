"""The API in front of a queue: who sends a job hears in time what became of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.base.records import QueueStatistics
from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes
from headrace.serve.queue_api import QueueApi
from headrace.sources.sqlite_queue import SqliteQueue
from headrace.testing import FakeClock, MemoryQueue
from tests.unit.serve.asking import Asker, Later
from tests.unit.serve.test_jobs_api import body_of


class SlowQueue(MemoryQueue):
    """Takes what it is given when it is told to; refuses what is called `large`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_take = threading.Semaphore(0), threading.Semaphore(0)
        self.sent: list[int] = []

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Wait, and store them."""
        self.is_asked.release()
        assert self.may_take.acquire(timeout=30)
        if any(b"bGFyZ2U=" in body for body in bodies):
            raise ValueError("the message is larger than the queue allows")
        self.sent.append(len(bodies))
        return super().send(bodies, delay_seconds=delay_seconds)


class Front:
    """A QueueApi, asked without connections."""

    def __init__(self, queue: MemoryQueue | SqliteQueue) -> None:
        self.clock, self.later, self.routes = FakeClock(), Later(), Routes()
        self.api = QueueApi(queue, 3, self.later, clock=self.clock)
        self.api.add_to(self.routes)

    def send(self, body: bytes = b"x", **headers: str) -> Asker:
        """Send a job and return who hears of it."""
        asker = Asker()
        answer = self.routes.answer(asker.request("POST", "/v1/jobs", body, **headers))
        if answer is not None:
            asker.answers.append(answer)
        return asker

    def pass_time(self, seconds: float) -> None:
        """Let the front's timers do what is due."""
        self.clock.advance(seconds)
        due, self.later.calls = self.later.calls, []
        for _, call in due:
            call()


def code_of(answer: Answer) -> tuple[int, object]:
    """Return status and code."""
    return answer.status, body_of(answer)["code"]


def test_a_slow_queue_holds_up_no_client() -> None:
    """Each hears in time, by its own deadline or by ours; what is stored later is stored once, and the others are not sent."""
    queue = SlowQueue()
    front = Front(queue)
    with front.api:
        first = front.send()
        assert queue.is_asked.acquire(timeout=30)
        hurried, patient = front.send(request_timeout_ms="250"), front.send()
        front.pass_time(0.3)
        assert [len(one.answers) for one in (first, hurried, patient)] == [0, 1, 0]
        assert code_of(hurried.answers[0]) == (503, "queue.slow")
        front.pass_time(10.0)
        assert [code_of(one.answers[0]) for one in (first, patient)] == [(503, "queue.slow")] * 2
        assert front.later.calls == [], "nobody waits any more"
        last = front.send()
        queue.may_take.release(2)
        assert last.wait().status == 202
    assert queue.sent == [1, 1], "the first one and the last: who was answered before its turn is not stored"
    assert [len(one.answers) for one in (first, hurried, patient, last)] == [1] * 4
    assert front.api.counts == {"queue.slow": 3, "stored": 2}


def test_what_waits_is_stored_together() -> None:
    """One call for all that came meanwhile, and no more than may wait."""
    queue = SlowQueue()
    front = Front(queue)
    with front.api:
        first = front.send()
        assert queue.is_asked.acquire(timeout=30)
        others = [front.send() for _ in range(4)]
        assert code_of(others[3].answers[0]) == (429, "serve.busy")
        queue.may_take.release(2)
        assert [one.wait().status for one in (first, *others[:3])] == [202] * 4
    assert queue.sent == [1, 3]


def test_a_job_that_the_queue_never_takes_fails_alone() -> None:
    """Those that came with it are stored."""
    queue = SlowQueue()
    front = Front(queue)
    with front.api:
        front.send()
        assert queue.is_asked.acquire(timeout=30)
        jobs = [front.send(b"a"), front.send(b"large"), front.send(b"b")]
        queue.may_take.release(10)
        assert [one.wait().status for one in jobs] == [202, 422, 202]
    assert code_of(jobs[1].answers[0]) == (422, "message.refused")
    assert front.api.tally.statuses() == {202: 3, 422: 1}
    assert front.api.refused == {"message.refused": 1}
    assert queue.statistics().visible == 3


def test_a_job_for_a_deleted_file_is_not_said_to_be_stored(tmp_path: Path) -> None:
    """SQLite goes on with a file that nobody can open any more."""
    queue = SqliteQueue(tmp_path / "q.db")
    front = Front(queue)
    with front.api:
        assert front.send().wait().status == 202
        (tmp_path / "q.db").unlink()
        asker = front.send()
        assert asker.wait().status == 503
    assert "was deleted" in str(body_of(asker.answers[0])["error"])
    ready = front.routes.answer(Asker().request("GET", "/readyz"))
    assert ready is not None
    assert ready.status == 503
    queue.close()


@pytest.mark.parametrize("query", ["wait=2s", "timings=1", "priority=0"])
def test_what_a_queue_cannot_do_is_refused(query: str) -> None:
    """There is no result to wait for here, and no line to jump."""
    front, asker = Front(MemoryQueue()), Asker()
    answer = front.routes.answer(asker.request("POST", f"/v1/jobs?{query}", b"x"))
    assert answer is not None
    assert code_of(answer) == (400, "message.parameter")
    assert (front.api.tally.statuses(), front.api.refused) == ({400: 1}, {"message.parameter": 1})


def test_who_asks_how_a_job_stands_hears_where_its_result_goes() -> None:
    """A front of a queue keeps no answers; "there is nothing" would send its client looking for a wrong address."""
    front = Front(MemoryQueue())
    answer = front.routes.answer(Asker().request("GET", "/v1/jobs/a/1"))
    assert answer is not None
    assert code_of(answer) == (404, "serve.queued")
    assert "callback" in str(body_of(answer)["error"])


def test_whatever_a_queue_raises_the_next_jobs_are_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue of somebody else's may raise anything when it is looked at; that is no end of the thread that stores."""

    class Odd(MemoryQueue):
        def __init__(self) -> None:
            super().__init__()
            self.was_asked = threading.Event()

        def statistics(self) -> QueueStatistics:
            """Fail in a way of its own."""
            self.was_asked.set()
            raise RuntimeError("redis://secret-host: of a library")

    monkeypatch.setattr("headrace.serve.queue_api._LOOK_SECONDS", 0.01)
    queue = Odd()
    front = Front(queue)
    front.api._tells_failures = False
    with front.api:
        assert queue.was_asked.wait(timeout=60)
        while not front.api._trouble:
            pass
        ready = front.routes.answer(Asker().request("GET", "/readyz"))
        assert ready is not None
        assert (ready.status, b"secret" in ready.body) == (503, False)
        assert front.send().wait().status == 202
    assert "redis://secret-host" in caplog.text


def test_a_job_that_cannot_even_be_refused_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that stores goes on, whatever it is; who waited is answered in time."""
    queue = MemoryQueue()
    front = Front(queue)
    store = front.api._store
    failures = [MemoryError()]
    monkeypatch.setattr(front.api, "_store", lambda taken: _raise(failures.pop()) if failures else store(taken))
    with front.api:
        first = front.send()
        while failures:
            pass
        assert front.send().wait().status == 202
        front.pass_time(11.0)
        assert code_of(first.answers[0]) == (503, "queue.slow")


def _raise(error: BaseException) -> None:
    raise error
