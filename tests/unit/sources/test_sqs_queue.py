"""What SQS may answer and no local server does: partial failures, throttling, the twelve-hour limit."""

import time
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from headrace.base.errors import QueueRefused, QueueUnavailable, SettingsError
from headrace.base.in_flight import InFlight, InFlightTable
from headrace.base.plan import SourcePlan
from headrace.base.policies.blame import BlameBook
from headrace.base.protocols import FINAL, STALE
from headrace.base.records import Burial, Message, Postponed
from headrace.base.worker_slot import WorkerSlot
from headrace.sources.queue_source import QueueSource
from headrace.sources.sqs_queue import ATTRIBUTE_BYTES, SqsQueue, make_clients

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/photos"


class Bench:
    """An SqsQueue of which the service's answers are scripted."""

    def __init__(self) -> None:
        clients = make_clients("eu-west-1", None)
        self.stubs = [Stubber(client) for client in clients]
        self.calls, self.polls = self.stubs
        for stub in self.stubs:
            stub.activate()
        self.answer("get_queue_attributes", Attributes={"VisibilityTimeout": "30", "MaximumMessageSize": "1048576"})
        self.queue = SqsQueue(URL, clients=clients, parallel_calls=1)  # in order, as the answers are scripted

    def answer(self, method: str, **answer: Any) -> None:
        """Script the answer to the next call."""
        self.calls.add_response(method, answer)

    def received(self, *ids: str) -> list[str]:
        """Receive messages and return their receipts."""
        messages = [
            {
                "MessageId": id_,
                "ReceiptHandle": f"r-{id_}",
                "Body": "x",
                "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1000"},
            }
            for id_ in ids
        ]
        self.polls.add_response("receive_message", {"Messages": messages})
        return [message.receipt for message in self.queue.receive(10)]

    def done(self) -> None:
        """Check that every scripted answer was used."""
        for stub in self.stubs:
            stub.assert_no_pending_responses()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a queue with scripted answers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    bench = Bench()
    yield bench
    bench.queue.close()
    bench.done()


def failed(number: int, code: str, *, sender: bool, message: str = "") -> dict[str, Any]:
    """Return one entry of a batch's `Failed`."""
    return {"Id": str(number), "Code": code, "SenderFault": sender, "Message": message}


def test_a_partial_failure_is_tried_once_more(bench: Bench) -> None:
    """An entry that the service failed with a passing error is tried once more, alone."""
    receipts = bench.received("a", "b")
    bench.answer("delete_message_batch", Failed=[failed(1, "InternalError", sender=False)], Successful=[{"Id": "0"}])
    bench.calls.add_response(
        "delete_message_batch",
        {"Successful": [{"Id": "0"}], "Failed": []},
        {"QueueUrl": URL, "Entries": [{"Id": "0", "ReceiptHandle": "r-b"}]},
    )
    assert bench.queue.ack(receipts) == {}


def test_a_lasting_failure_is_told_and_can_be_tried_again(bench: Bench) -> None:
    """What fails twice is told with its code; the loan stays ours and a later ack succeeds."""
    receipts = bench.received("a", "b")
    for number in (1, 0):
        bench.answer(
            "delete_message_batch",
            Failed=[failed(number, "RequestThrottled", sender=True, message="slow down")],
            Successful=[],
        )
    assert bench.queue.ack(receipts) == {"r-b": "RequestThrottled: slow down"}
    bench.answer("delete_message_batch", Successful=[{"Id": "0"}], Failed=[])
    assert bench.queue.ack(["r-b"]) == {}


def test_a_refused_receipt_is_stale(bench: Bench) -> None:
    """A receipt that SQS calls invalid is STALE and not tried again."""
    receipts = bench.received("a")
    bench.answer("delete_message_batch", Failed=[failed(0, "ReceiptHandleIsInvalid", sender=True)], Successful=[])
    assert bench.queue.ack(receipts) == {"r-a": STALE}


def test_the_end_of_twelve_hours_is_not_stale(bench: Bench) -> None:
    """An extension beyond twelve hours fails with SQS's words: the message is still ours until then."""
    receipts = bench.received("a")
    text = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    refusal = failed(0, "InvalidParameterValue", sender=True, message=text)
    bench.answer("change_message_visibility_batch", Failed=[refusal], Successful=[])
    assert bench.queue.extend(receipts, 60) == {"r-a": f"{FINAL}InvalidParameterValue: {text}"}


