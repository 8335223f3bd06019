"""Reads a Chrome trace event by event, in bounded memory: whole files, files that are cut off, and damaged ones.

How this works: the file is read in pieces. Each piece is cut where one event seems to end and the next to begin; it is JSON if
that is true, because what stands before it was, so the decoder is the judge. Where it is not, the piece is repaired
(`inf` and `nan`, backslashes of Windows, which Kineto wrote for years) and tried again, and at last cut event by event, so that
one bad event costs that event. A file may be an array, or an object whose `traceEvents` is one; what else the object says is
`about`. Compressed files are known by their first bytes.

References:
    Trace Event Format, Google, 2016; pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.base.formatting import pluralize

_PIECE_BYTES = 1 << 22
#: Of a compressed file at a time: what stands in the same piece before damage is lost.
_PACKED_BYTES = 1 << 12
#: What stands before the events, after them, and one event.
_MOST_BYTES = 1 << 25
#: Of JSON, uncompressed: a small file can unpack to any size.
_MOST_TOTAL_BYTES = 1 << 36
#: Ends of events that are tried from behind, until events are looked for one by one.
_TRIES = 4
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
#: A text, one that does not end, and what opens or closes something.
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|"|[{}\[\]]', re.DOTALL)
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\\\)')
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Arguments(msgspec.Struct):
    """What is read of an event's `args`; whatever else stands there is not kept."""

    external: Any = msgspec.field(name="External id", default=None)
    """Of the operator that an event on the device belongs to."""
    correlation: Any = None
    """Joins a call that launches work and that work on the device."""
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    call_stack: Any = msgspec.field(name="Call stack", default=None)
    """Python frames, where an old PyTorch recorded them."""


