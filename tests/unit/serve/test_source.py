"""Each request hears exactly once how its job ended, whatever ended it."""

import pytest
from msgspec.structs import replace

from headrace.base.plan import ServePlan, SourcePlan
from headrace.base.records import DELIVERED, Outcome, OutcomeKind
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import FrontDoor, State
from headrace.serve.source import RequestJob, RequestSource
from headrace.testing import FakeClock


class Heard:
    def __init__(self) -> None:
        self.ended: list[Ended] = []

    def work(self, payload: object = b"image", **fields: object) -> Work:
        """Work."""
        return Work(payload=payload, on_end=self.ended.append, **fields)


@pytest.fixture
def clock() -> FakeClock:
    """Clock."""
    return FakeClock()


@pytest.fixture
def source(clock: FakeClock) -> RequestSource:
    """Source."""
    source = RequestSource(clock)
    source.open(SourcePlan())
    return source


def received(source: RequestSource) -> RequestJob:
    """Received."""
    jobs = source.receive(10, 0.0)
    assert len(jobs) == 1
    return jobs[0]


def test_a_result_ends_a_job_once(source: RequestSource) -> None:
    """A result ends a job once."""
    heard = Heard()
    source.put("a", heard.work())
    job = received(source)
    job.result = b"cat"
    job.settle(DELIVERED)
    source.close()
    assert [(one.id, one.result, one.code) for one in heard.ended] == [("a", b"cat", "")]
    assert (source.num_open, source.num_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "reason", "code", "status"),
    [
        (OutcomeKind.REJECTED, "decode: item a: decode.corrupt: no image", "decode.corrupt", 422),
        (OutcomeKind.REJECTED, "fetch: item a: ssrf.address: 10.0.0.1 is private", "ssrf.address", 422),
        (OutcomeKind.REJECTED, "fetch: item a: http.status: 404", "http.status", 424),
        (OutcomeKind.REJECTED, "route: item a: route.task: no module takes it", "route.task", 404),
        (OutcomeKind.REJECTED, "process: item a: order.empty: no photo in it", "order.empty", 422),
        (OutcomeKind.REJECTED, "deliver: item a: result.type: it holds an object", "result.type", 500),
        (OutcomeKind.DEAD_LETTERED, "process: item a: order.empty: no photo in it", "order.empty", 500),
        (OutcomeKind.DEAD_LETTERED, "process: item a: ValueError: no", "serve.failed", 500),
    ],
)
def test_an_error_ends_a_job_with_its_code(
    source: RequestSource, kind: OutcomeKind, reason: str, code: str, status: int
) -> None:
    """An error ends a job with its code."""
    heard = Heard()
    source.put("a", heard.work())
    received(source).settle(Outcome(kind, reason))
    assert [(one.code, one.status, one.reason) for one in heard.ended] == [(code, status, reason)]


def test_a_deadline_ends_a_job_that_a_stage_still_works_on(source: RequestSource, clock: FakeClock) -> None:
    """A deadline ends a job that a stage still works on."""
    heard = Heard()
    source.put("a", heard.work(deadline_ns=clock.now_ns() + 1_000_000_000))
    job = received(source)
    source.tend()
    assert heard.ended == []
    clock.advance(1.1)
    source.tend()
    assert [(one.code, one.status) for one in heard.ended] == [("deadline.passed", 504)]
    job.settle(DELIVERED)
    assert len(heard.ended) == 1


def test_nobody_hears_of_a_job_whose_client_is_gone(source: RequestSource) -> None:
    """Nobody hears of a job whose client is gone."""
    heard = Heard()
    job = source.put("a", heard.work())
    source.drop(job)
    assert received(source).cancelled
    job.settle(Outcome(OutcomeKind.RETURNED, "dropped"))
    assert heard.ended == []


def test_a_job_has_one_try_unless_the_plan_says_more(source: RequestSource, clock: FakeClock) -> None:
    """A job has one try unless the plan says more."""
    once, twice = Heard(), Heard()
    failed = Outcome(OutcomeKind.RETRY, "process: item a: process.flaky: try again", 0.5)
    source.put("a", once.work())
    received(source).settle(failed)
    assert [one.code for one in once.ended] == ["process.flaky"]
    source.open(SourcePlan(max_receives=2))
    source.put("a", twice.work())
    received(source).settle(failed)
    assert twice.ended == []
    clock.advance(0.6)
    source.tend()
    again = received(source)
    assert again.attempt == 2
    again.settle(failed)
    assert [one.code for one in twice.ended] == ["process.flaky"]


def test_the_end_of_the_run_ends_what_waits_and_what_comes_later(source: RequestSource) -> None:
    """The end of the run ends what waits and what comes later."""
    heard = Heard()
    source.put("a", heard.work())
    source.stop()
    source.put("b", heard.work())
    assert [(one.id, one.code, one.status) for one in heard.ended] == [
        ("a", "serve.stopping", 503),
        ("b", "serve.stopping", 503),
    ]


def test_the_door_opens_when_the_run_asks_for_jobs_and_closes_before_its_end(source: RequestSource) -> None:
    """The door opens when the run asks for jobs and closes before its end."""
    door = FrontDoor(source)
    heard = Heard()
    refused = door.submit(heard.work())
    assert isinstance(refused, Refused)
    assert (refused.status, refused.code) == (503, "serve.starting")
    source.receive(1, 0.0)
    assert not isinstance(door.submit(heard.work()), Refused)
    source.stop()
    assert door.state is State.DRAINING
    refused = door.submit(heard.work())
    assert isinstance(refused, Refused)
    assert refused.code == "serve.stopping"


