"""What the blocks of a recording hold, and the recording of one process as it is read back."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import RunFolderError
from headrace.base.formatting import encodable
from headrace.base.records import Span
from headrace.monitor.recorder.ring import Block, BlockKind, Blocks, read_blocks
from headrace.runs.errors_log import ErrorLine
from headrace.runs.run_folder import RunInfo, headrace_version

#: Of a block when it is unpacked: more was not packed by us.
_MOST_UNPACKED = 256 * 2**20
#: Of packed spans that are read, the newest: about 150,000, which take 150 MB while they are looked at.
MOST_SPAN_BYTES = 6 * 2**20
_NUM_COLUMNS = len(Span.__struct_fields__)
#: Of the first recordings: columns that came later are the last, and have defaults.
_LEAST_COLUMNS = _NUM_COLUMNS - len(Span.__struct_defaults__)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose recording it is."""

    process: int
    process_started: int
    """By the kernel, in its ticks since boot: process ids come again."""
    boot: str
    supervisor: int = 0
    """Process id; 0: there is none."""
    worker: int = 0
    """Number of the worker under the supervisor."""
    incidents: str = ""
    """Folder that keeps incidents; empty: none was named."""
    info: RunInfo
    """`run.json` as it would be now."""


class _WriterInfo(msgspec.Struct):
    headrace_version: str


class _Writer(msgspec.Struct):
    """What any version can read of the identity that any other wrote."""

    info: _WriterInfo


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened, such as a change of the model."""

    at_ns: int
    """On the host's monotonic clock."""
    kind: str
    says: str


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """Resources and gauges at one moment; see `runs.resource_files`."""

    at_ns: int
    values: dict[str, dict[str, float]]


class Threads(msgspec.Struct, frozen=True, array_like=True):
    """Whose states follow: (process, name of the thread) each."""

    threads: list[tuple[int, str]]


class States(msgspec.Struct, frozen=True, array_like=True):
    """A letter of `resource_files.STATES` for each of those threads, at one moment."""

    at_ns: int
    letters: str


_SMALL: dict[int, Any] = {
    BlockKind.RESOURCES: msgspec.msgpack.Decoder(list[Sample]),
    BlockKind.EVENT: msgspec.msgpack.Decoder(Event),
    BlockKind.THREADS: msgspec.msgpack.Decoder(Threads),
    BlockKind.STATES: msgspec.msgpack.Decoder(list[States]),
    BlockKind.ERROR: msgspec.msgpack.Decoder(list[ErrorLine]),
}
_columns_decoder = msgspec.msgpack.Decoder(list[list[Any]])


def pack(content: Any) -> bytes:
    """Return the content of a block other than spans and identity."""
    return msgspec.msgpack.encode(content)


def pack_spans(spans: Sequence[Span]) -> bytes:
    """Return the content of a block of spans, by columns: those of neighbours are alike."""
    try:
        packed = msgspec.msgpack.encode(list(zip(*map(msgspec.structs.astuple, spans), strict=True)))
    except UnicodeEncodeError:  # an id that is no Unicode
        return pack_spans([_encodable(span) for span in spans])
    return zlib.compress(packed, 1)


def unpack_spans(content: bytes) -> list[Span]:
    """Return the spans of a block, also of a version that knew fewer columns.

    Raises:
        ValueError: If it does not hold spans that this version knows.
    """
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(content, _MOST_UNPACKED)
        columns = _columns_decoder.decode(unpacked) if unpacker.eof else []
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not _LEAST_COLUMNS <= len(columns) <= _NUM_COLUMNS:
        raise ValueError(f"{len(columns)} columns, and a span has {_LEAST_COLUMNS} to {_NUM_COLUMNS}")
    return [Span(*row) for row in zip(*columns, strict=True)]


def _encodable(span: Span) -> Span:
    texts = {name: encodable(value) for name in span.__struct_fields__ if isinstance(value := getattr(span, name), str)}
    return msgspec.structs.replace(span, **texts)


def pack_identity(identity: Identity) -> bytes:
    """Return the content of a block of the identity."""
    return encode_document(identity, or_text=True)


