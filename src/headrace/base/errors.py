"""Every error that headrace raises, one class per cause, grouped so that a caller can catch a meaning.

HeadraceError
├── SettingsError             a setting cannot be used; nothing has run yet           (also ValueError)
│   └── CheckpointError       a run cannot be resumed as asked, or would go over one that was cut off
├── MissingExtra              an optional package is not installed                    (also ImportError)
├── SourceError               the queue, folder or list cannot be read at all
│   └── QueueUnavailable      the queue service does not answer
│       └── QueueRefused      it answers and refuses: nothing to wait for
├── RunFolderError            a run folder cannot be written or read
├── LedgerError               the ledger cannot be used, or refuses an entry that would not be honest
├── EngineError               a model cannot be opened on this machine
├── DoesNotFit                a run needs more memory than its Plan's `[budget]` has
├── JobsFail                  too many jobs fail to measure how fast they are
├── StageStalled              a stage hangs, and the run cannot go on without the thread that does
├── ResultsRefused            a flush made results durable, but for some that never will be
├── Interrupted               the run was stopped from outside; what was measured is kept
└── ItemError                 concerns one item; the run goes on
    ├── ItemRejected          no retry can help: dead-letter queue, or "rejected" where there is none
    │   ├── BadMessage        the message is not a job
    │   ├── UnknownTask       no module takes this task
    │   ├── FetchRejected     the address or file may not be read, or never will be
    │   ├── DecodeRejected    the bytes are not an image that can be decoded
    │   ├── DeliveryRejected  the receiver answers that it will never take this
    │   └── NotWanted         nobody wants the result any more
    │       ├── DeadlinePassed  the job's deadline passed before the work was done
    │       └── ClientGone    who waited for the answer has gone away
    └── ItemFailed            worth another try
        ├── Crowded           others would have to wait for it: its host, receiver or task has more than its share
        ├── FetchFailed       the download failed for now
        │   └── FetchPostponed its server is left alone for a while
        ├── DeliveryFailed    the result could not be delivered for now
        │   └── DeliveryPostponed its destination is left alone for a while
        ├── StageFailed       a user's stage raised
        ├── WrongResultCount  `process` returned more or fewer results than it was given
        ├── WorkerDied        the process working on the item died
        ├── TimeLimitExceeded the item took longer in a stage than the Plan allows
        └── Shortage          something is missing on this machine: room on a disk, memory, file handles, credentials

A message says what happened, the value seen, what was expected and what to do next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from headrace.base.error_origin import Origin, describe, find_origin
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.shortage import shortage_of

#: Code in front of a reason, by which callers and monitors tell causes apart.
_CODE = re.compile(r"([a-z]+\.[a-z_]+): ")


class HeadraceError(Exception):
    """The root of all errors that headrace raises on purpose.

    Attributes:
        origin: Place in the user's code that raised it; None if no code of the user was involved.
    """

    origin: Origin | None = None


class SettingsError(HeadraceError, ValueError):
    """A setting is unknown, of the wrong type or impossible; raised before the first job."""


class CheckpointError(SettingsError):
    """A run cannot be resumed as asked, or would overwrite an unfinished one."""


class MissingExtra(HeadraceError, ImportError):
    """An optional package is missing; the message names the extra that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs a package that is not installed; install it with: pip install 'headrace[{extra}]'"
        )
        self.what = what
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        # Exceptions are pickled by their message; this one is made of two parts.
        return type(self), (self.what, self.extra)


class SourceError(HeadraceError):
    """The source of jobs cannot be read at all."""


class QueueUnavailable(SourceError):
    """The queue service does not answer or refuses the call."""


class QueueRefused(QueueUnavailable):
    """The queue service refuses the call, and will until somebody changes a permission, a key or a setting."""


class RunFolderError(HeadraceError):
    """A run folder cannot be written or read."""


class LedgerError(HeadraceError):
    """The ledger's file cannot be used, or an entry is refused: unknown, there already, or measured before predicted."""


class EngineError(HeadraceError):
    """A model cannot be opened on this machine."""


class DoesNotFit(HeadraceError):
    """A run needs more memory than its Plan's `[budget]` has."""


class JobsFail(HeadraceError):
    """Too many jobs fail to measure how fast they are; the message names the first failure."""


class StageStalled(HeadraceError):
    """A stage hangs, and the run cannot continue without its thread."""


