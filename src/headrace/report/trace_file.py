"""What the formats of a timeline share: the file that takes its name when it is complete, and what is told of it."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from headrace.base.errors import RunFolderError
from headrace.report.timeline import CHUNK, Timeline
from headrace.runs.reader import Run

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What was written."""

    path: Path
    num_items: int
    """Jobs shown, each with its children."""
    num_items_total: int
    """Jobs that the run folder has spans of."""
    num_spans: int
    num_spans_total: int
    num_slices: int
    num_flows: int
    """Arrows, each following one item."""
    num_samples: int
    """Values of counters."""
    num_bytes: int
    """Size of the file."""
    notes: tuple[str, ...]
    """What is not shown, or not as it was measured, and why; also in the trace."""


@contextlib.contextmanager
def trace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name when it is complete; compressed when that ends in `.gz`.

    Raises:
        RunFolderError: If it cannot be written; what had the name before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.suffix == ".gz":
                # Level 1 takes a third of the time of 6, and the file is a fifth larger. No time in it: same run, same file.
                with gzip.GzipFile("", "wb", 1, file, mtime=0) as compressed:
                    yield compressed  # type: ignore[misc]
            else:
                yield file
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"trace {path} cannot be written: {error.strerror or error}; choose another name or free space on the disk"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def about(run: Run, timeline: Timeline) -> dict[str, Any]:
    """Return what a trace says of itself."""
    info = run.info
    return {
        "run": run.path.name,
        "pipeline": info.pipeline,
        "headrace_version": info.headrace_version,
        "status": info.status,
        "plan_ids": list(info.plans),
        "started_unix_seconds": info.started_unix_seconds,
        "items_shown": timeline.num_items,
        "items": timeline.num_items_total,
        "notes": timeline.notes,
    }


def summary(path: Path, timeline: Timeline, num_samples: int) -> TraceSummary:
    """Return what a finished trace file holds."""
    return TraceSummary(
        path,
        timeline.num_items,
        timeline.num_items_total,
        timeline.num_spans,
        timeline.num_spans_total,
        len(timeline.begin),
        timeline.num_flows,
        num_samples,
        path.stat().st_size,
        tuple(timeline.notes),
    )


def chunks(values: Iterator[_Value]) -> Iterator[list[_Value]]:
    """Yield values in lists that are small enough to be held."""
    while chunk := list(itertools.islice(values, CHUNK)):
        yield chunk
