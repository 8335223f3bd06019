"""A queue in Amazon SQS (extra `sqs`), standard queues only.

What SQS does that the protocol does not say, and what is done about it here:

- At most ten messages per call: larger batches are cut and sent side by side.
- A batch call answers 200 although entries failed: `Failed` is read; what may pass is tried once more, the rest is told.
- A delete with the receipt of a loan that ran out "succeeds" and may do nothing. We therefore keep the moment at which each
  loan runs out, and answer STALE ourselves. (The delete is sent all the same: it may spare somebody the work.) A receipt
  that this object neither received nor adopted is STALE.
- Whole seconds only: waits and loans are rounded up.
- Text only, of characters that XML allows: other bodies travel as base64, marked by a message attribute.
- No way to look at a message without receiving it: see `SqsQueue.peek`.
- A message's loan ends twelve hours after it began: extensions stop there.

Dead letters go to the queue's own dead-letter queue where its RedrivePolicy names one, else to `NAME-dead`, which is made
with the first dead letter. The reason is a message attribute, so letters that SQS moved itself have none. Moving is a send
and a delete, in this order: a crash between the two leaves the message in both queues rather than in none. So is postponing,
because SQS counts receives for as long as a message lives: afterwards it is a new message with the old id.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headrace.base.errors import MissingExtra, QueueRefused, QueueUnavailable, SettingsError, SourceError
from headrace.base.protocols import FINAL, STALE
from headrace.base.records import Burial, DeadLetter, Message, Postponed, QueueStatistics
from headrace.base.settings import check
from headrace.sources.untrusted import encode_entry, read_guarded

try:
    import boto3
    import botocore.config
    import botocore.exceptions
except ImportError as error:
    raise MissingExtra("a queue in Amazon SQS", "sqs") from error

log = logging.getLogger(__name__)

Part = TypeVar("Part")
Answer = TypeVar("Answer")

MOST_PER_CALL = 10
LONGEST_WAIT_SECONDS = 20
LONGEST_DELAY_SECONDS = 900
LONGEST_LOAN_SECONDS = 43_200
#: What attributes and their names may take of a message's size.
ATTRIBUTE_BYTES = 600
#: Of these, what `Postponed.kept_brief` may take; with an id and an encoding it needs half of them.
BRIEF_BYTES = 256
LONGEST_REASON = 8_000

_NOT_TEXT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STALE_CODES = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidIdFormat")
_PASSING_CODES = ("RequestThrottled", "Throttling", "ThrottlingException", "OverLimit", "KmsThrottled")
#: Refusals of a whole call that only a person ends. Keys that ran out are among them: boto3 renews those that it can.
_REFUSED_CODES = (
    *(
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
    ),
    *("InvalidClientTokenId", "InvalidSecurity", "KmsAccessDenied", "KmsDisabled", "KmsInvalidState", "KmsNotFound"),
    *("KmsOptInRequired", "MissingAuthenticationToken", "MissingParameter", "NotAuthorized", "OptInRequired"),
    *("SignatureDoesNotMatch", "UnrecognizedClientException", "UnsupportedOperation", "InvalidParameterValue"),
)


@dataclass(slots=True)
class _Loan:
    message_id: str
    """Empty where another process received it."""
    expires_at: float
    """time.monotonic()."""
    ends_at: float
    """time.monotonic(); SQS extends no further."""
    is_moved: bool = False
    """It was stored elsewhere and is only to be deleted."""


#: A message to send again: its further attributes, its kept result, and the brief one if that is too large.
_Moved = tuple[Message, dict[str, str], bytes, bytes]


class SqsQueue:
    """A standard queue in Amazon SQS. Thread-safe.

    Args:
        queue: The queue's name or its whole URL.
        region: AWS region; None for what the URL or boto3's own settings say.
        endpoint: Address of the service where it is not Amazon's (LocalStack, moto, a VPC endpoint).
        visibility_seconds: How long a received message stays lent, rounded up; None for the queue's own setting.
        clients: boto3's clients for short calls and for long polls; None for `make_clients(region, endpoint)`.
        parallel_calls: How many calls go side by side when a batch has to be cut; each waits for about 20 ms.

    Raises:
        MissingExtra: On import, if boto3 is not installed.
        SettingsError: If the queue is a FIFO queue, or no region is known.
        SourceError: If the queue does not exist.
        QueueUnavailable: If SQS does not answer or refuses.
    """

    def __init__(
        self,
        queue: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        visibility_seconds: float | None = None,
        clients: tuple[Any, Any] | None = None,
        parallel_calls: int = 4,
    ) -> None:
        if queue.endswith(".fifo"):
            raise SettingsError(f"{queue} is a FIFO queue, which is not supported; use a standard queue")
        if visibility_seconds is not None:
            check(
                0 < visibility_seconds <= LONGEST_LOAN_SECONDS,
                "visibility_seconds",
                visibility_seconds,
                "above 0, up to 43200 (12 h)",
            )
        url, self._queue_name, region, endpoint = _place(queue, region, endpoint)
        self._client, self._polling_client = clients or make_clients(region, endpoint)
        self._name = url or f"sqs://{self._queue_name}"
        self._pool = ThreadPoolExecutor(parallel_calls, thread_name_prefix="sqs")
        self._lock = threading.Lock()
        self._loans: dict[str, _Loan] = {}
        self._receipt_of: dict[str, str] = {}
        self._prune_at = 1000
        self._dead_url: str | None = None
        self._closed = False
        try:
            self._url = url or self._url_of(self._queue_name)
            self._name = self._url
            attributes = self._attributes("VisibilityTimeout", "MaximumMessageSize", "RedrivePolicy")
        except BaseException:
            self.close()
            raise
        self._redrive_policy = _redrive_policy(attributes)
        self._max_bytes = int(attributes.get("MaximumMessageSize", 262_144))
        own = float(attributes.get("VisibilityTimeout", 30))
        self._visibility_seconds = max(1, math.ceil(own if visibility_seconds is None else visibility_seconds))

    @property
    def name(self) -> str:
        """The queue's URL, which holds no secrets."""
        return self._name

    @property
    def visibility_seconds(self) -> float:
        """Visibility timeout given to each delivery; whole seconds."""
        return float(self._visibility_seconds)

    @property
    def most_receives(self) -> int | None:
        """Deliveries after which SQS moves a message itself, without a reason; None: it does not."""
        return _number(self._redrive_policy.get("maxReceiveCount")) or None

    @property
    def idle_wait_seconds(self) -> float:
        """How long to wait for a message while none come: each call costs, and a long one costs as much as a short one."""
        return float(LONGEST_WAIT_SECONDS)

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages and return their ids in order; the delay is rounded up to whole seconds, 900 at most.

        Raises:
            ValueError: If a body is empty or larger than the queue allows, or the delay is longer.
            QueueUnavailable: If SQS did not store all of them; says how many it did.
        """
        if not 0 <= delay_seconds <= LONGEST_DELAY_SECONDS:
            raise ValueError(f"SQS delays messages by 0 to {LONGEST_DELAY_SECONDS} s, got {delay_seconds}")
        entries = [self._entry(body, {}) | {"DelaySeconds": math.ceil(delay_seconds)} for body in bodies]
        return self._send(self._url, entries)

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages; wait for the first, rounded up to whole seconds."""
        give_up_at = time.monotonic() + wait_seconds
        messages: list[Message] = []
        while True:
            left = give_up_at - time.monotonic()
            wait = 0 if messages else min(LONGEST_WAIT_SECONDS, max(0, math.ceil(left)))
            most = min(MOST_PER_CALL, max_messages - len(messages))
            try:
                raw = self._receive(self._url, most, self._visibility_seconds, wait, self._polling_client)
            except QueueUnavailable:
                if messages:  # what was lent is ours; the next call tells what is wrong
                    return messages
                raise
            messages += [_convert_message(one, receipt=one["ReceiptHandle"]) for one in raw]
            enough = len(messages) >= max_messages or len(raw) < most
            if (messages and enough) or (not messages and time.monotonic() >= give_up_at):
                return messages

    def adopt(self, lent_at: Mapping[str, float]) -> None:
        """Take over the receipts that another process received; see `protocols.AdoptsLoans`."""
        with self._lock:
            for receipt, at in lent_at.items():
                self._loans[receipt] = _Loan("", at + self._visibility_seconds, at + LONGEST_LOAN_SECONDS)

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good; STALE also for those whose loan ran out, whatever SQS answers."""
        with self._lock:
            known = [receipt for receipt in dict.fromkeys(receipts) if receipt in self._loans]
        late = self._stale(receipts)
        failures = self._batch("delete_message_batch", known, {})
        self._forget(receipt for receipt in known if failures.get(receipt, STALE) == STALE)
        return failures | dict.fromkeys(late, STALE)

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay, rounded up to whole seconds; SQS counts them as in flight until then."""
        seconds = min(LONGEST_LOAN_SECONDS, math.ceil(delay_seconds))
        failures = self._change_visibility(receipts, seconds)
        self._forget(receipt for receipt in receipts if failures.get(receipt, STALE) == STALE)
        return failures

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now, but not beyond twelve hours from receipt."""
        whole = max(1, math.ceil(seconds))
        asked_at = time.monotonic()
        failures = self._change_visibility(receipts, whole)
        with self._lock:
            for receipt in receipts:
                loan = self._loans.get(receipt)
                if receipt not in failures and loan is not None:
                    loan.expires_at = min(asked_at + whole, loan.ends_at)
        self._forget(receipt for receipt, reason in failures.items() if reason == STALE)
        return failures

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Send copies of messages with delays up to 900 s, and delete the originals; see `protocols.Queue.postpone`."""
        return self._move(
            self._url,
            [(one.message, {}, one.kept, one.kept_brief) for one in postponed],
            [{"DelaySeconds": min(LONGEST_DELAY_SECONDS, math.ceil(one.delay_seconds))} for one in postponed],
        )

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Send messages with their reasons to the dead-letter queue, and delete them here."""
        if not burials:
            return {}
        try:
            return self._move(
                self._dead(make=True),
                [(one.message, _cause(one), one.kept, b"") for one in burials],
                [{}] * len(burials),
            )
        except QueueUnavailable:
            raise
        except SourceError as error:  # gone since it was looked up: looked for again, or made, at the next try
            self._dead_url = None
            raise QueueRefused(f"the dead-letter queue of {self._name} is gone: {error}") from error

    def _move(self, url: str, parts: Sequence[_Moved], extra: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Send copies of messages and delete the originals; return the failures.

        One that was stored and could not be deleted is not stored again while its loan lasts, and is there twice afterwards.
        """
        receipts = [message.receipt for message, *_ in parts]
        failures = dict.fromkeys(self._stale(receipts), STALE)
        with self._lock:
            stored = [receipt for receipt in receipts if receipt in self._loans and self._loans[receipt].is_moved]
        entries: dict[str, dict[str, Any]] = {}
        for (message, attributes, kept, brief), its in zip(parts, extra, strict=True):
            if message.receipt in failures or message.receipt in stored:
                continue
            try:
                attributes = _identity(message) | attributes
                entries[message.receipt] = self._entry_as_fits(message.body, attributes, kept, brief) | its
            except ValueError as error:
                failures[message.receipt] = f"{FINAL}{error}"
        stored += self._store(url, entries, failures)
        return failures | self._delete_moved(stored)

    def _store(self, url: str, entries: dict[str, dict[str, Any]], failures: dict[str, str]) -> list[str]:
        """Send entries and return the receipts of those stored; note why others were not."""
        receipts = list(entries)
        batches = list(_split_batches(list(entries.values()), self._max_bytes))
        stored: list[str] = []
        errors = []
        for batch, future in zip(
            batches, self._side_by_side(lambda one: self._try_ten(url, one), batches), strict=True
        ):
            try:
                done, why = future.result()
            except QueueUnavailable as error:
                errors.append(error)
                done, why = {}, {number: f"not answered: {error}" for number, _ in batch}
            stored += [receipts[number] for number in done]
            failures.update((receipts[number], reason) for number, reason in why.items())
        if errors and len(errors) == len(batches):
            raise errors[0]
        return stored

    def _delete_moved(self, receipts: list[str]) -> dict[str, str]:
        with self._lock:
            for receipt in receipts:
                if receipt in self._loans:
                    self._loans[receipt].is_moved = True
        try:
            return self.ack(receipts)
        except QueueUnavailable as error:
            return dict.fromkeys(receipts, f"it was moved, but not deleted: {error}")

    def statistics(self) -> QueueStatistics:
        """Return SQS's approximate counts, which lag behind by up to a minute; SQS does not tell the oldest age."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        found = self._attributes(*names)
        visible, in_flight, delayed = (int(found.get(name, 0)) for name in names)
        return QueueStatistics(
            visible=visible, in_flight=in_flight, delayed=delayed, dead=self._num_dead(), oldest_age_seconds=None
        )

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages, or dead letters. SQS cannot look without receiving: each look counts as a delivery.

        They are received with a visibility timeout of zero, so nobody has to wait for them, but their receive count
        rises, and a queue with a RedrivePolicy moves a message that was looked at too often.
        """
        url = self._dead(make=False) if dead else self._url
        if not url:
            return []
        found: dict[str, dict[str, Any]] = {}
        # The same messages may come again and again: three calls without a new one end it.
        num_barren = 0
        while len(found) < max_messages and num_barren < 3:
            before = len(found)
            for raw in self._receive(url, min(MOST_PER_CALL, max_messages), 0, 0, self._client):
                found.setdefault(raw["MessageId"], raw)
            num_barren = num_barren + 1 if len(found) == before else 0
        chosen = list(found.values())[:max_messages]
        return [_letter(raw) for raw in chosen] if dead else [_convert_message(raw, receipt="") for raw in chosen]

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move dead letters back with a receive count of zero and return how many; at least once, like a send."""
        url = self._dead(make=False)
        moved = 0
        while url and (max_messages is None or moved < max_messages):
            most = MOST_PER_CALL if max_messages is None else min(MOST_PER_CALL, max_messages - moved)
            # A minute hides them from other redrives; the wait asks all of SQS's servers.
            letters = self._receive(url, most, 60, 1, self._client)
            if not letters:
                break
            messages = [_convert_message(raw, receipt="") for raw in letters]
            entries = [
                self._entry_as_fits(message.body, _identity(message), b"" if rework else message.kept)
                for message in messages
            ]
            self._send(self._url, entries)
            with self._translate_errors():
                answer = self._client.delete_message_batch(
                    QueueUrl=url,
                    Entries=[{"Id": str(i), "ReceiptHandle": raw["ReceiptHandle"]} for i, raw in enumerate(letters)],
                )
            if answer.get("Failed"):
                raise QueueUnavailable(f"{url}: {len(answer['Failed'])} redriven letters are still there, too")
            moved += len(letters)
        return moved

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, or all dead letters, and return about how many; SQS allows it once a minute."""
        url = self._dead(make=False) if dead else self._url
        if not url:
            return 0
        state = self.statistics()
        with self._translate_errors():
            self._client.purge_queue(QueueUrl=url)
        if not dead:
            with self._lock:
                self._loans.clear()
                self._receipt_of.clear()
        return state.dead if dead else state.visible + state.in_flight + state.delayed

    def close(self) -> None:
        """Release connections; messages in flight come back after their visibility timeout."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._polling_client.close()

    def _receive(self, url: str, most: int, visibility: int, wait: int, client: Any) -> list[dict[str, Any]]:
        before = time.monotonic()
        with self._translate_errors():
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=most,
                VisibilityTimeout=visibility,
                WaitTimeSeconds=wait,
                # MessageSystemAttributeNames is the newer word; boto3 before 1.34.128 does not know it.
                AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
                MessageAttributeNames=["All"],
            )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        if messages and url == self._url and visibility:
            # The loans began when SQS took the messages: before the answer came, but after a long wait began.
            began = max(before, time.monotonic() - min(1.0, 0.05 * visibility))
            self._enter(messages, began, visibility)
        return messages

    def _enter(self, messages: list[dict[str, Any]], began: float, visibility: int) -> None:
        with self._lock:
            if len(self._loans) > self._prune_at:
                now = time.monotonic()
                self._loans = {receipt: loan for receipt, loan in self._loans.items() if loan.expires_at > now - 600}
                self._receipt_of = {loan.message_id: receipt for receipt, loan in self._loans.items()}
                self._prune_at = max(1000, 2 * len(self._loans))
            for raw in messages:
                receipt, id_ = raw["ReceiptHandle"], raw["MessageId"]
                earlier = self._receipt_of.get(id_)
                if earlier is not None and earlier in self._loans:
                    self._loans[earlier].expires_at = -math.inf  # SQS takes the latest receipt only
                self._receipt_of[id_] = receipt
                self._loans[receipt] = _Loan(id_, began + visibility, began + LONGEST_LOAN_SECONDS)

    def _stale(self, receipts: Sequence[str]) -> list[str]:
        now = time.monotonic()
        with self._lock:
            return [
                receipt
                for receipt in dict.fromkeys(receipts)
                if (loan := self._loans.get(receipt)) is None or loan.expires_at <= now
            ]

    def _forget(self, receipts: Iterator[str]) -> None:
        with self._lock:
            for receipt in receipts:
                loan = self._loans.pop(receipt, None)
                if loan is not None and self._receipt_of.get(loan.message_id) == receipt:
                    del self._receipt_of[loan.message_id]

    def _change_visibility(self, receipts: Sequence[str], seconds: int) -> dict[str, str]:
        stale = dict.fromkeys(self._stale(receipts), STALE)
        now = time.monotonic()
        good: dict[str, dict[str, Any]] = {}
        with self._lock:
            for receipt in receipts:
                if receipt not in stale:
                    left = max(0, math.floor(self._loans[receipt].ends_at - now))
                    good[receipt] = {"VisibilityTimeout": min(seconds, left)}
        return self._batch("change_message_visibility_batch", list(good), good) | stale

    def _batch(self, method: str, receipts: list[str], extra: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Call for all receipts, ten at a time and side by side, and return the failures."""
        slices = [receipts[start : start + MOST_PER_CALL] for start in range(0, len(receipts), MOST_PER_CALL)]
        if len(slices) <= 1:
            return self._batch_of_ten(method, slices[0], extra) if slices else {}
        failures: dict[str, str] = {}
        errors = []
        futures = self._side_by_side(lambda part: self._batch_of_ten(method, part, extra), slices)
        for part, future in zip(slices, futures, strict=True):
            try:
                failures |= future.result()
            except QueueUnavailable as error:
                errors.append(error)
                failures |= dict.fromkeys(part, f"not answered: {error}")
        if len(errors) == len(slices):
            raise errors[0]
        return failures

    def _batch_of_ten(self, method: str, receipts: list[str], extra: dict[str, dict[str, Any]]) -> dict[str, str]:
        failures = {}
        again = receipts
        for is_last in (False, True):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt, **extra.get(receipt, {})}
                for number, receipt in enumerate(again)
            ]
            with self._translate_errors():
                answer = getattr(self._client, method)(QueueUrl=self._url, Entries=entries)
            passing = []
            for failed in answer.get("Failed", []):
                receipt = again[int(failed["Id"])]
                if _may_pass(failed) and not is_last:
                    passing.append(receipt)
                else:
                    failures[receipt] = _reason(failed)
            again = passing
            if not again:
                break
        return failures

    def _send(self, url: str, entries: list[dict[str, Any]]) -> list[str]:
        """Send entries in batches that fit by number and size; return the ids in order."""
        ids: dict[int, str] = {}
        batches = list(_split_batches(entries, self._max_bytes))
        if len(batches) == 1:
            ids |= self._send_ten(url, batches[0])
        else:
            futures = self._side_by_side(lambda batch: self._send_ten(url, batch), batches)
            errors = []
            for future in futures:
                try:
                    ids |= future.result()
                except QueueUnavailable as error:
                    errors.append(error)
            if errors:
                raise QueueUnavailable(f"{len(ids)} of {len(entries)} messages were stored; {errors[0]}") from errors[0]
        return [ids[number] for number in range(len(entries))]

    def _send_ten(self, url: str, batch: list[tuple[int, dict[str, Any]]]) -> dict[int, str]:
        stored, why = self._try_ten(url, batch)
        if why:
            reason = next(iter(why.values())).removeprefix(FINAL)
            raise QueueUnavailable(f"{url}: {len(why)} of {len(batch)} messages were not stored: {reason}")
        return stored

    def _try_ten(self, url: str, batch: list[tuple[int, dict[str, Any]]]) -> tuple[dict[int, str], dict[int, str]]:
        """Send what fits one call; return the ids of those stored, and why others were not, by their numbers."""
        stored: dict[int, str] = {}
        again = dict(batch)
        failed: list[dict[str, Any]] = []
        for _ in range(2):
            with self._translate_errors():
                answer = self._client.send_message_batch(
                    QueueUrl=url, Entries=[{"Id": str(number), **entry} for number, entry in again.items()]
                )
            for one in answer.get("Successful", []):
                del again[int(one["Id"])]
                stored[int(one["Id"])] = one["MessageId"]
            failed = answer.get("Failed", [])
            if not again or not all(_may_pass(one) for one in failed):
                break
        why = dict.fromkeys(again, "SQS did not say why")
        return stored, why | {int(one["Id"]): _explain_failure(one) for one in failed}

    def _entry(self, body: bytes, attributes: dict[str, str], kept: bytes = b"", brief: bytes = b"") -> dict[str, Any]:
        if not body:
            raise ValueError("SQS takes no empty messages")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if _NOT_TEXT.search(text):
            text = base64.b64encode(body).decode()
            attributes = attributes | {"headrace.encoding": "base64"}
        room = self._max_bytes - len(text.encode()) - (ATTRIBUTE_BYTES if attributes else 0)
        if room < 0:
            raise ValueError(
                f"the message has {len(body)} bytes; {self._name} takes {self._max_bytes}, "
                "with attributes, and base64 where the body is no text"
            )
        if "headrace.reason" in attributes:
            reason = _NOT_TEXT.sub("\ufffd", attributes["headrace.reason"])
            attributes = attributes | {"headrace.reason": reason.encode()[: max(room, 1)].decode(errors="ignore")}
            room -= len(attributes["headrace.reason"].encode())
        typed: dict[str, Any] = {key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()}
        if len(kept) > room:
            log.warning("%s: a result of %d bytes does not fit beside its job; it is left out", self._name, len(kept))
            kept = brief if len(brief) <= BRIEF_BYTES else b""
        if kept:
            typed["headrace.kept"] = {"DataType": "Binary", "BinaryValue": kept}
        return {"MessageBody": text} | ({"MessageAttributes": typed} if typed else {})

    def _entry_as_fits(
        self, body: bytes, attributes: dict[str, str], kept: bytes = b"", brief: bytes = b""
    ) -> dict[str, Any]:
        """Return the entry without its attributes where the body alone fills a message: rather moved without than not."""
        try:
            return self._entry(body, attributes, kept, brief)
        except ValueError:
            log.warning("%s: a message is too large to be moved with %s", self._name, attributes)
            return self._entry(body, {})

    def _attributes(self, *names: str, url: str | None = None) -> dict[str, str]:
        with self._translate_errors():
            answer = self._client.get_queue_attributes(QueueUrl=url or self._url, AttributeNames=list(names))
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    def _num_dead(self) -> int:
        url = self._dead(make=False)
        if not url:
            return 0
        found = self._attributes("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", url=url)
        return sum(int(value) for value in found.values())

    def _dead(self, *, make: bool) -> str:
        """Return the URL of the dead-letter queue, or an empty one when there is none and none is to be made."""
        if self._dead_url is None:
            name, owner = f"{self._queue_name}-dead", None
            if self._redrive_policy:
                *_, owner, name = str(self._redrive_policy["deadLetterTargetArn"]).split(":")
            try:
                self._dead_url = self._url_of(name, owner)
            except QueueUnavailable:
                raise
            except SourceError:
                if not make:
                    return ""
                with self._translate_errors():
                    # Fourteen days, the longest: a dead letter is kept for a person to look at.
                    created = self._client.create_queue(
                        QueueName=name, Attributes={"MessageRetentionPeriod": str(14 * 86_400)}
                    )
                self._dead_url = str(created["QueueUrl"])
        return self._dead_url

    def _url_of(self, name: str, owner: str | None = None) -> str:
        account = {"QueueOwnerAWSAccountId": owner} if owner else {}
        with self._translate_errors():
            return str(self._client.get_queue_url(QueueName=name, **account)["QueueUrl"])

    def _side_by_side(self, call: Callable[[Part], Answer], parts: Sequence[Part]) -> list[Future[Answer]]:
        """Call for each part. Once one is not answered, no other begins: it would only wait as long."""
        if self._closed:
            raise QueueUnavailable(f"{self._name} was closed")
        is_silent = threading.Event()

        def unless_silent(part: Part) -> Answer:
            if is_silent.is_set():
                raise QueueUnavailable(f"{self._name} did not answer the call before")
            try:
                return call(part)
            except QueueUnavailable:
                is_silent.set()
                raise

        try:
            return [self._pool.submit(unless_silent, part) for part in parts]
        except RuntimeError as error:  # closed since by another thread
            raise QueueUnavailable(f"{self._name} was closed") from error

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        if self._closed:
            raise QueueUnavailable(f"{self._name} was closed")
        try:
            yield
        except botocore.exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            text = error.response.get("Error", {}).get("Message", "")
            if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
                raise SourceError(
                    f"the SQS queue {self._name} does not exist in this region and account; make it, or check its name"
                ) from error
            refused = QueueRefused if code.rpartition(".")[2] in _REFUSED_CODES else QueueUnavailable
            raise refused(f"{self._name}: {code}: {text}") from error
        except botocore.exceptions.NoCredentialsError as error:
            raise QueueRefused(
                f"{self._name}: no AWS credentials; boto3 looks for them in the environment, ~/.aws and the machine's role"
            ) from error
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError) as error:
            raise QueueUnavailable(f"{self._name}: {error}") from error


