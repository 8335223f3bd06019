"""The SQS queue on a moto server: conformance, never speed. moto deletes with old receipts, as SQS may."""

import functools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import boto3
import pytest

import headrace as hr
from headrace.base.errors import QueueUnavailable, SourceError
from headrace.base.plan import SourcePlan
from headrace.base.protocols import STALE, Queue
from headrace.base.records import Burial, DeadLetter, Postponed
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.testing import Receiver, Reply
from headrace.testing.conformance import QueueConformance

pytestmark = pytest.mark.real_clock


@pytest.fixture(scope="module")
def client(sqs_server: str) -> Iterator[Any]:
    """Return a client that makes queues, and give every queue of this file the credentials that it has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        client = boto3.session.Session().client("sqs", region_name="eu-west-1", endpoint_url=sqs_server)
        yield client
        client.close()


@pytest.fixture
def queue_name(client: Any) -> str:
    """Make a queue that no other test uses."""
    name = uuid.uuid4().hex
    client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "7"})
    return name


class TestSqsQueue(QueueConformance):
    wait_seconds = 1.0

    @pytest.fixture
    def make_queue(self, sqs_server: str, queue_name: str) -> Callable[[], Queue]:
        """Open the same queue each time."""
        address = f"sqs://{queue_name}?region=eu-west-1&endpoint={sqs_server}"
        return lambda: open_queue(address, visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def put_malformed(self, client: Any, queue_name: str) -> Sequence[Callable[[], object]]:
        """Send bodies that are not what their attributes say."""
        url = client.get_queue_url(QueueName=queue_name)["QueueUrl"]
        base64 = {"headrace.encoding": {"DataType": "String", "StringValue": "base64"}}
        return [
            functools.partial(client.send_message, QueueUrl=url, MessageBody=body, MessageAttributes=base64)
            for body in ("a", "!!!!", "grün", "====")
        ]

    def test_an_id_of_strangers_is_not_believed(self, queue: Queue, client: Any, queue_name: str) -> None:
        """Three jobs with one and the same id in their attributes, copied from a message of ours or made up, are three."""
        url = client.get_queue_url(QueueName=queue_name)["QueueUrl"]
        queue.send([b"ours"])
        (ours,) = self.take(queue, 1)
        assert queue.postpone([Postponed(ours, 0.0, b"")]) == {}
        (raw,) = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"], VisibilityTimeout=0)["Messages"]
        assert raw["MessageAttributes"]["headrace.id"]["StringValue"] == ours.id
        for body in ("one", "two"):
            client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=raw["MessageAttributes"])
        made_up = {"headrace.id": {"DataType": "String", "StringValue": ours.id}}
        client.send_message(QueueUrl=url, MessageBody="three", MessageAttributes=made_up)
        ids = {message.body: message.id for message in self.take(queue, 4)}
        assert ids[b"ours"] == ours.id
        assert len(set(ids.values())) == 4

    def test_a_foreign_letter_is_shown(self, queue: Queue, client: Any, queue_name: str) -> None:
        """A letter that somebody else sent, or SQS moved with a stranger's attributes, is shown with what it has."""
        dead_url = client.create_queue(QueueName=f"{queue_name}-dead")["QueueUrl"]
        odd = {
            "headrace.receive_count": {"DataType": "String", "StringValue": "many"},
            "headrace.encoding": {"DataType": "String", "StringValue": "base64"},
            "headrace.kept": {"DataType": "String", "StringValue": "text"},
        }
        client.send_message(QueueUrl=dead_url, MessageBody="!!", MessageAttributes=odd)
        (letter,) = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert (letter.body, letter.kept) == (b"!!", b"")
        assert "moved by SQS" in letter.reason
        assert queue.redrive() == 1

    def test_the_success_of_a_late_delete_is_not_believed(self, queue: Queue) -> None:
        """When the loan ran out, ack says STALE although the service answers success."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        self.wait_out_loan()
        assert queue.ack([message.receipt]) == {message.receipt: STALE}


def test_the_queue_says_how_long_loans_are(sqs_server: str, queue_name: str) -> None:
    """Without a visibility timeout of ours, the queue's own counts."""
    queue = open_queue(f"sqs://{queue_name}?region=eu-west-1&endpoint={sqs_server}")
    assert queue.visibility_seconds == 7
    queue.close()


def test_the_whole_url_is_an_address(sqs_server: str, queue_name: str, client: Any) -> None:
    """A queue can be opened by the URL that SQS itself gives it."""
    url = client.get_queue_url(QueueName=queue_name)["QueueUrl"]
    queue = open_queue(f"{url}?region=eu-west-1")
    queue.send([b"x"])
    assert queue.name == url
    assert len(queue.receive(1)) == 1
    queue.close()


