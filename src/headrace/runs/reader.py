"""Reads a run folder back, and names what could not be read instead of leaving it out in silence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.documents import decode_document
from headrace.base.errors import RunFolderError
from headrace.base.formatting import pluralize, quote_arg
from headrace.base.records import SCHEMA_VERSION
from headrace.runs.contained_files import MOST_ROWS, own_file
from headrace.runs.errors_log import ErrorLine
from headrace.runs.file_names import ERRORS_FILE, RUN_JSON, SPANS_FOLDER
from headrace.runs.member_folders import find_members
from headrace.runs.resource_files import read_resources, read_states
from headrace.runs.run_folder import RunInfo
from headrace.runs.span_files import SPAN_SCHEMA

STILL_RUNNING = (
    f"{RUN_JSON} says the run is still running: it is, or it was killed; spans of its last seconds may be missing"
)


class Run:
    """One run as its folder tells it. Reads spans once, when they are first asked for.

    Attributes:
        path: The folder.
        info: `run.json`.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        self.info = info
        self._span_problems: list[str] | None = None

    def spans(self) -> Any:
        """Return a `pyarrow.Table` of `span_files.SPAN_SCHEMA`, in the order of the files' names.

        Times are those of each span's own host; `info.clock_offsets_ns` brings them onto one clock. Rows of files that
        cannot be read are missing; `problems` names those files.
        """
        return self._spans

    def span_tables(self) -> Iterator[Any]:
        """Yield the spans of one file after the other, as `spans` has them, and keep none: where all take too much memory."""
        return self._read_span_files(_NARROW_ROW_BYTES)

    def errors(self) -> list[ErrorLine]:
        """Return the deliveries of jobs that did not succeed and have a line in `errors.jsonl`, in order."""
        return self._errors_and_problems[0]

    def resources(self) -> Any:
        """Return a `pyarrow.Table` of `resource_files.resource_schema`, in order of time; empty if nothing was sampled."""
        return self._resources_and_problems[0]

    def states(self) -> Any:
        """Return a `pyarrow.Table` of `resource_files.state_schema`, in order of time; empty if nothing was sampled."""
        return self._states_and_problems[0]

    def stage_names(self) -> list[str]:
        """Return the stages that have spans, in the order in which they first began to work."""
        table = self.spans().select(["stage", "started"])
        first = table.group_by("stage").aggregate([("started", "min")]).sort_by("started_min")
        return [str(name) for name in first.column("stage").to_pylist()]

    @property
    def problems(self) -> list[str]:
        """What is missing from this folder or cannot be trusted, one sentence each; reads everything to find out."""
        found = []
        if self.info.status == "running" and not self.info.window:
            found.append(STILL_RUNNING)
        if self.info.lost_spans:
            found.append(f"{self.info.lost_spans:,} spans could not be written during the run")
        found += self._problems_of_spans() + self._errors_and_problems[1]
        return found + self._resources_and_problems[1] + self._states_and_problems[1]

    @cached_property
    def _resources_and_problems(self) -> tuple[Any, list[str]]:
        return read_resources(self.path)

    @cached_property
    def _states_and_problems(self) -> tuple[Any, list[str]]:
        return read_states(self.path)

    @cached_property
    def _spans(self) -> Any:
        return pa.concat_tables([SPAN_SCHEMA.empty_table(), *self._read_span_files(_ROW_BYTES)]).unify_dictionaries()

    def _problems_of_spans(self) -> list[str]:
        if self._span_problems is None and self.info.unit == "step":
            deque(self.span_tables(), maxlen=0)
        elif self._span_problems is None:
            self.spans()
        return self._span_problems or []

    def _read_span_files(self, row_bytes: int) -> Iterator[Any]:
        """Yield the table of each file; note which cannot be read.

        Args:
            row_bytes: Memory that a span takes at whoever reads.
        """
        problems = []
        folder = self.path / SPANS_FOLDER
        if not folder.is_dir():
            problems.append(f"there is no folder {SPANS_FOLDER}: nothing was measured, or it was removed")
        room = _rows_that_fit(row_bytes)
        for file in sorted(folder.glob("[!.]*.parquet")):
            try:
                table = _read_span_file(own_file(self.path, file), room)
            except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are subclasses of these
                problems.append(f"{SPANS_FOLDER}/{file.name} cannot be read and is left out: {_first_line(error)}")
                continue
            room -= len(table)
            yield table
        self._span_problems = problems

    @cached_property
    def _errors_and_problems(self) -> tuple[list[ErrorLine], list[str]]:
        file = self.path / ERRORS_FILE
        try:
            content = own_file(self.path, file).read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], [f"{ERRORS_FILE} cannot be read: {error.strerror}"]
        lines, num_unreadable, problems = [], 0, []
        for line in content.splitlines():
            try:
                lines.append(decode_document(line, ErrorLine))
            except msgspec.DecodeError:
                not_written = _read_not_written(line)
                if not_written is None:
                    num_unreadable += bool(line)
                else:
                    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in not_written.items())
                    problems.append(f"{ERRORS_FILE} is not complete; without a line of their own: {counts}")
        if num_unreadable:
            problems.append(f"{num_unreadable:,} lines of {ERRORS_FILE} cannot be read and are left out")
        return lines, problems


