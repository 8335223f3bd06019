"""What the runs over portions of a source came to: all of them done, every item once, and their results together.

How this works: nothing is kept for this. Each portion's results and journal lie beside one another, as `--shard` named them,
and say themselves what is done: see `pipeline.checkpoint`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import CheckpointError, SettingsError
from headrace.base.protocols import Delivery, Recoverable
from headrace.pipeline.checkpoint import JOURNAL, Past
from headrace.runs.journal import Journal, Locked
from headrace.sources.portions import Portion

_NAME = re.compile(r"-(\d+)-of-([1-9]\d*)")
_COPY_BYTES = 1 << 20
_CHECKPOINT = ".checkpoint"
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One portion.

    Attributes:
        portion: Which.
        results: Its file or folder.
        delivered: Ids of its results.
        rejected: How many items were turned away.
        given_up: How many were given up.
        left: Items that are not done; 0: none.
        source: What it is a portion of.
        pipeline: That did it.
        listed: How many items the whole had when it was last begun; None: not known.
        is_again: Whether results of an earlier run are before its own: it was begun again without `--resume`.
    """

    portion: Portion
    results: Path
    delivered: set[str]
    rejected: int
    given_up: int
    left: int
    source: str = ""
    pipeline: str = ""
    listed: int | None = None
    is_again: bool = False


def counts_of(results: Path) -> set[int]:
    """Return of how many portions there are results, or checkpoints alone, beside a path; several: of several divisions."""
    return {portion.count for portion in _beside(results)}


def find_portions(results: Path) -> dict[Portion, Path]:
    """Return the results of all portions: `out/results.jsonl` -> `out/results-0-of-8.jsonl`, ...

    Raises:
        SettingsError: If there are none, if one is missing, or if there are those of several divisions.
    """
    found = _beside(results)
    counts = sorted({portion.count for portion in found})
    if not counts:
        raise SettingsError(
            f"there are no results of portions of {results}; expected {Portion(0, 8).beside(results)} and so on, as "
            "headrace run --shard 0/8 --results writes them"
        )
    if len(counts) > 1:
        raise SettingsError(
            f"beside {results} there are results of {' and of '.join(map(str, counts))} portions: an item would be there "
            "twice; take those of one division away"
        )
    missing = [str(one) for one in (Portion(index, counts[0]) for index in range(counts[0])) if one not in found]
    if missing:
        raise SettingsError(
            f"of {counts[0]} portions {len(missing)} have no results: --shard {', '.join(missing[:_MOST_NAMED])}"
        )
    return found


def _beside(results: Path) -> dict[Portion, Path]:
    found: dict[Portion, Path] = {}
    # One of no items has a checkpoint alone.
    files = results.parent.iterdir() if results.parent.is_dir() else ()
    for name in {path.name.removesuffix(_CHECKPOINT) for path in files}:
        if (portion := _portion_of(name, results)) is not None:
            found[portion] = results.with_name(name)
    return found


def look_at(
    portion: Portion, path: Path | str, open_results: Callable[[str], Delivery | None], place: Path | None = None
) -> Gathered:
    """Return what became of a portion; what a killed process left unfinished in its results is cut off.

    Args:
        portion: Which.
        path: Its results.
        open_results: Returns the delivery of results that are named so. None: those of the program's own delivery, which
            cannot be read back; its checkpoint notes each of them.
        place: Its checkpoint; None: beside its results.

    Raises:
        CheckpointError: If it is at work, or if nobody knows what it was to do.
        SettingsError: If its results cannot be read back.
    """
    delivery = open_results(str(path))
    recoverable: Recoverable | None = None
    if delivery is not None and isinstance(delivery, Recoverable) and delivery.checkpoint is not None:
        recoverable = delivery
    place = place or (recoverable.checkpoint if recoverable else None)
    if place is None or (delivery is not None and recoverable is None):
        raise SettingsError(f"{path}: these results cannot be read back")
    journal_path = place / JOURNAL
    if not journal_path.is_file():
        raise CheckpointError(f"portion {portion} has results, and no checkpoint {place}, so nobody knows "
                              "whether they are all (of a list in Python there is none)")  # fmt: skip
    try:
        journal = Journal(journal_path)
    except Locked:
        raise CheckpointError(f"portion {portion} is at work: wait for it, or stop it") from None
    try:
        past = Past()
        for record in journal.records:
            past.read(record)
        header = journal.header or {}
        delivered = {item for item, kind in past.done.items() if kind == "delivered"}
        if recoverable is not None:
            delivered = recoverable.recover(header.get("mark", {}))
    except FileNotFoundError:
        delivered = set()
    finally:
        journal.close()
    ends = [kind for item, kind in past.done.items() if item not in delivered]
    left = int(header.get("entries", 0)) - len(delivered) - len(ends)
    return Gathered(
        portion=portion, results=Path(path), delivered=delivered, rejected=ends.count("rejected"),
        given_up=ends.count("given_up"), left=max(left, int(past.is_cut_off or past.has_more)),
        source=str(header.get("source", "")).removeprefix(f"portion {portion} of "), pipeline=str(header.get("pipeline", "")),
        listed=past.num_listed, is_again=recoverable is not None and _has_earlier(Path(path), header.get("mark", {})),
    )  # fmt: skip