@dataclass(slots=True)
class Recording:
    """The last minutes of one process."""

    folder: Path
    identity: Identity
    """The last one."""
    spans: list[Span] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    states: list[tuple[Threads, States]] = field(default_factory=list)
    errors: list[ErrorLine] = field(default_factory=list)
    damaged_bytes: int = 0
    """Left out because a checksum was wrong, or a block was cut off by a kill."""
    unreadable_blocks: int = 0
    """With a right checksum and another form: of another version of headrace."""

    @property
    def from_ns(self) -> int:
        """When its spans begin; without spans, its samples."""
        begins = (span.arrived for span in self.spans) if self.spans else (sample.at_ns for sample in self.samples)
        return min(begins, default=0)

    @property
    def to_ns(self) -> int:
        """When it ends."""
        return max((*(span.put for span in self.spans), *(sample.at_ns for sample in self.samples)), default=0)


def read_identity(folder: Path) -> Identity | None:
    """Return whose recording is in a folder; None if that cannot be read."""
    try:
        return _last_identity(read_blocks(folder).blocks)
    except OSError:
        return None


def read_recording(folder: Path) -> Recording:
    """Return all that can be read of a recording, whether or not its process lives.

    Raises:
        RunFolderError: If nothing says whose it is, or all its spans are of a version that is not known here.
    """
    try:
        blocks = read_blocks(folder)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be read: {error.strerror or error}") from error
    identity = _last_identity(blocks.blocks)
    if identity is None:
        raise RunFolderError(_explain(folder, blocks))
    found = Recording(folder, identity, damaged_bytes=blocks.damaged_bytes)
    threads: Threads | None = None
    num_unread = 0
    for block in _leave_out_oldest(blocks.blocks):
        try:
            threads = _take(found, block, threads)
        except (ValueError, msgspec.MsgspecError):
            found.unreadable_blocks += 1
            num_unread += block.kind == BlockKind.SPANS
    if num_unread and not found.spans:
        raise RunFolderError(_explain_version(folder, identity.info.headrace_version))
    return found


def explain_unread(folder: Path) -> str:
    """Return why nobody can tell whose recording a folder holds; empty if that can be told, or if it holds none."""
    try:
        blocks = read_blocks(folder)
    except OSError:
        return ""
    is_none = not blocks.blocks and not blocks.damaged_bytes
    return "" if is_none or _last_identity(blocks.blocks) is not None else _explain(folder, blocks)


def _explain(folder: Path, blocks: Blocks) -> str:
    if blocks.is_of_another_layout and not blocks.blocks:
        return _explain_version(folder, "")
    for block in reversed(blocks.blocks):
        if block.kind == BlockKind.IDENTITY:
            try:
                return _explain_version(folder, decode_document(block.content, _Writer).info.headrace_version)
            except msgspec.DecodeError:
                continue
    return f"{folder} holds no recording that can be read: no block says whose it is ({blocks.damaged_bytes:,} damaged bytes)"


def _explain_version(folder: Path, version: str) -> str:
    by = f"headrace {version}" if version else "another version of headrace"
    return (
        f"{folder} was recorded by {by}, in a form that headrace {headrace_version()}, which runs here, does not know; run "
        f"`headrace snapshot {folder}` with the version that recorded it"
    )


def _leave_out_oldest(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks without those of spans that are more than are read, the newest being kept."""
    kept: list[Block] = []
    num_bytes = 0
    for block in reversed(blocks):
        num_bytes += len(block.content) if block.kind == BlockKind.SPANS else 0
        if block.kind != BlockKind.SPANS or num_bytes <= MOST_SPAN_BYTES:
            kept.append(block)
    return kept[::-1]


def _take(found: Recording, block: Block, threads: Threads | None) -> Threads | None:
    if block.kind == BlockKind.SPANS:
        found.spans += unpack_spans(block.content)
    elif block.kind in _SMALL:
        content = _SMALL[block.kind].decode(block.content)
        if isinstance(content, Threads):
            return content
        if block.kind == BlockKind.EVENT:
            found.events.append(content)
        elif block.kind == BlockKind.RESOURCES:
            found.samples += content
        elif block.kind == BlockKind.ERROR:
            found.errors += content
        elif threads is not None:
            found.states += [(threads, one) for one in content if len(one.letters) == len(threads.threads)]
    return threads


def _last_identity(blocks: Sequence[Block]) -> Identity | None:
    for block in reversed(blocks):
        if block.kind == BlockKind.IDENTITY:
            try:
                return decode_document(block.content, Identity)
            except msgspec.DecodeError:
                continue
    return None


def keep_finite(values: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Return what was measured, without what was not."""
    return {
        scope: kept
        for scope, names in values.items()
        if (kept := {name: float(value) for name, value in names.items() if value is not None and value == value})
    }