def read_run(path: str | Path) -> Run:
    """Return the run in a folder.

    Raises:
        RunFolderError: If it is not a run folder, or its `run.json` is damaged or written by a newer headrace.
    """
    path = Path(path)
    return Run(path, read_info(path))


def read_info(path: Path) -> RunInfo:
    """Return what `run.json` of a run folder holds; raises as `read_run` does."""
    file = path / RUN_JSON
    try:
        content = own_file(path, file).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if members := find_members(path):
            raise RunFolderError(
                f"{path} holds a run of several processes ({len(members)}), and this reads that of one; name it: "
                f"{', '.join(map(str, members[:2]))}, ... `headrace diagnose {quote_arg(path)}` shows all, "
                "and `headrace compare` and `headrace report` take all of them, too"
            ) from error
        if inner := sorted(path.glob(f"*/{RUN_JSON}")):  # as `headrace train scale` leaves them
            raise RunFolderError(
                f"{path} has no {RUN_JSON}, and holds {pluralize(len(inner), 'run folder')}; name one, such as "
                f"{inner[0].parent}"
            ) from error
        what = f"has no {RUN_JSON}" if path.is_dir() else "does not exist" if not path.exists() else "is not a folder"
        raise RunFolderError(
            f"{path} {what}; expected a run folder as `headrace run -o RUN` or `headrace profile -o RUN` writes it"
        ) from error
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror}") from error
    return _decode_info(file, content)


#: Memory that a span takes while a run is read, and while it is read file by file and narrowed, with what is worked out of it.
_ROW_BYTES, _NARROW_ROW_BYTES = 450, 200
#: Nanoseconds of 146 years.
_LARGEST = 1 << 62


class _Version(msgspec.Struct):
    schema_version: int


def _decode_info(file: Path, content: bytes) -> RunInfo:
    try:
        # The version alone first: of a newer one nothing else need have the form known here.
        version = decode_document(content, _Version).schema_version
        if version > SCHEMA_VERSION:
            raise RunFolderError(
                f"{file} has schema version {version}, and this headrace reads up to {SCHEMA_VERSION}; "
                "it was written by a newer headrace: upgrade with pip install -U headrace"
            )
        _check_numbers(decode_document(content, Any))
        return decode_document(content, RunInfo)
    except msgspec.DecodeError as error:
        raise RunFolderError(
            f"{file} is damaged ({error}); it was cut off or edited. The spans beside it may still be whole: copy a "
            f"{RUN_JSON} of the same pipeline and machine there to read them, or run again"
        ) from error


def _check_numbers(value: Any) -> None:
    """Raise unless every whole number is one that times and counts can be, with room for their sums in 64 bits."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise msgspec.ValidationError(f"{value:.3g} is larger than any count or time")


def _rows_that_fit(row_bytes: int) -> int:
    """Return how many spans of so many bytes half of the free memory takes."""
    import psutil

    return int(psutil.virtual_memory().available / 2 / row_bytes)


def _read_span_file(file: Path, room: int) -> Any:
    content = pq.ParquetFile(file)
    if content.metadata.num_rows > MOST_ROWS:
        raise ValueError(
            f"it has {content.metadata.num_rows:,} rows; headrace writes at most {MOST_ROWS:,} into one file"
        )
    if content.metadata.num_rows > room:
        raise ValueError(
            f"it has {content.metadata.num_rows:,} rows, and the memory that is free takes {max(room, 0):,} more"
        )
    table = content.read()
    if "weight" not in table.column_names:  # schema version 1 wrote every span
        table = table.append_column("weight", pa.repeat(pa.scalar(1, pa.int32()), len(table)))
    if "cached" not in table.column_names:  # before schema version 3 no span said so
        table = table.append_column("cached", pa.nulls(len(table), SPAN_SCHEMA.field("cached").type))
    missing = [name for name in SPAN_SCHEMA.names if name not in table.column_names]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}")
    return table.select(SPAN_SCHEMA.names).cast(SPAN_SCHEMA)


def _read_not_written(line: bytes) -> dict[str, int] | None:
    try:
        return decode_document(line, dict[str, dict[str, int]])["not_written"]
    except (msgspec.DecodeError, KeyError):
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