def test_a_second_delivery_makes_the_first_stale(bench: Bench) -> None:
    """When a message comes again before its loan ran out, as SQS may, only the latest receipt counts."""
    messages = [
        {"MessageId": "a", "ReceiptHandle": receipt, "Body": "x", "Attributes": {}} for receipt in ("first", "second")
    ]
    for message in messages:
        bench.polls.add_response("receive_message", {"Messages": [message]})
        bench.queue.receive(10)
    bench.answer("change_message_visibility_batch", Successful=[{"Id": "0"}], Failed=[])
    assert bench.queue.extend(["first", "second"], 30) == {"first": STALE}


def test_an_outage_of_one_slice_is_a_partial_failure(bench: Bench) -> None:
    """When some of a batch's calls are not answered, their receipts are told; the others were carried out."""
    first, second = bench.received(*"abcdefghij"), bench.received("k")
    bench.answer("delete_message_batch", Successful=[{"Id": str(number)} for number in range(10)], Failed=[])
    bench.calls.add_client_error("delete_message_batch", "ServiceUnavailable", "later")
    failures = bench.queue.ack(first + second)
    assert list(failures) == ["r-k"]
    assert "ServiceUnavailable" in failures["r-k"]


def test_after_a_slice_that_is_not_answered_no_other_is_sent(bench: Bench) -> None:
    """A silent service costs the wait of one call, not of as many as there are slices."""
    receipts = [receipt for start in "abc" for receipt in bench.received(*(f"{start}{n}" for n in range(10)))]
    asked: list[str] = []
    bench.calls.client.meta.events.register_first(
        "provide-client-params.sqs", lambda model, **_: asked.append(model.name)
    )
    bench.calls.add_client_error("change_message_visibility_batch", "ServiceUnavailable", "later")
    with pytest.raises(QueueUnavailable, match="ServiceUnavailable"):
        bench.queue.extend(receipts, 30)
    assert asked == ["ChangeMessageVisibilityBatch"]


def test_what_a_dead_process_had_is_settled_by_its_successor(bench: Bench) -> None:
    """Receipts of another process are used: what it had delivered is deleted, the rest is offered again at once."""
    now = time.monotonic()
    orphans = [
        InFlight("a", "r-a", now - 5, in_work=False, delivered=True),
        InFlight("b", "r-b", now - 5, in_work=True, delivered=False),
        InFlight("late", "r-late", now - 31, in_work=True, delivered=False),
    ]
    ours, theirs = Pipe()
    source = QueueSource(bench.queue)
    source.take(WorkerSlot(0, 2, 1, InFlightTable(), BlameBook(), ours, orphans))
    bench.calls.add_response(
        "delete_message_batch",
        {"Successful": [{"Id": "0"}], "Failed": []},
        {"QueueUrl": URL, "Entries": [{"Id": "0", "ReceiptHandle": "r-a"}]},
    )
    bench.calls.add_response(
        "change_message_visibility_batch",
        {"Successful": [{"Id": "0"}], "Failed": []},
        {"QueueUrl": URL, "Entries": [{"Id": "0", "ReceiptHandle": "r-b", "VisibilityTimeout": 0}]},
    )
    asked: list[str] = []
    bench.calls.client.meta.events.register_first(
        "provide-client-params.sqs", lambda model, **_: asked.append(model.name)
    )
    source.open(SourcePlan())
    assert asked == ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"]
    bench.done()  # and their receipts were those of the responses
    source.close()
    ours.close()
    theirs.close()


def test_an_outage_is_unavailable(bench: Bench) -> None:
    """A call that SQS refuses as a whole is QueueUnavailable with its code."""
    bench.polls.add_client_error("receive_message", "AccessDenied", "no")
    with pytest.raises(QueueUnavailable, match="photos: AccessDenied: no"):
        bench.queue.receive(1)


def test_a_send_that_was_half_done_says_so(bench: Bench) -> None:
    """A send of which a part failed twice raises with how many."""
    bench.answer(
        "send_message_batch",
        Successful=[{"Id": "0", "MessageId": "m0", "MD5OfMessageBody": "9dd4e461268c8034f5c8564e155c67a6"}],
        Failed=[failed(1, "InternalError", sender=False)],
    )
    bench.answer("send_message_batch", Successful=[], Failed=[failed(1, "InternalError", sender=False)])
    with pytest.raises(QueueUnavailable, match="1 of 2 messages were not stored: InternalError"):
        bench.queue.send([b"x", b"y"])


