"""Resources and thread states over time: `resources.parquet` and `states.parquet` of a run folder.

How this works: while the run goes on, whoever measures appends lines to `resources/NAME.jsonl` or `states/NAME.jsonl`, one
writer for each file, so that a SIGKILL of everything loses at most the last moment; a last line that was cut off is left out.
When all writers have closed, `seal` turns the lines into Parquet, renames that into place and removes them. Who reads gets
the sealed file if there is one, else the lines. Nothing heavy is imported with this module: the sampler process uses it.

A line of resources is `{"time": ns, "values": {scope: {name: value}}}`. Lines of states are `{"threads": [[process, name]]}`,
which says whose states follow, and `{"time": ns, "states": "Rrgl"}`, one letter of `STATES` for each of those threads, a
capital one for a thread that ran with the GIL. Times are the host's CLOCK_MONOTONIC. What was not measured has no row; it is
never 0.

Scopes and what is measured in each (units in `NAMES`; a rate is over the time since the sample before):

`machine`
    cpu_busy_cores              cores at work, all users of the machine together
    cpu_steal_ratio             share of the cores' time that the hypervisor gave to others
    cpu_iowait_ratio            share of the cores' time idle while something waited for a disk
    runnable                    threads on a core or waiting for one, at this moment, without the sampler's
    cpu_pressure_ratio          share of the time in which some thread waited for a core (PSI)
    io_pressure_ratio           ... for a disk
    memory_pressure_ratio       ... for memory: reclaim, swap, refault
    memory_available_bytes      what can be had without swapping
    swap_in_bytes_per_second, swap_out_bytes_per_second
    throttled_ratio             share of the scheduler's periods in which the control group's CPU quota stopped it
    throttled_cpu_cores         cores on which it had work and was stopped, on an average over the time
    cpu_frequency_hertz         mean over cores, where the kernel tells
    usable_cores                cores that the run may use, by affinity; flight recorder only
    quota_cores                 cores' worth of time that the control groups allow; no row without a limit; flight recorder only
    other_cpu_cores             cores at work for others: cpu_busy_cores less the run's processes and the sampler
`cpuN`
    busy_ratio                  share of the core's time at work
`processes`, the run's process and its descendants, without the sampler
    cpu_cores                   CPU time per time, of ended children too
    rss_bytes                   resident memory; pages that processes share count in each of them
    minor_faults_per_second, major_faults_per_second    page faults; a major one waited for a disk
    num_processes, threads, open_files
    native_runnable             threads on a core or waiting for one that headrace has not started: those of libraries
    voluntary_switches_per_second, involuntary_switches_per_second    a thread gave up its core; lost it. Every 2 s
    read_bytes_per_second, write_bytes_per_second    from and to storage; what the page cache answered is not in it
`disk:NAME`
    read_bytes_per_second, write_bytes_per_second
    busy_ratio                  share of the time with a request under way
`network:NAME`
    receive_bytes_per_second, send_bytes_per_second
`gpuN`, numbered as the driver does
    utilization_ratio           share of the time in which some kernel ran; says nothing of how much of the GPU it used
    memory_utilization_ratio    share of the time in which GPU memory was read or written
    memory_bytes                in use, by anybody
    sm_clock_hertz, power_watts, temperature_celsius
    throttled_by_power, throttled_by_heat, throttled_by_hardware    1 while the clock is held down for this reason, else 0
`run`, from the profiled process
    in_flight                   jobs received and not yet settled
    received, settled, delivered    jobs since the start
    failed                      deliveries that were rejected, dead-lettered or are tried again; flight recorder only
    longest_call_seconds        how long the oldest call of a stage lasts by now; flight recorder only
    gc_seconds                  in Python's cyclic collector since the first job; it holds the GIL meanwhile
    gc_collections, gc_full_collections    how often it ran, and over every object; `gc.collect()` counts too
`source`, where it is a queue, from the profiled process
    visible                     jobs that could be received now
    source_in_flight            received by whomever and not yet acked
    oldest_age_seconds          age of the oldest that could be received; no row where none could, or the queue does not tell
`stage:NAME`, from the profiled process
    queue_depth, queue_bytes    what waits before the stage
    busy_workers                at work
    workers                     at work or not; flight recorder only
    waiting_producers           workers of stages before it that wait because the queue is full
    gc_seconds                  of the run's, in collections that threads of its workers made; profiles only

References:
    Linux kernel: Documentation/accounting/psi.rst, filesystems/proc.rst, admin-guide/iostats.rst, admin-guide/cgroup-v2.rst.
    NVIDIA Management Library API reference.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.runs.contained_files import is_own_folder, own_file

logger = logging.getLogger("headrace")

RESOURCES_FILE = "resources.parquet"
RESOURCES_FOLDER = "resources"
STATES_FILE = "states.parquet"
STATES_FOLDER = "states"
#: Equal rows take no space in a file, and all of it in memory.
_MOST_ROWS = 50_000_000

#: {name: unit} of everything in a resource table.
NAMES: dict[str, str] = {
    "busy_ratio": "ratio",
    "busy_workers": "count",
    "cpu_busy_cores": "count",
    "cpu_cores": "count",
    "cpu_frequency_hertz": "hertz",
    "cpu_iowait_ratio": "ratio",
    "cpu_pressure_ratio": "ratio",
    "cpu_steal_ratio": "ratio",
    "delivered": "items",
    "failed": "items",
    "gc_collections": "count",
    "gc_full_collections": "count",
    "gc_seconds": "seconds",
    "in_flight": "items",
    "involuntary_switches_per_second": "1/s",
    "io_pressure_ratio": "ratio",
    "longest_call_seconds": "seconds",
    "major_faults_per_second": "1/s",
    "memory_available_bytes": "bytes",
    "memory_bytes": "bytes",
    "memory_pressure_ratio": "ratio",
    "memory_utilization_ratio": "ratio",
    "minor_faults_per_second": "1/s",
    "native_runnable": "count",
    "num_processes": "count",
    "oldest_age_seconds": "seconds",
    "open_files": "count",
    "other_cpu_cores": "count",
    "power_watts": "watts",
    "queue_bytes": "bytes",
    "queue_depth": "items",
    "quota_cores": "count",
    "read_bytes_per_second": "bytes/s",
    "receive_bytes_per_second": "bytes/s",
    "received": "items",
    "rss_bytes": "bytes",
    "runnable": "count",
    "send_bytes_per_second": "bytes/s",
    "settled": "items",
    "sm_clock_hertz": "hertz",
    "source_in_flight": "items",
    "swap_in_bytes_per_second": "bytes/s",
    "swap_out_bytes_per_second": "bytes/s",
    "temperature_celsius": "celsius",
    "threads": "count",
    "throttled_by_hardware": "ratio",
    "throttled_by_heat": "ratio",
    "throttled_by_power": "ratio",
    "throttled_cpu_cores": "count",
    "throttled_ratio": "ratio",
    "usable_cores": "count",
    "utilization_ratio": "ratio",
    "visible": "items",
    "voluntary_switches_per_second": "1/s",
    "waiting_producers": "count",
    "workers": "count",
    "write_bytes_per_second": "bytes/s",
}

#: {letter in a line: state in the table}.
STATES = {
    "r": "running",  # or runnable: the kernel tells the two apart by the run-queue delay of spans
    "g": "gil",  # waits for Python's global interpreter lock
    "l": "lock",  # any other lock, condition or native pool
    "s": "sleep",
    "n": "network",
    "p": "process",  # pipe or socket to another process of this machine, or its end
    "w": "output",  # writes to a pipe, a terminal or a socket of this machine whose other end does not read
    "d": "disk",  # files, and pages that have to be read: blocked outside any system call
    "o": "other",
}
#: The thread has ended or could not be read: no row.
ABSENT = "-"

#: Lines turned into columns at once, so that an hours-long run does not fill the memory.
_LINES_AT_ONCE = 10_000

_ZSTD: dict[str, Any] = {"compression": "zstd", "column_encoding": {"time": "DELTA_BINARY_PACKED"}}


def resource_schema() -> Any:
    """Return the `pyarrow.Schema` of `resources.parquet`: time (int64, ns), scope, name (text), value (float64)."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    columns = [("time", pa.int64()), ("scope", text), ("name", text), ("value", pa.float64())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def state_schema() -> Any:
    """Return the `pyarrow.Schema` of `states.parquet`: time (int64, ns), process (int32), thread, state (text), has_gil (bool).

    Files of before 2026-12 have no `has_gil`; where nobody is seen with the GIL, it was not looked for.
    """
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    columns = [
        ("time", pa.int64()),
        ("process", pa.int32()),
        ("thread", text),
        ("state", text),
        ("has_gil", pa.bool_()),
    ]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