def test_a_redrive_policy_names_the_dead_letter_queue(sqs_server: str, queue_name: str, client: Any) -> None:
    """Dead letters go where the queue's RedrivePolicy says, and no other queue is made."""
    dead_url = client.create_queue(QueueName=f"{queue_name}-graveyard")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    client.set_queue_attributes(
        QueueUrl=client.get_queue_url(QueueName=queue_name)["QueueUrl"],
        Attributes={"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 50})},
    )
    queue = open_queue(f"sqs://{queue_name}?region=eu-west-1&endpoint={sqs_server}")
    queue.send([b"x"])
    (message,) = queue.receive(1, wait_seconds=1)
    assert queue.dead_letter([Burial(message, "test")]) == {}
    queue.close()
    (raw,) = client.receive_message(QueueUrl=dead_url, MessageAttributeNames=["All"])["Messages"]
    assert raw["MessageAttributes"]["headrace.reason"]["StringValue"] == "test"
    assert len(client.list_queues(QueueNamePrefix=queue_name)["QueueUrls"]) == 2


@pytest.mark.parametrize(("most", "is_said"), [(2, True), (5, True), (6, False)])
def test_a_redrive_policy_that_comes_first_is_said(
    sqs_server: str, queue_name: str, client: Any, caplog: pytest.LogCaptureFixture, most: int, is_said: bool
) -> None:
    """Where SQS would move messages away before headrace gives them up with a reason, opening says so, and what to do."""
    dead_url = client.create_queue(QueueName=f"{queue_name}-graveyard")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    client.set_queue_attributes(
        QueueUrl=client.get_queue_url(QueueName=queue_name)["QueueUrl"],
        Attributes={"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": str(most)})},
    )
    source = QueueSource(f"sqs://{queue_name}?region=eu-west-1&endpoint={sqs_server}", max_receives=5)
    source.open(SourcePlan())
    source.close()
    assert (f"after {most} deliveries, without a reason" in caplog.text) is is_said
    assert ("raise its maxReceiveCount above 5" in caplog.text) is is_said


def test_a_missing_queue_is_named(sqs_server: str, client: Any) -> None:
    """A queue that does not exist is a SourceError with its name, not an outage."""
    with pytest.raises(SourceError, match="no-such-queue") as raised:
        open_queue(f"sqs://no-such-queue?region=eu-west-1&endpoint={sqs_server}")
    assert not isinstance(raised.value, QueueUnavailable)


def test_a_message_too_large_is_refused_here(sqs_server: str, queue_name: str) -> None:
    """A body beyond the queue's limit is a ValueError that names both sizes."""
    queue = open_queue(f"sqs://{queue_name}?region=eu-west-1&endpoint={sqs_server}")
    with pytest.raises(ValueError, match="2000000 bytes"):
        queue.send([b"x" * 2_000_000])
    queue.close()


def test_a_message_that_fills_its_queue_dies_and_comes_back(client: Any, sqs_server: str) -> None:
    """Where the body leaves no room for a reason, the message is moved without one rather than never."""
    name = uuid.uuid4().hex
    client.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})
    queue = open_queue(f"sqs://{name}?region=eu-west-1&endpoint={sqs_server}")
    queue.send([b"x" * 1024])
    (message,) = queue.receive(1, wait_seconds=1)
    assert queue.dead_letter([Burial(message, "no image")]) == {}
    assert [letter.body for letter in queue.peek(1, dead=True)] == [message.body]
    assert queue.redrive() == 1
    assert queue.receive(1, wait_seconds=1)[0].body == message.body
    queue.close()


def test_a_result_too_large_for_its_queue_is_given_up_in_time(client: Any, sqs_server: str) -> None:
    """A job whose result does not fit beside it is worked on again, but no longer than `give_up_seconds` allow."""
    name = uuid.uuid4().hex
    client.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})
    address = f"sqs://{name}?region=eu-west-1&endpoint={sqs_server}"
    queue = open_queue(address)
    with Receiver(lambda call: Reply(500)) as receiver:
        queue.send([encode_job(b"x", callback=receiver.url)])
        pipeline = hr.Pipeline(
            hr.queue(address), stages=[hr.stage("work", lambda job: "y" * 2000)], delivery=hr.callback()
        )
        options = {"give_up_seconds": 0.5, "postpone_max_seconds": 0.2}
        plan = {"network": {"allow": ["127.0.0.1"]}, "stages": {"deliver": {"workers": 1, "options": options}}}
        result = hr.run(pipeline, hr.Plan.from_table(plan), limit=2)
    (letter,) = queue.peek(1, dead=True)
    queue.close()
    assert "given up after 0.5 s: give_up_seconds" in letter.reason
    assert (result.counters.retried, result.counters.dead_lettered) == (1, 1)
