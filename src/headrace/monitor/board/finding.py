"""Looks through folders for what the board shows; bounded, never through links, and whatever is damaged is named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import HeadraceError
from headrace.monitor.board.kinds import KINDS, Kind, Version, may_be_ours, read_head
from headrace.monitor.board.records import Record

#: Folders below one that is given, and folders looked at in all.
MOST_DEPTH, MOST_FOLDERS = 6, 20_000
#: Unix seconds of the year 5138: what lies beyond is no time.
LAST_TIME = 1e11
#: Files of a folder that are looked into: a folder of images may have a JSON file for each.
_MOST_FILES = 200
#: Things shown; the newest.
MOST_RECORDS = 2_000
#: Never looked into: what is large and holds nothing of ours.
_PASSED_OVER = {"node_modules", "__pycache__", "site-packages", "spans", "hot_spots", "build", "dist"}


@dataclass(frozen=True, slots=True)
class Found:
    """All that was found."""

    records: Sequence[Record]
    """The newest first."""
    passed_over: Sequence[str]
    """What was not looked at, and why."""


class Finder:
    """Looks again and again, and reads only what has changed since.

    Args:
        folders: To look through.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._known: dict[Path, tuple[Version, Record]] = {}

    def look(self) -> Found:
        """Return what there is now."""
        passed_over: list[str] = []
        seen: dict[Path, tuple[Version, Record]] = {}
        for folder in self._folders:
            for kind, path in _walk(folder, passed_over):
                if path not in seen:
                    seen[path] = self._read(kind, path, folder)
        self._known = seen
        records = sorted((record for _, record in seen.values()), key=lambda record: record.at, reverse=True)
        if len(records) > MOST_RECORDS:
            passed_over.append(f"{len(records) - MOST_RECORDS:,} older ones; at most {MOST_RECORDS:,} are shown")
        return Found(records[:MOST_RECORDS], passed_over)

    def _read(self, kind: Kind, path: Path, below: Path) -> tuple[Version, Record]:
        try:
            version = kind.version(path)
        except OSError:
            version = Version(0.0)
        known = self._known.get(path)
        if known is not None and known[0] == version and not _is_going_on(known[1]):
            return known
        name = os.fspath(path.relative_to(below)) if path != below else path.name
        try:
            record = kind.read(path, name)
            _check_times(record)
        except (HeadraceError, OSError, ValueError) as error:
            record = Record(kind=kind.name, path=path, name=name, at=version.at, trouble=str(error))
        except Exception as error:  # of a document in which a value is of another kind than headrace writes
            trouble = f"it is not as headrace writes it ({type(error).__name__}: {error!s:.200})"
            record = Record(kind=kind.name, path=path, name=name, at=version.at, trouble=trouble)
        return version, record


def _check_times(record: Record) -> None:
    """Refuse times that no clock shows: they cannot be drawn."""
    times = [record.at, *([record.run.began, record.run.ended or 0.0] if record.run else [])]
    wrong = [one for one in times if not 0 <= one < LAST_TIME]
    if wrong:
        raise ValueError(f"it says that something happened {wrong[0]:g} s after 1970")


def _changed_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:  # just removed
        return 0.0


def _is_going_on(record: Record) -> bool:
    return record.run is not None and record.run.state == "runs"


def _walk(top: Path, passed_over: list[str]) -> Iterator[tuple[Kind, Path]]:
    """Give what is found in a folder and below it."""
    waiting = [(top, 0)]
    num_looked = 0
    while waiting:
        folder, depth = waiting.pop(0)
        num_looked += 1
        if num_looked > MOST_FOLDERS:
            passed_over.append(
                f"{len(waiting) + 1:,} folders or more below {top}: at most {MOST_FOLDERS:,} are looked at"
            )
            return
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            passed_over.append(f"{folder}: {error.strerror}")
            continue
        # Neither links nor pipes: who opens a pipe waits for somebody to write to it.
        entries = [one for one in entries if one.is_file(follow_symlinks=False) or one.is_dir(follow_symlinks=False)]
        entries.sort(key=_changed_at, reverse=True)  # where there are too many, the oldest are left out
        names = {entry.name for entry in entries}
        kind = next((kind for kind in KINDS if kind.is_folder and kind.marks <= names), None)
        if kind is not None:
            yield kind, folder
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                is_hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
                if not is_hidden and (kind is None or kind.has_more):
                    waiting.append((Path(entry.path), depth + 1))
        yield from _list_files(entries)
        if depth >= MOST_DEPTH and waiting and waiting[-1][1] > MOST_DEPTH:
            waiting = [one for one in waiting if one[1] <= MOST_DEPTH]
            passed_over.append(f"folders below {folder}: more than {MOST_DEPTH} deep")


def _list_files(entries: Sequence[os.DirEntry[str]]) -> Iterator[tuple[Kind, Path]]:
    """Give the files of a folder that are of some kind: of many that may be, the newest are looked into."""
    candidates = [one for one in entries if one.is_file(follow_symlinks=False) and may_be_ours(one.name)]
    for entry in candidates[:_MOST_FILES]:
        head = read_head(entry.path)
        kind = next((one for one in KINDS if not one.is_folder and one.is_file(entry.name, head)), None)
        if kind is not None:
            yield kind, Path(entry.path)