class LineFile:
    """A file that only grows, a whole line at a time. Not thread-safe. Trouble with the disk never raises.

    Attributes:
        lost_lines: Lines that could not be written.
    """

    def __init__(self, path: Path) -> None:
        self.lost_lines = 0
        self._path = path
        self._file = -1
        self._torn = False
        self._complained = False

    def append(self, text: str, num_lines: int = 1) -> None:
        """Write lines; each must end in a newline.

        Args:
            text: The lines.
            num_lines: How many there are, for `lost_lines`.
        """
        content = text.encode()
        if self._torn:  # a full disk took a part of a line: end it, so that the next one stands alone
            content = b"\n" + content
        try:
            if self._file < 0:
                self._path.parent.mkdir(exist_ok=True)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            written = os.write(self._file, content)
        except OSError as error:
            self._lose(num_lines, error.strerror or str(error))
            return
        self._torn = written < len(content) or (self._torn and written == 0)
        if self._torn:
            whole = content[:written].count(b"\n")
            self._lose(max(1, num_lines - whole), "the disk is full")

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)

    def _lose(self, num_lines: int, reason: str) -> None:
        self.lost_lines += num_lines
        if not self._complained:
            self._complained = True
            logger.error(
                "%s cannot be written: %s; what is measured meanwhile is lost and counted, and the run goes on. "
                "Free space on the disk to have the rest.",
                self._path,
                reason,
            )