class ResultsRefused(HeadraceError):
    """A flush made results durable, but for these, which will never be.

    Attributes:
        reasons: {job's id: why}; each begins with a stable code.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{one}: {why}" for one, why in reasons.items()))
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[ResultsRefused], tuple[dict[str, str]]]:
        # Exceptions are pickled by their message; this one is made of a dict.
        return type(self), (self.reasons,)


class Interrupted(HeadraceError):
    """The run was stopped from outside; what was measured is kept."""


class ItemError(HeadraceError):
    """Concerns one item; the run goes on.

    Attributes:
        stage: Name of the stage in which it happened; None until the runtime has filled it in.
        item_id: Id of the item; None until the runtime has filled it in.
        reason: The message without stage and item.
    """

    # Also defaults here: a user's subclass may have an __init__ that does not call this one.
    reason: str = ""
    stage: str | None = None
    item_id: str | None = None

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else repr(reason)

    @property
    def code(self) -> str:
        """Machine-readable code in front of the reason, such as `decode.bomb`; else the name of the class."""
        found = _CODE.match(self.reason)
        return found[1] if found else type(self).__name__

    def locate(self, stage: str, item_id: str) -> ItemError:
        """Fill in stage and item unless they are known, and return this error."""
        self.stage = self.stage or stage
        self.item_id = self.item_id or item_id
        return self

    def __str__(self) -> str:
        where = f"{self.stage}: item {self.item_id}: " if self.stage else ""
        return where + hide_secrets_in_text(self.reason)


def as_item_error(error: BaseException) -> ItemError:
    """Return an ItemError itself, else a StageFailed that names and chains the error; both with their origin in the code."""
    is_known = isinstance(error, ItemError)
    try:
        origin = find_origin(error, own_too=not is_known)
        short = shortage_of(error)
    except Exception:  # perhaps no memory, the reason for the failure itself
        origin = short = None
    if isinstance(error, ItemError):
        error.origin = error.origin or origin
        if short is None or isinstance(error, ItemRejected | Shortage):
            return error
        failure: ItemError = Shortage(f"{short}: {error.reason}")
        failure.stage, failure.item_id = error.stage, error.item_id
    else:
        what = describe(error, origin)
        failure = StageFailed(what) if short is None else Shortage(f"{short}: {what}")
    failure.__cause__ = error
    failure.origin = origin
    return failure


class ItemRejected(ItemError):
    """No retry can help."""


class BadMessage(ItemRejected):
    """The message is not a job."""


class UnknownTask(ItemRejected):
    """No module of the pipeline takes this task."""


class FetchRejected(ItemRejected):
    """The address may not be contacted, the file not be read, or the server will never serve this.

    `reason` begins with a stable code, such as `ssrf.address`, `http.status` or `file.refused`; see the guide to fetching.
    """


class DecodeRejected(ItemRejected):
    """The bytes are not an image that can be decoded."""


class DeliveryRejected(ItemRejected):
    """The receiver answers that it will never take this."""


class NotWanted(ItemRejected):
    """Nobody wants the result any more: that is nobody's fault, and says nothing about other jobs."""


class DeadlinePassed(NotWanted):
    """The job's deadline passed before the work was done."""


class ClientGone(NotWanted):
    """Who waited for the answer has gone away."""


class ItemFailed(ItemError):
    """Another try may succeed.

    Attributes:
        retry_after_seconds: How long the other side asked to wait before the next try.
        is_postponed: Whether nothing was tried because it could not succeed now; the try does not count.
        patience_seconds: Age of a job up to which a postponement does not count; later it counts as a try.
    """

    retry_after_seconds: float = 0.0
    is_postponed: bool = False
    patience_seconds: float = math.inf


class Crowded(ItemFailed):
    """Its host, receiver or task already has its share of a stage: other items would have to wait for it."""

    is_postponed = True


class FetchFailed(ItemFailed):
    """The download failed for now."""


class FetchPostponed(FetchFailed):
    """The server is not called for a while, because it failed too often recently."""

    is_postponed = True
    patience_seconds = 86_400.0


class DeliveryFailed(ItemFailed):
    """The result could not be delivered for now."""


class DeliveryPostponed(DeliveryFailed):
    """The destination of the result is not called for a while: a try now would not succeed."""

    is_postponed = True


class StageFailed(ItemFailed):
    """A user's stage raised; the cause is chained."""


class WrongResultCount(ItemFailed):
    """`process` returned more or fewer results than it was given."""


class WorkerDied(ItemFailed):
    """The process working on the item died."""


class TimeLimitExceeded(ItemFailed):
    """The item took longer in a stage than the Plan allows."""


class Shortage(ItemFailed):
    """The machine lacks something; no item is to blame. `reason` begins with a code such as `shortage.disk`."""