@pytest.mark.parametrize("bounds", [ServePlan(max_requests=2), ServePlan(max_bytes=10)])
def test_the_door_refuses_what_is_beyond_its_bounds(source: RequestSource, bounds: ServePlan) -> None:
    """The door refuses what is beyond its bounds."""
    door, heard = FrontDoor(source, bounds), Heard()
    source.receive(1, 0.0)
    tickets = [door.submit(heard.work(b"12345")) for _ in range(3)]
    assert [isinstance(one, Refused) for one in tickets] == [False, False, True]
    assert tickets[2].status == 429
    tickets[0].cancel()
    assert isinstance(door.submit(heard.work(b"12345")), Refused)  # the run has it still
    source.receive(1, 0.0)[0].settle(Outcome(OutcomeKind.REJECTED, "client.gone: nobody waits"))
    assert not isinstance(door.submit(heard.work(b"12345")), Refused)
    assert door.refused == {"serve.busy": 2}


def test_what_nobody_waits_for_counts_until_the_run_has_dropped_it(source: RequestSource, clock: FakeClock) -> None:
    """Behind a device that hangs jobs pass their deadlines, and hold their memory: the door must not let in others for ever."""
    heard = Heard()
    for name in "abc":
        source.put(name, heard.work(deadline_ns=clock.now_ns() + 1_000_000_000))
    jobs = source.receive(10, 0.0)
    clock.advance(1.1)
    source.tend()
    assert (len(heard.ended), source.num_open, source.num_inside, source.num_bytes) == (3, 0, 3, 15)
    for job in jobs:
        job.settle(Outcome(OutcomeKind.REJECTED, "deadline.passed: late"))
    assert (len(heard.ended), source.num_inside, source.num_bytes) == (3, 0, 0)


def test_a_job_that_is_tried_again_counts_once(source: RequestSource, clock: FakeClock) -> None:
    """Its second try is the same job, and its end makes room."""
    source.open(SourcePlan(max_receives=2))
    heard = Heard()
    source.put("a", heard.work())
    received(source).settle(Outcome(OutcomeKind.RETRY, "failed", 0.0))
    source.tend()
    assert (source.num_open, source.num_inside, source.num_bytes) == (1, 1, 5)
    received(source).settle(DELIVERED)
    assert (len(heard.ended), source.num_inside, source.num_bytes) == (1, 0, 0)


def test_the_door_gives_work_the_default_deadline(source: RequestSource, clock: FakeClock) -> None:
    """It counts from the first byte of the request; one of its own counts alone."""
    door, heard = FrontDoor(source, ServePlan(deadline_seconds=2.0), clock=clock), Heard()
    source.receive(1, 0.0)
    work = heard.work()
    slow_upload = replace(work, received_ns=clock.now_ns() - 500_000_000)
    door.submit(work)
    door.submit(replace(work, deadline_ns=clock.now_ns() + 5))
    door.submit(slow_upload)
    deadlines = [job.deadline_ns - clock.now_ns() for job in source.receive(10, 0.0)]
    assert deadlines == [2_000_000_000, 5, 1_500_000_000]


def test_an_answer_that_cannot_be_made_ends_nothing_else(source: RequestSource) -> None:
    """What fails while one request is answered is logged, and the next one is answered."""
    heard = Heard()

    def fail(ended: Ended) -> None:
        raise UnicodeError("no answer")

    source.put("a", Work(payload=b"1", on_end=fail))
    source.put("b", heard.work())
    for job in source.receive(10, 0.0):
        job.settle(DELIVERED)
    assert [one.id for one in heard.ended] == ["b"]
    assert source.num_open == 0


def test_what_a_stopping_run_gives_back_is_no_failure_of_the_module(source: RequestSource) -> None:
    """Its client may try again: 503, and not 500."""
    heard = Heard()
    source.put("a", heard.work())
    received(source).settle(Outcome(OutcomeKind.RETURNED, "the run was stopped before the job was done"))
    assert [(one.code, one.status) for one in heard.ended] == [("serve.stopping", 503)]


def test_refusals_are_in_the_runs_notes_and_the_services_own_are_not(source: RequestSource) -> None:
    """The service tries itself while it starts; nobody was refused by that."""
    door = FrontDoor(source)
    source.refused = lambda: door.refused
    assert source.notes() == {}
    for is_own in (True, False, False):
        refused = door.submit(Work(payload=b"x", on_end=lambda ended: None, is_own=is_own))
        assert isinstance(refused, Refused)
    assert source.notes() == {"refused.serve.starting": 2}


def test_a_reason_that_is_no_unicode_ends_as_one_that_is(source: RequestSource) -> None:
    """It comes from the user's exception, and is kept and sent in ways that know Unicode alone."""
    heard = Heard()
    source.put("a", heard.work())
    received(source).settle(Outcome(OutcomeKind.DEAD_LETTERED, "process: item a: ValueError: \ud800"))
    assert heard.ended[0].reason.encode() == b"process: item a: ValueError: \\ud800"