def test_batches_fit_by_size(bench: Bench) -> None:
    """Messages that are too large together are sent in several calls."""
    for number in range(2):
        bench.calls.add_response(
            "send_message_batch",
            {"Successful": [{"Id": str(number), "MessageId": f"m{number}", "MD5OfMessageBody": ""}], "Failed": []},
            {"QueueUrl": URL, "Entries": ANY},
        )
    assert bench.queue.send([b"x" * 600_000] * 2) == ["m0", "m1"]


def test_long_delays_are_refused(bench: Bench) -> None:
    """A delay beyond what SQS knows is the caller's mistake."""
    with pytest.raises(ValueError, match="0 to 900 s, got 901"):
        bench.queue.send([b"x"], delay_seconds=901)


def test_fifo_queues_are_refused() -> None:
    """A FIFO queue is refused by its name, before any call."""
    with pytest.raises(SettingsError, match="FIFO"):
        SqsQueue("photos.fifo")


def postponed(receipt: str, kept: bytes = b"{}", brief: bytes = b"", body: bytes = b"body") -> Postponed:
    """A message that goes back with its result."""
    return Postponed(Message(f"id-{receipt}", body, receipt, 1, 0.0), 60.0, kept, brief)


def test_what_was_not_stored_is_not_deleted(bench: Bench) -> None:
    """Of a batch of which one is refused, the others are deleted; the one stays lent and is told."""
    receipts = bench.received("a", "b", "c")
    bench.answer(
        "send_message_batch",
        Successful=[{"Id": number, "MessageId": "new", "MD5OfMessageBody": ""} for number in ("0", "2")],
        Failed=[{"Id": "1", "SenderFault": True, "Code": "SomethingWrong", "Message": "no"}],
    )
    bench.calls.add_response(
        "delete_message_batch",
        {"Successful": [], "Failed": []},
        {
            "QueueUrl": URL,
            "Entries": [{"Id": "0", "ReceiptHandle": "r-a"}, {"Id": "1", "ReceiptHandle": "r-c"}],
        },
    )
    assert bench.queue.postpone([postponed(receipt) for receipt in receipts]) == {"r-b": f"{FINAL}SomethingWrong: no"}
    bench.done()


def test_what_was_stored_is_not_stored_again(bench: Bench) -> None:
    """Where the delete fails it is told, and the next try deletes alone rather than store another copy."""
    (receipt,) = bench.received("a")
    bench.answer("send_message_batch", Successful=[{"Id": "0", "MessageId": "new", "MD5OfMessageBody": ""}], Failed=[])
    bench.calls.add_client_error("delete_message_batch", "OverLimit", http_status_code=403)
    assert "OverLimit" in bench.queue.postpone([postponed(receipt)])[receipt]
    bench.answer("delete_message_batch", Successful=[{"Id": "0"}], Failed=[])
    assert bench.queue.postpone([postponed(receipt)]) == {}
    bench.done()


def test_a_letter_that_was_stored_is_not_stored_again(bench: Bench) -> None:
    """A role that may send and not delete leaves one letter, not one for each try."""
    (receipt,) = bench.received("a")
    bench.answer("get_queue_url", QueueUrl=f"{URL}-dead")
    bench.answer("send_message_batch", Successful=[{"Id": "0", "MessageId": "new", "MD5OfMessageBody": ""}], Failed=[])
    letter = Burial(Message("a", b"x", receipt, 1, 0.0), "no image")
    for _ in range(2):
        bench.calls.add_client_error("delete_message_batch", "AccessDenied", "no")
        assert "AccessDenied" in bench.queue.dead_letter([letter])[receipt]
    bench.done()


def test_letters_of_which_some_are_refused(bench: Bench) -> None:
    """Letters that were stored are deleted here; one that the queue never takes is told as final, and stays."""
    receipts = bench.received("a", "b")
    bench.answer("get_queue_url", QueueUrl=f"{URL}-dead")
    bench.answer(
        "send_message_batch",
        Successful=[{"Id": "1", "MessageId": "new", "MD5OfMessageBody": ""}],
        Failed=[failed(0, "InvalidParameterValue", sender=True, message="too long")],
    )
    bench.calls.add_response(
        "delete_message_batch",
        {"Successful": [{"Id": "0"}], "Failed": []},
        {"QueueUrl": URL, "Entries": [{"Id": "0", "ReceiptHandle": "r-b"}]},
    )
    letters = [Burial(Message(receipt, b"x", receipt, 1, 0.0), "no image") for receipt in receipts]
    assert bench.queue.dead_letter(letters) == {"r-a": f"{FINAL}InvalidParameterValue: too long"}
    bench.done()


