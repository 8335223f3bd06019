"""What clients hear of failures on the service's machine."""

import pytest

from headrace.base.errors import QueueUnavailable
from headrace.base.records import Outcome, OutcomeKind
from headrace.serve.door import Ended, Work
from headrace.serve.http.routes import Routes
from headrace.serve.queue_api import QueueApi
from headrace.serve.service import ServeSettings, tells_failures
from headrace.serve.source import RequestSource
from headrace.testing import MemoryQueue
from tests.unit.serve.asking import Asker, Later

RAISED = "process: item {id}: ValueError: no row 7 (/srv/app/jobs.py:5) (delivery 1 of 1)"
REFUSED = "decode: item {id}: decode.corrupt: the image ends early"


def end(reason: str, *, job_id: str = "a", tells: bool) -> Ended:
    """Return what is told of a job that ended for a reason."""
    source, ended = RequestSource(), []
    source.tells_failures = tells
    job = source.put(job_id, Work(payload=b"x", on_end=ended.append))
    job.settle(Outcome(OutcomeKind.DEAD_LETTERED, reason.format(id=job_id)))
    return ended[0]


def test_strangers_learn_only_the_jobs_id_of_a_failure() -> None:
    """Neither file nor line nor what was raised; a neighbour learns all of it."""
    told = end(RAISED, tells=False)
    assert (told.status, told.code) == (500, "serve.failed")
    assert told.reason == "the pipeline failed at this item; the server's log says why (job a)"
    assert "/srv/app/jobs.py:5" in end(RAISED, tells=True).reason


def test_what_the_client_did_is_told_to_all() -> None:
    """A refusal of what was sent helps the client, and says nothing of the server."""
    told = end(REFUSED, tells=False)
    assert (told.status, told.code) == (422, "decode.corrupt")
    assert "the image ends early" in told.reason


@pytest.mark.parametrize("job_id", ["decode.corrupt: x", "x: decode.corrupt: y", ": item a: decode.corrupt: "])
def test_an_id_that_looks_like_a_code_is_none(job_id: str) -> None:
    """Ids are the client's: they neither turn a failure into a refusal nor uncover it."""
    told = end(RAISED, job_id=job_id, tells=False)
    assert (told.status, told.code) == (500, "serve.failed")
    assert "jobs.py" not in told.reason


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ServeSettings(), True),
        (ServeSettings(host="::1"), True),
        (ServeSettings(host="localhost"), True),
        (ServeSettings(host="0.0.0.0"), False),
        (ServeSettings(host="worker-7.example"), False),
        (ServeSettings(host="0.0.0.0", tells_failures=True), True),
        (ServeSettings(tells_failures=False), False),
    ],
)
def test_loopback_alone_is_told(settings: ServeSettings, expected: bool) -> None:
    """Unless the settings say otherwise."""
    assert tells_failures(settings) is expected


class BrokenQueue(MemoryQueue):
    """Takes nothing."""

    def send(self, *arguments: object, **options: object) -> None:
        """Fail."""
        raise QueueUnavailable("queue.unavailable: no answer from redis://:password@10.0.0.7")


@pytest.mark.parametrize("tells", [True, False])
def test_a_queues_address_is_not_told_to_strangers(tells: bool) -> None:
    """Neither with the answer to a job nor by `/readyz`."""
    routes, asker = Routes(), Asker()
    with QueueApi(BrokenQueue(), 10, Later(), tells_failures=tells) as api:
        api.add_to(routes)
        routes.answer(asker.request("POST", "/v1/jobs", b"x"))
        answers = [asker.wait(), routes.answer(asker.request("GET", "/readyz"))]
    assert [answer.status for answer in answers] == [503, 503]
    assert [b"10.0.0.7" in answer.body for answer in answers] == [tells, tells]