class Event(msgspec.Struct):
    """One event. Times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = math.nan
    dur: float = math.nan
    args: Arguments | None = None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event).decode


class TraceFile:
    """A trace that is read once, from beginning to end.

    Attributes:
        about: What the file says besides its events; complete once `events` is exhausted.
        num_bytes: Of JSON that was read.
        num_events: That were read.
        num_bad: Events that could not be read.
        ended: Why reading stopped before the end, in words; empty: it did not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.num_bytes = self.num_events = self.num_bad = 0
        self.ended = ""
        self._rest = b""
        self._is_over = False

    def events(self) -> Iterator[list[Event]]:
        """Yield the events, some thousands at a time.

        Raises:
            RunFolderError: If the file cannot be opened, or is no trace.
        """
        try:
            with self.path.open("rb") as raw:
                file: Any = _Unpacked(raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
                is_object = self._read_head(file)
                yield from self._read_events(file)
                if is_object and self._is_over:
                    self._read_tail(file)
        except OSError as error:
            raise RunFolderError(f"trace {self.path} cannot be read: {error.strerror or error}") from error

    def _read(self, file: Any) -> bytes:
        """Return the next piece; empty at the end, and where a compressed file is damaged."""
        if self.num_bytes >= _MOST_TOTAL_BYTES:
            self.ended = f"it has more than {_MOST_TOTAL_BYTES >> 30} GB of JSON; the rest was left out"
            return b""
        piece: bytes = file.read(_PIECE_BYTES)
        if not piece:
            self.ended = getattr(file, "ended", "")
        self.num_bytes += len(piece)
        return piece

    def _read_head(self, file: IO[bytes]) -> bool:
        """Read up to the first event; return whether it stands in an object."""
        head = self._read(file).removeprefix(b"\xef\xbb\xbf").lstrip()
        if head[:1] == b"[":
            self._rest = head[1:]
            return False
        if head[:1] != b"{":
            began = f"it begins with {head[:20]!r}" if head else self.ended or "it is empty"
            raise self._no_trace(began)
        while (found := _EVENTS.search(head)) is None:
            piece = self._read(file)
            if not piece or len(head) > _MOST_BYTES:
                raise self._no_trace(f"it has no list `traceEvents`{f' ({self.ended})' if self.ended else ''}")
            head += piece
        self._add(head[: found.start()] + b'"traceEvents":[]}')
        self._rest = head[found.end() :]
        return True

    def _no_trace(self, why: str) -> RunFolderError:
        return RunFolderError(
            f"{self.path} is no trace: {why}; expected what `prof.export_chrome_trace(...)` of torch.profiler writes"
        )

    def _read_events(self, file: IO[bytes]) -> Iterator[list[Event]]:
        while not self._is_over:
            piece = self._read(file)
            self._rest += piece
            events = self._take(is_last=not piece)
            self.num_events += len(events)
            yield events
            if not piece and not self._is_over:
                self.ended = self.ended or "it is cut off in the middle of its events"
                return
            if len(self._rest) > _MOST_BYTES and not self._is_over:
                self.ended = f"an event is longer than {_MOST_BYTES >> 20} MB; what follows was not read"
                return

    def _take(self, *, is_last: bool) -> list[Event]:
        """Return the whole events that the rest begins with, and keep what stands behind them."""
        text = self._rest.lstrip(b" \t\r\n,")
        try:
            for cut in _cuts(text):
                events = _decode_all(text[:cut])
                if events is not None:
                    self._rest = text[cut:]
                    return events + (self._take(is_last=True) if is_last else [])
        except msgspec.ValidationError:  # JSON it is, and one of the events is none
            pass
        return self._take_singly(text)

    def _take_singly(self, text: bytes) -> list[Event]:
        """Return the whole events that the rest begins with, found one by one."""
        events, at = [], 0
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == b"]":
                self._is_over = True
                at += 1
                break
            end = _end_of_value(text, at)
            if end < 0:
                break
            event = _decode_one(text[at:end])
            if event is None:
                self.num_bad += 1
            else:
                events.append(event)
            at = end
        self._rest = text[at:]
        return events

    def _read_tail(self, file: IO[bytes]) -> None:
        tail = self._rest
        while len(tail) <= _MOST_BYTES and (piece := self._read(file)):
            tail += piece
        tail = tail.strip().removeprefix(b",")
        self._add(b"{" + tail if tail else b"{}")

    def _add(self, document: bytes) -> None:
        """Add what an object says of the trace; what cannot be read is left out."""
        for text in (document, document[:-1].rstrip().rstrip(b",") + b"}"):
            for one in (text, _repair(text)):
                try:
                    found = decode_document(one, dict[str, Any])
                except msgspec.DecodeError:
                    continue
                self.about |= {name: value for name, value in found.items() if name != "traceEvents"}
                return

    def problems(self) -> list[str]:
        """Return what could not be read, in sentences."""
        found = []
        if self.ended:
            found.append(
                f"{self.path.name}: {self.ended}: {pluralize(self.num_events, 'event')} in {self.num_bytes / 1e6:.1f} MB were "
                "read; the last step may be missing, and device work of the steps before it too"
            )
        if self.num_bad:
            found.append(f"{self.path.name}: {pluralize(self.num_bad, 'event')} could not be read and are left out")
        return found


class _Unpacked:
    """A gzip file of which everything is read that stands before its damage; Python's own reader loses the last piece.

    Attributes:
        ended: Why it ended too early, in words; empty: it did not.
    """

    def __init__(self, packed: IO[bytes]) -> None:
        self.ended = ""
        self._packed, self._rest = packed, b""
        self._inflate: Any = None

    def read(self, most: int) -> bytes:
        """Return at most so many bytes; empty: there are no more."""
        while not self.ended:
            if not self._rest:
                self._rest = self._packed.read(_PACKED_BYTES)
                if not self._rest:
                    if self._inflate is not None:
                        self.ended = "the compressed file is cut off"
                    return b""
            if self._inflate is None:  # of one member; a file may have several
                self._inflate = zlib.decompressobj(wbits=31)
            try:
                piece: bytes = self._inflate.decompress(self._rest, most)
            except zlib.error as error:
                self.ended = f"the compressed file is damaged: {error}"
                return b""
            self._rest = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._rest, self._inflate = self._inflate.unused_data.lstrip(b"\x00"), None
            if piece:
                return piece
        return b""


def _cuts(text: bytes) -> Iterator[int]:
    """Yield where an event may end that is not the last one, from behind; few of them."""
    end = len(text)
    for _ in range(_TRIES):
        found = text.rfind(b"}", 0, end)
        while found >= 0 and _BETWEEN.match(text, found) is None:
            found = text.rfind(b"}", 0, found)
        if found < 0:
            return
        yield found + 1
        end = found


def _decode_all(text: bytes) -> list[Event] | None:
    """Return events that commas separate; None if the text is something else."""
    for repair in (False, True):
        try:
            return _decode_events(b"[" + (_repair(text) if repair else text) + b"]")
        except msgspec.ValidationError:
            raise
        except _UNREADABLE:
            continue
    return None


def _decode_one(text: bytes) -> Event | None:
    for one in (text, _repair(text)):
        try:
            return _decode_event(one)
        except _UNREADABLE:
            continue
    return None


def _repair(text: bytes) -> bytes:
    """Return JSON for what is nearly JSON.

    Numbers that are none, backslashes that escape nothing, control characters, bytes that are no UTF-8.
    """
    text = _NO_NUMBER.sub(rb"\1null", text)
    text = _LONE_BACKSLASH.sub(lambda found: found[1] or rb"\\", text)
    text = _CONTROL.sub(b" ", text)
    return text.decode("utf-8", "replace").encode("utf-8")


def _skip(text: bytes, at: int) -> int:
    while text[at : at + 1] in (b" ", b"\t", b"\r", b"\n", b","):
        at += 1
    return at


def _end_of_value(text: bytes, at: int) -> int:
    """Return where the value ends that begins here; -1: not in this text."""
    if text[at : at + 1] not in (b"{", b"["):  # something between events that is none: up to the next comma or end
        found = re.compile(rb"[,\]{]").search(text, max(at, 0) + 1)
        return found.start() if found is not None and at < len(text) else -1
    depth = 0
    for found in _STRUCTURE.finditer(text, at):
        mark = found[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if not depth:
                return found.end()
        elif mark == b'"':
            return -1
    return -1