class ResourceWriter:
    """Appends samples of resources to a run folder. Not thread-safe; never raises for the disk's sake.

    Attributes:
        lost_ticks: Calls of `write` whose values could not be written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Name the file; it is made by the first `write`.

        Args:
            folder: The run folder.
            name: Of the writer, different for each of a run: the file is `resources/NAME.jsonl`.
        """
        self._file = LineFile(folder / RESOURCES_FOLDER / f"{name}.jsonl")

    @property
    def lost_ticks(self) -> int:
        """Calls of `write` whose values could not be written."""
        return self._file.lost_lines

    def write(self, time_ns: int, values: Mapping[str, Mapping[str, float | None]]) -> None:
        """Append what was measured at one moment.

        Args:
            time_ns: The host's CLOCK_MONOTONIC, ns.
            values: {scope: {name: value}}. None and what is not finite count as not measured and are left out.
        """
        kept = {
            scope: measured
            for scope, names in values.items()
            if (
                measured := {name: value for name, value in names.items() if value is not None and math.isfinite(value)}
            )
        }
        if kept:
            self._file.append(json.dumps({"time": time_ns, "values": kept}, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StateWriter:
    """Appends samples of thread states to a run folder, some at a time. Not thread-safe; never raises for the disk's sake.

    Attributes:
        lost_lines: Samples that could not be written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Name the file, `states/NAME.jsonl` of the run folder; it is made by the first `flush`."""
        self._file = LineFile(folder / STATES_FOLDER / f"{name}.jsonl")
        self._lines: list[str] = []

    @property
    def lost_lines(self) -> int:
        """Samples that could not be written."""
        return self._file.lost_lines

    def name_threads(self, threads: Sequence[tuple[int, str]]) -> None:
        """Say whose states follow: (process, name of the thread) each."""
        self._lines.append(json.dumps({"threads": threads}) + "\n")

    def write(self, time_ns: int, states: str) -> None:
        """Keep one sample for the next `flush`: a letter of `STATES`, a capital one with the GIL, or `ABSENT` for each."""
        self._lines.append(f'{{"time":{time_ns},"states":"{states}"}}\n')

    def flush(self) -> None:
        """Write what is kept."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._file.append("".join(lines), len(lines))

    def close(self) -> None:
        """Write what is kept and close the file."""
        self.flush()
        self._file.close()


def seal(folder: Path) -> list[str]:
    """Turn the lines in a run folder into `resources.parquet` and `states.parquet`; call it when all writers have closed.

    A run without lines gets no such file. May be called again; a file that is already there is kept if there are no lines.

    Returns:
        What went wrong, one sentence each. Lines that could not be turned are still there, and are read instead.
    """
    problems = []
    for raw, name in ((RESOURCES_FOLDER, RESOURCES_FILE), (STATES_FOLDER, STATES_FILE)):
        if not _raw_files(folder, raw):
            continue
        try:
            problems += _seal(folder, raw, name)
        except Exception as error:  # Whatever it is, a run that has ended well must not fail here.
            problems.append(f"{name} cannot be written: {error}; the lines in {raw}/ are kept and read instead")
    return problems


def read_resources(folder: Path) -> tuple[Any, list[str]]:
    """Return a run folder's resources as a `pyarrow.Table` of `resource_schema`, in order of time, and problems found."""
    return _read(folder, RESOURCES_FOLDER, RESOURCES_FILE)


def read_states(folder: Path) -> tuple[Any, list[str]]:
    """Return a run folder's thread states as a `pyarrow.Table` of `state_schema`, in order of time, and problems found."""
    return _read(folder, STATES_FOLDER, STATES_FILE)


def remove_resource_files(folder: Path) -> None:
    """Remove everything that this module writes into a run folder, and nothing else.

    Raises:
        OSError: If a file cannot be removed.
    """
    for raw, name in ((RESOURCES_FOLDER, RESOURCES_FILE), (STATES_FOLDER, STATES_FILE)):
        (folder / name).unlink(missing_ok=True)
        _temporary(folder, name).unlink(missing_ok=True)
        _remove_raw(folder, raw)


def _remove_raw(folder: Path, raw: str) -> None:
    if not is_own_folder(folder, folder / raw):
        return
    for file in _raw_files(folder, raw):
        file.unlink()
    with contextlib.suppress(OSError):  # it is not there, or somebody else's files are in it
        (folder / raw).rmdir()


def _raw_files(folder: Path, raw: str) -> list[Path]:
    return sorted((folder / raw).glob("*.jsonl"))


def _temporary(folder: Path, name: str) -> Path:
    return folder / f".{name}.tmp"


def _seal(folder: Path, raw: str, name: str) -> list[str]:
    import pyarrow.parquet as pq

    lines = _RawLines(folder, raw)
    schema, temporary = lines.schema, _temporary(folder, name)
    texts = [field.name for field in schema if str(field.type).startswith("dictionary")]
    try:
        with pq.ParquetWriter(temporary, schema, use_dictionary=texts, **_ZSTD) as writer:
            for table in lines.tables():
                writer.write_table(table)
        os.replace(temporary, folder / name)
    finally:
        temporary.unlink(missing_ok=True)
    _remove_raw(folder, raw)
    return lines.problems


def _read(folder: Path, raw: str, name: str) -> tuple[Any, list[str]]:
    import pyarrow as pa

    lines, problems, tables = _RawLines(folder, raw), [], []
    file = folder / name
    if file.exists():
        try:
            tables = [_with_all(_table(own_file(folder, file)), lines.schema)]
        except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are subclasses of these
            problems.append(f"{name} cannot be read and is left out: {(str(error).splitlines() or ['damaged'])[0]}")
    if not tables:
        tables = list(lines.tables())
        problems += lines.problems
    return _sort_by_time(pa.concat_tables([lines.schema.empty_table(), *tables]).unify_dictionaries()), problems


def _with_all(table: Any, schema: Any) -> Any:
    """Return a table with the columns of a schema; one that older files do not have says no."""
    import pyarrow as pa

    if "has_gil" in schema.names and "has_gil" not in table.column_names:
        table = table.append_column("has_gil", pa.array([False] * table.num_rows, pa.bool_()))
    return table.select(schema.names).cast(schema)


def _table(file: Path) -> Any:
    import pyarrow.parquet as pq

    content = pq.ParquetFile(file)
    if content.metadata.num_rows > _MOST_ROWS:
        raise ValueError(f"it has {content.metadata.num_rows:,} rows; expected at most {_MOST_ROWS:,}")
    return content.read()


def _sort_by_time(table: Any) -> Any:
    """Return the table in order of time; several writers' rows stand one after another."""
    import numpy as np

    times = table.column("time").to_numpy()
    return table if bool(np.all(times[1:] >= times[:-1])) else table.sort_by("time")


class _RawLines:
    """The lines of one raw folder.

    Attributes:
        schema: Of the tables.
        problems: What could not be read, after `tables` has come to its end.
    """

    def __init__(self, folder: Path, raw: str) -> None:
        self.schema = resource_schema() if raw == RESOURCES_FOLDER else state_schema()
        self.problems: list[str] = []
        self._folder = folder
        self._files = _raw_files(folder, raw)
        self._make = _Resources if raw == RESOURCES_FOLDER else _States

    def tables(self) -> Iterator[Any]:
        """Yield the rows, some at a time."""
        for path in self._files:
            unreadable, columns = 0, self._make(self.schema)
            try:
                with own_file(self._folder, path).open("rb") as file:
                    for number, line in enumerate(file, start=1):
                        # A last line without its end was being written when everything was killed.
                        unreadable += line.endswith(b"\n") and not columns.take(line)
                        if number % _LINES_AT_ONCE == 0:
                            yield columns.table()
            except OSError as error:
                self.problems.append(f"{path.parent.name}/{path.name} cannot be read to its end: {error.strerror}")
            yield columns.table()
            if unreadable:
                what = f"{unreadable:,} lines of {path.parent.name}/{path.name}"
                self.problems.append(f"{what} cannot be read and are left out; a full disk cuts lines")


#: What reading a line raises that is cut off, or was never ours.
_NOT_A_LINE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def _time(line: Any) -> int:
    """Return a line's time in nanoseconds, which has to fit its column."""
    time = int(line["time"])
    if not -(1 << 62) < time < 1 << 62:
        raise OverflowError(time)
    return time


def _encodable(text: str) -> str:
    """Return text that UTF-8 can hold: JSON lets half characters through, Arrow does not."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Resources:
    """Collects lines of resources into columns."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._columns: tuple[list[Any], ...] = ([], [], [], [])

    def take(self, line: bytes) -> bool:
        """Return whether the line could be read."""
        try:
            tick = json.loads(line)
            time, values = _time(tick), tick["values"]
            rows = [
                (time, _encodable(scope), _encodable(name), float(value))
                for scope, names in values.items()
                for name, value in names.items()
            ]
        except _NOT_A_LINE:
            return not line.strip()
        for row in rows:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
        return True

    def table(self) -> Any:
        """Return the collected rows, and begin an empty batch."""
        import pyarrow as pa

        columns, self._columns = self._columns, ([], [], [], [])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)


class _States:
    """Collects lines of thread states into columns."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._threads: list[tuple[int, str]] = []
        self._times: list[int] = []
        self._letters: list[str] = []
        self._tables: list[Any] = []

    def take(self, line: bytes) -> bool:
        """Return whether the line could be read."""
        try:
            entry = json.loads(line)
            if "threads" in entry:
                threads = [(int(process), _encodable(name)) for process, name in entry["threads"]]
                self._end_segment()
                self._threads = threads
                return True
            time, letters = _time(entry), entry["states"]
        except _NOT_A_LINE:
            return not line.strip()
        if not isinstance(letters, str) or len(letters) != len(self._threads) or not letters.isascii():
            return False
        self._times.append(time)
        self._letters.append(letters)
        return True

    def table(self) -> Any:
        """Return the collected rows, and begin an empty batch; the last named threads stay."""
        import pyarrow as pa

        self._end_segment()
        tables, self._tables = self._tables, []
        return pa.concat_tables([self._schema.empty_table(), *tables]).unify_dictionaries()

    def _end_segment(self) -> None:
        """Make a table of the samples since the threads were named."""
        import numpy as np
        import pyarrow as pa

        times, letters, self._times, self._letters = self._times, self._letters, [], []
        count = len(self._threads)
        if not times or not count:
            return
        # One row for each letter: thread i of sample j stands at j * count + i.
        letter = np.frombuffer("".join(letters).encode(), np.uint8)
        codes = _codes_of_letters()[letter]
        present = codes >= 0
        thread = np.tile(np.arange(count, dtype=np.int32), len(times))[present]
        processes = np.array([process for process, _ in self._threads], np.int32)
        # Workers of two processes may have one name; a dictionary holds each once.
        names = list(dict.fromkeys(name for _, name in self._threads))
        name_codes = np.array([names.index(name) for _, name in self._threads], np.int32)
        arrays = [
            pa.array(np.repeat(np.array(times, np.int64), count)[present]),
            pa.array(processes[thread]),
            pa.DictionaryArray.from_arrays(name_codes[thread], pa.array(names, pa.string())),
            pa.DictionaryArray.from_arrays(codes[present], pa.array(list(STATES.values()), pa.string())),
            pa.array(letter[present] < ord("a")),
        ]
        self._tables.append(pa.Table.from_arrays(arrays, schema=self._schema))


def _codes_of_letters() -> Any:
    """Return an int32 array, (256,): the number of a letter's state in `STATES`, small or capital, -1 for what is none."""
    import numpy as np

    codes = np.full(256, -1, np.int32)
    codes[[ord(letter) for letter in STATES]] = codes[[ord(letter.upper()) for letter in STATES]] = range(len(STATES))
    return codes
