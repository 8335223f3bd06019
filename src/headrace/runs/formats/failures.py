"""What failed in a run, as the summary in its `run.json` says; see `reasons` of the document `headrace.run/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.base.documents import convert_document
from headrace.base.error_origin import Origin


class FailureReason(msgspec.Struct, frozen=True):
    """Deliveries of jobs that failed for one reason. Fields with a default are not in older folders."""

    code: str
    count: int
    """Jobs that were rejected or dead-lettered for it."""
    example: str
    retried: int = 0
    returned: int = 0
    first_item: str = ""
    origin: Origin | None = None

    @property
    def num_deliveries(self) -> int:
        """Deliveries that failed, however they ended."""
        return self.count + self.retried + self.returned


class _Summary(msgspec.Struct, frozen=True):
    reasons: list[FailureReason] = []


def failures_of(summary: Any) -> list[FailureReason]:
    """Return what failed, the most frequent first; nothing where a folder's summary says nothing that can be understood."""
    try:
        found = convert_document(summary, _Summary).reasons
    except msgspec.ValidationError:
        return []
    return sorted(found, key=lambda reason: -reason.num_deliveries)
