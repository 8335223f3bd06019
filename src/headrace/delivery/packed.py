"""Items as the members of shards, in the order of the list, however they come.

How this works. The deliver worker brings results in any order; `Turns` says whose turn it is. What comes in its turn is added
to the shard that grows, and is durable. What comes early is kept in memory, and at a flush, or where it is much, in a file
beside the shards (`.spill`), so that a flush never has to wait for an item that is late. The source tells of items that were
given up (`give_up`): they are passed by. One lock guards all of it.

So the bytes of the shards depend only on the items and their order: a run that was killed and resumed makes the same.
What is kept, and what a killed process leaves, is described in `store.shard_writer`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import encode_document
from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.lines import append_line
from headrace.base.records import Job
from headrace.store.formats import FORMATS, sync_folder
from headrace.store.manifest import (
    MANIFEST,
    UNREADABLE,
    Encoding,
    Manifest,
    ShardEntry,
    hash_file,
    read_manifest,
    write_manifest,
)
from headrace.store.naming import Named
from headrace.store.reading import read_all
from headrace.store.samples import Stored
from headrace.store.shard_index import replace_file
from headrace.store.shard_writer import ShardWriter, boot_mark
from headrace.store.tar_header import BLOCK, padded
from headrace.store.turns import Turns

logger = logging.getLogger("headrace")


class _Unreadable(msgspec.Struct):
    """A line of `unreadable.jsonl`."""

    id: str
    reason: str


_decode_unreadable = msgspec.json.Decoder(_Unreadable).decode

#: Bytes that wait in memory for their turn.
_MOST_HELD = 64 << 20


class Packed:
    """Writes a folder of shards: `shard-000000.tar` and so on, their indexes, `manifest.json` and `unreadable.jsonl`.

    Args:
        folder: The folder; created if missing.
        named: All items in order, and the names of their members.
        turns: Of the same items.
        format: One of `store.formats.FORMATS`.
        shard_bytes: Size of a shard; the sample that would exceed it begins the next one.
        encoding: What images became before they come here; None: nothing else than they were.
    """

    flush_items = 512
    flush_seconds = 0.5
    default_workers = 1

    def __init__(
        self,
        folder: Path,
        named: Sequence[Named],
        turns: Turns,
        *,
        format: str = "tar",  # noqa: A002 - the option's name
        shard_bytes: int = 128 << 20,
        encoding: Encoding | None = None,
    ) -> None:
        self.folder = folder
        self._named = {one.id: one for one in named}
        self._turns = turns
        self._format_name, self._format = format, FORMATS[format]
        self._shard_bytes, self._encoding = shard_bytes, encoding
        self._lock = threading.RLock()
        self._entries: list[ShardEntry] = []
        self._grown: ShardWriter | None = None
        self._spill: ShardWriter | None = None
        self._held: dict[str, bytes] = {}
        self._held_bytes = 0
        self._spilled: dict[str, Stored] = {}
        self._reasons: dict[str, str] = {}
        self._is_said = False

    @property
    def checkpoint(self) -> Path:
        """Folder for the state that resuming needs, beside the shards."""
        return self.folder.with_name(f"{self.folder.name}.checkpoint")

    @property
    def has_results(self) -> bool:
        """Whether the folder holds what an earlier run packed."""
        return bool(list_packed(self.folder))

    def mark(self) -> dict[str, Any]:
        """Return nothing: all that is in the folder is of one run."""
        return {}

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Take in what an earlier start left, and return the items that are in it; see `protocols.Recoverable`."""
        if not self.folder.is_dir():
            raise FileNotFoundError(self.folder)
        with self._lock:
            found = self._recover_shards()
            self._remove_stale()
            by_name = {one.name: one.id for one in self._named.values()}
            for row in self._open_grown(recovers=True).rows:
                found.add(by_name.get(row.stored.name, row.stored.name))
            self._reasons = self._read_reasons()
            for one in found:
                if self._turns.knows(one):
                    self._turns.pass_by(one)
            found |= self._recover_spill(by_name)
            try:
                self._catch_up()  # where nothing is left to do, nobody calls `open`, and the last shard is finished here
            except OSError as error:
                logger.warning("%s cannot be written: %s", self.folder, error.strerror or error)
            return found

    def open(self, context: Any) -> None:
        """Make the folder, and write what has its turn already."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock:
                if self._encoding is not None and not self._entries:
                    write_manifest(self.folder, self._manifest(complete=False))  # for whoever resumes this
                self._open_grown()
                self._catch_up()
        except OSError as error:
            raise SettingsError(f"{self.folder} cannot be written: {error}") from None

    def deliver(self, job: Job, result: Any) -> bool:
        """Write an item, or keep it until its turn; see `protocols.Delivery.deliver`."""
        data = self.check(job, result)
        with self._lock:
            try:
                if not self._turns.is_past(job.id):
                    self._keep(job.id, data)
                    if self._held_bytes > _MOST_HELD and job.id != self._turns.next_id:
                        self._spill_all()
                self._catch_up()
                return job.id not in self._held and not self._has_unwritten()
            except OSError as error:
                raise DeliveryFailed(f"{self.folder} cannot be written: {error.strerror or error}") from error

    def check(self, job: Job, result: Any) -> bytes:
        """Return the bytes that would be packed."""
        if isinstance(result, bytes):
            return result
        raise DeliveryRejected(f"pack.type: the item became a {type(result).__name__}; only bytes are packed")

    def give_up(self, one: str, reason: str) -> None:
        """Note that nothing will come of an item; any thread."""
        with self._lock:
            if self._turns.is_past(one):
                return
            try:
                if one not in self._reasons:
                    self._note_reason(one, reason)
                self._turns.pass_by(one)
                self._catch_up()
            except OSError as error:  # `close` tries again
                logger.warning("%s cannot be written: %s", self.folder, error)

    def flush(self) -> None:
        """Write what was gathered, and put what waits for its turn into a file."""
        with self._lock:
            try:
                if self._grown is not None:
                    self._grown.write()
                self._spill_all()
            except OSError as error:
                raise DeliveryFailed(f"{self.folder} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Write what can be written, and let go of the files; what is not finished can be resumed."""
        with self._lock:
            try:
                if self._grown is not None:
                    self._catch_up()
                if self._grown is not None:
                    self._grown.write()
            except OSError as error:  # what is kept in a file is there for a resumed run, the rest is read again
                logger.warning("%s cannot be written: %s", self.folder, error.strerror or error)
            finally:
                for writer in (self._grown, self._spill):
                    if writer is not None:
                        writer.close()
                self._grown = self._spill = None

    def manifest(self) -> Manifest:
        """Return what the folder holds now."""
        return self._manifest(complete=self._is_said)

    def _manifest(self, *, complete: bool) -> Manifest:
        return Manifest(
            format=self._format_name,
            complete=complete,
            files=sum(entry.files for entry in self._entries),
            bytes=sum(entry.bytes for entry in self._entries),
            unreadable=len(self._reasons),
            shards=list(self._entries),
            encoding=self._encoding,
        )

    # What follows is called with the lock.

    def _has_unwritten(self) -> bool:
        return any(one is not None and one.has_unwritten for one in (self._grown, self._spill))

    def _keep(self, one: str, data: bytes) -> None:
        if one not in self._held and one not in self._spilled:
            self._held[one] = data
            self._held_bytes += len(data)
            self._turns.hold(one)

    def _catch_up(self) -> None:
        """Write every item whose turn it is; at the end of the list finish the last shard."""
        while (one := self._turns.next_id) is not None:
            if one in self._held:
                data = self._held[one]
            elif one in self._spilled:
                data = self._read_spilled(one)
            else:
                return
            self._write(self._named[one], data)
            self._turns.pass_by(one)
            self._held_bytes -= len(self._held.pop(one, b""))
            self._spilled.pop(one, None)
            self._clear_spill()
        self._finish()

    def _clear_spill(self) -> None:
        """Empty the file of those that wait once none does: not before the operating system has them in the shard."""
        if self._spill is not None and self._spill.rows and not self._spilled:
            self._open_grown().write()
            self._spill.clear()

    def _write(self, named: Named, data: bytes) -> None:
        grown = self._open_grown()
        if grown.rows and named.begins_sample and grown.size + BLOCK + padded(len(data)) > self._shard_bytes:
            self._finish_shard()
            grown = self._open_grown()
        grown.append(named.name, data, None if named.name == named.id else named.id)

    def _finish_shard(self) -> None:
        grown, place = self._open_grown(), self._place(len(self._entries))
        grown.write()
        digest = self._format.finish(grown, place)
        entry = ShardEntry(name=place.name, bytes=place.stat().st_size, files=len(grown.rows), sha256=digest)
        self._entries.append(entry)
        self._grown = None
        grown.close()
        write_manifest(self.folder, self._manifest(complete=False))

    def _finish(self) -> None:
        """Finish the last shard and say that all is there."""
        if self._is_said:
            return
        if self._open_grown().rows:
            self._finish_shard()
        grown, self._grown = self._grown, None
        for writer in (grown, self._spill):
            if writer is not None:
                writer.close()
                writer.path.unlink(missing_ok=True)
        self._spill = None
        self._write_reasons()
        write_manifest(self.folder, self._manifest(complete=True))
        sync_folder(self.folder)
        self._is_said = True

    def _open_grown(self, *, recovers: bool = False) -> ShardWriter:
        if self._grown is None:
            self._grown = ShardWriter(self.folder / f".shard-{len(self._entries):06d}.{boot_mark()}.partial")
            if recovers:
                self._grown.recover()
                by_name = {one.name: one.id for one in self._named.values()}
                self._grown.name_sources(by_name)
        return self._grown

    def _spill_all(self) -> None:
        for one in list(self._held):
            if self._spill is None:
                self._spill = ShardWriter(self._spill_path())
            self._spilled[one] = self._spill.append(self._named[one].name, self._held[one])
            self._held_bytes -= len(self._held.pop(one))
        if self._spill is not None:
            self._spill.write()

    def _read_spilled(self, one: str) -> bytes:
        assert self._spill is not None
        self._spill.write()
        stored = self._spilled[one]
        return read_all(self._spill.handle, stored.length, stored.offset)

    def _spill_path(self) -> Path:
        return self.folder / f".spill.{boot_mark()}.partial"

    def _place(self, number: int) -> Path:
        return self.folder / f"shard-{number:06d}{self._format.suffix}"

    def _recover_shards(self) -> set[str]:
        """Return the items of finished shards."""
        manifest = read_manifest(self.folder)
        if manifest is not None and manifest.format != self._format_name:
            raise SettingsError(f"{self.folder} is packed as {manifest.format}; go on with --format {manifest.format}")
        self._check_encoding(manifest.encoding if manifest else None)
        known = {entry.name: entry for entry in manifest.shards} if manifest else {}
        found: set[str] = set()
        while (place := self._place(len(self._entries))).exists():
            try:
                sources = self._format.read_sources(place)
            except Exception as error:
                raise SettingsError(
                    f"the finished shard {place} cannot be read back ({error}); remove it to pack its items again, or begin "
                    "anew with --force"
                ) from error
            entry = known.get(place.name)
            if entry is None:
                size = place.stat().st_size
                entry = ShardEntry(name=place.name, bytes=size, files=len(sources), sha256=hash_file(place))
            self._entries.append(entry)
            found.update(sources)
        return found

    def _check_encoding(self, before: Encoding | None) -> None:
        """Raise SettingsError if the folder holds images that became something else."""
        if before == self._encoding or not (before or list_packed(self.folder)):
            return
        how = f"with {before.describe()}" if before else "without changing images"
        raise SettingsError(f"{self.folder} was packed {how}; go on likewise, or begin anew with --force")

    def _remove_stale(self) -> None:
        """Remove what grew before the machine was started, and what belongs to a shard that is finished."""
        kept = {f".shard-{len(self._entries):06d}.{boot_mark()}.partial", self._spill_path().name}
        for file in self.folder.glob(".*.partial"):
            if file.name not in kept:
                file.unlink()

    def _recover_spill(self, by_name: Mapping[str, str]) -> set[str]:
        """Return the items that wait for their turn in a file."""
        if not self._spill_path().exists():
            return set()
        self._spill = ShardWriter(self._spill_path())
        self._spill.recover()
        for row in self._spill.rows:
            one = by_name.get(row.stored.name)
            if one is not None and not self._turns.is_past(one):
                self._spilled[one] = row.stored
                self._turns.hold(one)
        return set(self._spilled)

    def _note_reason(self, one: str, reason: str) -> None:
        self._reasons[one] = reason
        append_line(self.folder / UNREADABLE, encode_document(_Unreadable(one, reason)))

    def _read_reasons(self) -> dict[str, str]:
        path, found = self.folder / UNREADABLE, {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                record = _decode_unreadable(line)
                found[record.id] = record.reason
            except (msgspec.DecodeError, UnicodeError):  # cut off by a kill
                continue
        return {one: reason for one, reason in found.items() if self._turns.knows(one)}

    def _write_reasons(self) -> None:
        """Write the list of what could not be read in the order of the items, each once."""
        path = self.folder / UNREADABLE
        if not self._reasons:
            path.unlink(missing_ok=True)
            return
        ordered = sorted(self._reasons, key=self._turns.place)
        lines = [encode_document(_Unreadable(one, self._reasons[one])) + b"\n" for one in ordered]
        replace_file(path, lambda file: file.write(b"".join(lines)))


def list_packed(folder: Path) -> list[Path]:
    """Return the files of a folder that packing made."""
    names = (MANIFEST, UNREADABLE)
    shards = [f"shard-*{one.suffix}" for one in FORMATS.values()]
    patterns = (*shards, ".shard-*.partial", ".spill.*.partial", "shard-*.idx.parquet")
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    return sorted(found | {folder / name for name in names if (folder / name).exists()})