def _has_earlier(path: Path, mark: Mapping[str, Any]) -> bool:
    """Return whether there are results from before a run's mark: before a place in a file, or in parts of other names."""
    if path.is_dir():
        return any(not part.name.startswith(str(mark.get("parts", "part"))) for part in _parts(path))
    return int(mark.get("offset", 0)) > 0


def find_mixed(gathered: Sequence[Gathered]) -> list[str]:
    """Return in what portions differ that should be of one run: what they are portions of, and by what they were done."""
    kinds = {"sources": {one.source for one in gathered}, "pipelines": {one.pipeline for one in gathered}}
    return [
        f"the portions are of {len(values)} {what}: {', '.join(sorted(values)[:5])}"
        for what, values in kinds.items()
        if len(values) > 1
    ]


def find_growth(gathered: Sequence[Gathered]) -> str:
    """Return which portions began before the source had all the items that it had later; empty: none."""
    counts = {one.listed: one.portion for one in gathered if one.listed is not None}
    if len(counts) < 2:
        return ""
    least, most = min(counts), max(counts)
    behind = [str(one.portion) for one in gathered if one.listed is not None and one.listed < most]
    others = f" and {len(behind) - _MOST_NAMED} others" if len(behind) > _MOST_NAMED else ""
    return (
        f"the source changed between the portions: {least:,} items when {counts[least]} began, {most:,} when "
        f"{counts[most]} did; what came later may be missing: --resume --shard {', '.join(behind[:_MOST_NAMED])}{others} "
        f"{'does' if len(behind) == 1 else 'each do'} what is new there"
    )


def find_doubled(gathered: Sequence[Gathered]) -> list[str]:
    """Return the ids that several portions have results of; there are none unless the source was another one."""
    seen: set[str] = set()
    doubled: set[str] = set()
    for one in gathered:
        doubled |= seen & one.delivered
        seen |= one.delivered
    return sorted(doubled)


def join(gathered: Sequence[Gathered], results: Path, *, replaces: bool = False) -> None:
    """Put the results of all portions together, in their order: lines into one file, parts into one folder.

    Args:
        gathered: All of them.
        results: To write.
        replaces: Whether what is there is what was put together before, of which all is in the portions still.

    Raises:
        SettingsError: If something is there already.
        OSError: If it cannot be written; nothing is left of it then.
    """
    with _alone_in(results.parent):
        if results.exists() and not replaces:
            raise SettingsError(f"{results} is there already; take it away, or leave it and read the portions")
        new = results.with_name(f"{results.name}.new")
        try:
            written = [one for one in gathered if one.results.exists()]
            if written and all(one.results.is_dir() for one in written):
                _join_parts(written, new)
            else:
                _join_lines(written, new)
            if results.is_dir():
                shutil.rmtree(results)
            new.rename(results)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            with contextlib.suppress(OSError):
                new.unlink()
            raise


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until nobody else puts results together in a folder: two would write the same file."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems know no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _join_lines(gathered: Sequence[Gathered], new: Path) -> None:
    with new.open("wb") as file:
        for one in gathered:
            with one.results.open("rb") as lines:
                shutil.copyfileobj(lines, file, _COPY_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _join_parts(gathered: Sequence[Gathered], new: Path) -> None:
    shutil.rmtree(new, ignore_errors=True)  # of a kill
    new.mkdir()
    for one in gathered:
        for part in _parts(one.results):
            target = new / f"{part.stem}-{one.portion.name}{part.suffix}"
            try:
                os.link(part, target)
            except OSError:  # another file system, or one without links
                shutil.copyfile(part, target)


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.name.startswith("part-") and path.is_file())


def _portion_of(name: str, results: Path) -> Portion | None:
    """Return the portion whose results have this name; None: it is the name of something else."""
    if not (name.startswith(results.stem) and name.endswith(results.suffix)):
        return None
    found = _NAME.fullmatch(name[len(results.stem) : len(name) - len(results.suffix)])
    return Portion(int(found[1]), int(found[2])) if found and int(found[1]) < int(found[2]) else None
