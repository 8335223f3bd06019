"""What workers of one queue tell one another of jobs in work when one of them died, so that no machine learns it by itself.

Each process leaves the records that no other one has left, so that a fleet in which nothing dies leaves none, and a death that
a whole machine heard of is left once. Records join by what counts most (`Record.newest`): reading one twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.base.policies.blame import Record
from headrace.monitor.fleet.place import Place, PlaceUnavailable

logger = logging.getLogger("headrace")

#: The most records that one process leaves, so that they are no larger than a place holds.
MOST_RECORDS = 150
_MOST_CAUSE = 100


class _Shared(msgspec.Struct):
    """What a process leaves."""

    queue: str
    records: dict[str, Record]


_decoder = msgspec.msgpack.Decoder(_Shared)


class SharedSuspects:
    """The part of one process. One thread at a time.

    Args:
        place: Where they are left; see `place.open_place`.
        name: Of this process, unlike any other's.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place, self._name = place, name
        self._left = b""
        self._has_failed = False

    def __call__(self, queue: str, known: Mapping[str, Record]) -> Mapping[str, Record]:
        """Leave what is known of a queue's messages here alone; return what others left, nothing where it cannot be read."""
        theirs: dict[str, Record] = {}
        try:
            theirs = self._read(queue)
            ours = {
                message_id: record
                for message_id, record in known.items()
                if message_id not in theirs or theirs[message_id].newest(record) != theirs[message_id]
            }
            self._leave(queue, dict(list(ours.items())[-MOST_RECORDS:]))
        except PlaceUnavailable as error:
            if not self._has_failed:
                logger.warning("machines cannot tell one another what kills workers: %s; it is tried again", error)
            self._has_failed = True
        else:
            self._has_failed = False
        return theirs

    def _read(self, queue: str) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for left in self._place.read_all():
            shared = None if left.name == self._name else _decode(left.content)
            if shared is None or shared.queue != queue:
                continue
            for message_id, record in shared.records.items():
                found[message_id] = record.newest(found.get(message_id, record))
        return found

    def _leave(self, queue: str, records: dict[str, Record]) -> None:
        if not records and not self._left:
            return
        for record in records.values():
            record.cause = record.cause[:_MOST_CAUSE]
        content = msgspec.msgpack.encode(_Shared(queue, records))
        if content != self._left:
            self._place.put(self._name, content)
            self._left = content


def _decode(content: bytes) -> Any:
    """Return what a process left; None for what is damaged or of another version."""
    try:
        return _decoder.decode(content)
    except (msgspec.MsgspecError, ValueError):
        return None