def _place(queue: str, region: str | None, endpoint: str | None) -> tuple[str | None, str, str | None, str | None]:
    """Return the queue's URL (None while only its name is known), name, region and endpoint."""
    if "://" not in queue:
        return None, queue, region, endpoint
    parts = urlsplit(queue)
    name = parts.path.strip("/").split("/")[-1]
    amazon = re.fullmatch(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", parts.hostname or "")
    if amazon:
        return queue, name, region or amazon[1], endpoint
    return queue, name, region, endpoint or f"{parts.scheme}://{parts.netloc}"


def make_clients(region: str | None, endpoint: str | None) -> tuple[Any, Any]:
    """Return a client for short calls and one for long polls, whose sockets may be silent for longer."""
    session = boto3.session.Session()
    clients = []
    for read_timeout in (5, LONGEST_WAIT_SECONDS + 10):
        config = botocore.config.Config(
            connect_timeout=3,
            read_timeout=read_timeout,
            # Few: the loan book tries again, and a heartbeat must not be stuck behind a call for long.
            retries={"mode": "standard", "total_max_attempts": 2},
            max_pool_connections=16,
        )
        try:
            clients.append(session.client("sqs", region_name=region, endpoint_url=endpoint, config=config))
        except botocore.exceptions.NoRegionError:
            raise SettingsError(
                "no AWS region is known; add ?region=eu-west-1 to the address or set AWS_REGION"
            ) from None
        except (ValueError, botocore.exceptions.BotoCoreError) as error:
            raise SettingsError(f"the SQS client cannot be made: {error}") from error
    return clients[0], clients[1]


def _redrive_policy(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the queue's RedrivePolicy; empty where it has none."""
    found = json.loads(attributes.get("RedrivePolicy") or "{}")
    return found if isinstance(found, dict) and "deadLetterTargetArn" in found else {}


def _split_batches(entries: list[dict[str, Any]], max_bytes: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Yield batches of numbered entries, each of at most ten and max_bytes."""
    batch: list[tuple[int, dict[str, Any]]] = []
    size = 0
    for number, entry in enumerate(entries):
        own = len(entry["MessageBody"].encode()) + sum(
            len(key) + len(value.get("BinaryValue") or value["StringValue"].encode()) + 6
            for key, value in entry.get("MessageAttributes", {}).items()
        )
        if batch and (len(batch) == MOST_PER_CALL or size + own > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append((number, entry))
        size += own
    if batch:
        yield batch


def _may_pass(failed: dict[str, Any]) -> bool:
    return not failed.get("SenderFault", False) or _short(failed) in _PASSING_CODES


def _reason(failed: dict[str, Any]) -> str:
    """Return why a receipt's entry failed."""
    # The only InvalidParameterValue of a receipt that is still ours: the loan has lasted twelve hours.
    if _short(failed) in _STALE_CODES and "Total VisibilityTimeout" not in str(failed.get("Message", "")):
        return STALE
    return _explain_failure(failed)


def _explain_failure(failed: dict[str, Any]) -> str:
    return f"{'' if _may_pass(failed) else FINAL}{_short(failed)}: {failed.get('Message', '')}"


def _cause(burial: Burial) -> dict[str, str]:
    """Return the attributes that make a message a dead letter."""
    return {
        "headrace.reason": burial.reason[:LONGEST_REASON] or "no reason given",
        "headrace.receive_count": str(burial.message.receive_count),
    }


def _short(failed: dict[str, Any]) -> str:
    return str(failed.get("Code", "")).rpartition(".")[2]


def _attribute(raw: dict[str, Any], key: str) -> str | None:
    value = raw.get("MessageAttributes", {}).get(key)
    return None if value is None else value.get("StringValue")


def _number(text: object, default: int = 0) -> int:
    """Return a number that somebody wrote, or the default where it is none."""
    try:
        return int(str(text))
    except ValueError:
        return default


def _identity(message: Message) -> dict[str, str]:
    """Return the attributes by which the copy of a message keeps its id."""
    return {"headrace.id": message.id, "headrace.digest": _digest(message.id, message.body)}


def _digest(id_: str, body: bytes) -> str:
    return hashlib.blake2b(id_.encode() + b"\0" + body, digest_size=16).hexdigest()


def _id(raw: dict[str, Any], body: bytes) -> str:
    """Return a message's id: a redriven message is a new one to SQS, and its old id stays the job's idempotency key.

    Any sender can set attributes, and forwarders copy them from one message to the next. An id is therefore believed beside
    the very body that it was written for: two jobs never share one.
    """
    id_ = _attribute(raw, "headrace.id")
    if id_ and _attribute(raw, "headrace.digest") == _digest(id_, body):
        return id_
    return str(raw["MessageId"])


def _read_kept(raw: dict[str, Any]) -> bytes:
    value = raw.get("MessageAttributes", {}).get("headrace.kept")
    return bytes(value.get("BinaryValue", b"")) if value else b""


def _body(raw: dict[str, Any]) -> bytes:
    text = str(raw["Body"])
    if _attribute(raw, "headrace.encoding") != "base64":
        return text.encode()
    body = base64.b64decode(text, validate=True)
    if not body:
        raise binascii.Error("nothing but padding")
    return body


def _convert_message(raw: dict[str, Any], *, receipt: str) -> Message:
    return read_guarded(raw, functools.partial(_read, receipt), functools.partial(_read_malformed, receipt))


def _read(receipt: str, raw: dict[str, Any]) -> Message:
    body = _body(raw)
    return Message(_id(raw, body), body, receipt, _receive_count(raw), _read_sent_time(raw), _read_kept(raw))


def _read_malformed(receipt: str, raw: dict[str, Any], reason: str) -> Message:
    body = encode_entry(raw.get("Body", ""))
    return Message(str(raw["MessageId"]), body, receipt, _receive_count(raw), _read_sent_time(raw), malformed=reason)


def _receive_count(raw: dict[str, Any]) -> int:
    return _number(raw.get("Attributes", {}).get("ApproximateReceiveCount"), 1)


def _read_sent_time(raw: dict[str, Any]) -> float:
    """Return when SQS took the message, Unix seconds."""
    return _number(raw.get("Attributes", {}).get("SentTimestamp")) / 1000


def _letter(raw: dict[str, Any]) -> DeadLetter:
    message = _convert_message(raw, receipt="")
    return DeadLetter(
        message.id,
        message.body,
        _attribute(raw, "headrace.reason") or "moved by SQS: received more often than its RedrivePolicy allows",
        _number(_attribute(raw, "headrace.receive_count"), message.receive_count),
        message.sent_at,
        message.kept,
    )
