"""Undelivered results as bytes, which a queue keeps beside the job until the receiver is back.

    {"v": 1, "since": 1767225600.0, "tries": 3, "seal": "v1,...", "result": {...}}

Anybody who can write to the queue could store a forged result there, and the worker would sign it. Therefore a worker with
secrets seals the result with them, together with the job's id and task. It does not trust any other result: such a job is
worked on again. Without secrets, callbacks are not signed and nothing is sealed.

If a result is too large for its queue, the rest is kept without `result`: the job is worked on again, but not for ever.
"""

from __future__ import annotations

import msgspec

from headrace.base.records import Job, Kept
from headrace.delivery.encoding import encode
from headrace.delivery.signing import Secrets

#: Version of the format. 1: 2026-11, first.
KEPT_VERSION = 1
#: Stands where the signature of a callback has its timestamp, so that a seal never is a valid signature of a callback.
_SEAL = "kept"


class _Kept(msgspec.Struct):
    v: int
    since: float | None
    tries: int
    seal: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Kept)


def keep(job: Job, kept: Kept, secrets: Secrets | None) -> bytes:
    """Return a result as bytes.

    Raises:
        DeliveryRejected: If JSON cannot hold the result.
    """
    result = kept.result if kept.result is msgspec.UNSET else msgspec.Raw(encode(kept.result))
    seal = secrets.sign(job.id, _SEAL, _seal(job, kept, result)) if secrets else ""
    return encode(_Kept(KEPT_VERSION, kept.since, kept.tries, seal, result))


def take_up(job: Job, secrets: Secrets | None) -> Kept | None:
    """Return the content of `job.kept`, with the result as JSON; None if it cannot be read or its seal is wrong."""
    try:
        found = _decoder.decode(job.kept)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.v != KEPT_VERSION:
        return None
    kept = Kept(found.result, found.since, found.tries)
    if secrets and not secrets.are_behind(found.seal, job.id, _SEAL, _seal(job, kept, found.result)):
        return None
    return kept


def _seal(job: Job, kept: Kept, result: msgspec.Raw | msgspec.UnsetType) -> bytes:
    return encode([job.task, kept.since, kept.tries]) + (b"" if result is msgspec.UNSET else bytes(result))