def test_a_dead_letter_queue_that_is_deleted_is_looked_for_again(bench: Bench) -> None:
    """A dead-letter queue that is gone refuses its letters, ends nothing, and is made at the next try."""
    (receipt,) = bench.received("a")
    letter = Burial(Message("a", b"x", receipt, 1, 0.0), "no image")
    gone = "AWS.SimpleQueueService.NonExistentQueue"
    bench.answer("get_queue_url", QueueUrl=f"{URL}-dead")
    bench.calls.add_client_error("send_message_batch", gone, "gone")
    with pytest.raises(QueueRefused, match="dead-letter queue"):
        bench.queue.dead_letter([letter])
    bench.calls.add_client_error("get_queue_url", gone, "gone")
    bench.answer("create_queue", QueueUrl=f"{URL}-dead")
    bench.answer("send_message_batch", Successful=[{"Id": "0", "MessageId": "new", "MD5OfMessageBody": ""}], Failed=[])
    bench.answer("delete_message_batch", Successful=[{"Id": "0"}], Failed=[])
    assert bench.queue.dead_letter([letter]) == {}
    bench.done()


def test_no_permission_is_a_refusal_and_throttling_is_not(bench: Bench) -> None:
    """What only a person ends is told apart from what passes."""
    for code, is_refused in (("AccessDenied", True), ("KMS.AccessDenied", True), ("RequestThrottled", False)):
        bench.polls.add_client_error("receive_message", code, "no", http_status_code=403)
        with pytest.raises(QueueUnavailable) as caught:
            bench.queue.receive(1)
        assert isinstance(caught.value, QueueRefused) is is_refused


def test_a_result_that_does_not_fit_is_left_out(bench: Bench) -> None:
    """The job goes back all the same, to be worked on again."""
    (receipt,) = bench.received("a")
    bench.calls.add_response(
        "send_message_batch",
        {"Successful": [{"Id": "0", "MessageId": "new", "MD5OfMessageBody": ""}], "Failed": []},
        {
            "QueueUrl": URL,
            "Entries": [
                {
                    "Id": "0",
                    "MessageBody": "body",
                    "MessageAttributes": {
                        "headrace.id": {"DataType": "String", "StringValue": "id-r-a"},
                        "headrace.digest": {"DataType": "String", "StringValue": ANY},
                    },
                    "DelaySeconds": 60,
                }
            ],
        },
    )
    bench.answer("delete_message_batch", Successful=[], Failed=[])
    assert bench.queue.postpone([postponed(receipt, b"x" * 1_048_576)]) == {}
    bench.done()


@pytest.mark.parametrize("body_bytes", [4, 1_048_576 - ATTRIBUTE_BYTES])
def test_in_the_place_of_a_result_that_does_not_fit_its_history_is_kept(bench: Bench, body_bytes: int) -> None:
    """Since when and how often goes along with any job that has room for attributes, however large the result."""
    (receipt,) = bench.received("a")
    sent: list[Any] = []
    bench.calls.client.meta.events.register_first(
        "provide-client-params.sqs.SendMessageBatch", lambda params, **_: sent.extend(params["Entries"])
    )
    bench.answer("send_message_batch", Successful=[{"Id": "0", "MessageId": "new", "MD5OfMessageBody": ""}], Failed=[])
    bench.answer("delete_message_batch", Successful=[], Failed=[])
    message = postponed(receipt, b"x" * 1_048_576, b"b" * 256, b"y" * body_bytes)
    assert bench.queue.postpone([message]) == {}
    assert sent[0]["MessageAttributes"]["headrace.kept"]["BinaryValue"] == b"b" * 256


@pytest.mark.parametrize(
    "code", ["RequestThrottled", "OverLimit", "ExpiredToken", "InvalidClientTokenId", "KmsThrottled", "InternalFailure"]
)
def test_a_refusal_of_the_whole_call_is_unavailable(bench: Bench, code: str) -> None:
    """Throttled, too many in flight, keys that ran out: something to wait for, named by its code, and no key in it."""
    bench.polls.add_client_error("receive_message", code, "not now", http_status_code=403)
    with pytest.raises(QueueUnavailable, match=f"{code}: not now") as caught:
        bench.queue.receive(1)
    assert "geheim" not in str(caught.value)


def test_a_call_that_outlives_its_queue_is_unavailable(bench: Bench) -> None:
    """Who is still acking when another thread closes the queue is told that it was closed."""
    receipts = bench.received(*"abcdefghij") + bench.received("k")
    bench.queue._pool.shutdown()
    with pytest.raises(QueueUnavailable, match="was closed"):
        bench.queue.ack(receipts)
