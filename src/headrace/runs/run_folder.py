"""The folder of one run, and its `run.json`.

    RUN/
      run.json                       RunInfo: what ran, on what, with which Plans, and how it ended
      spans/HOST-PID-NNNNNN.parquet  one row per unit and stage; see `span_files`
      resources.parquet              what the machine and the run's processes did; see `resource_files`
      states.parquet                 what the worker threads did
      errors.jsonl                   deliveries of jobs that did not succeed; see `errors_log`

`run.json` is replaced as a whole, never edited in place: a reader sees the old or the new file, never a half.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.documents import decode_document, encode_document
from headrace.base.formatting import encodable
from headrace.base.handoff import HandoffCost, handoff_cost
from headrace.base.records import SCHEMA_VERSION, Counters, Receiving, SourceWork, StreamRecord, Tending
from headrace.runs.earlier_run import discard, explain_unwritable, take_folder
from headrace.runs.file_names import RUN_JSON, SPANS_FOLDER
from headrace.runs.hardware import Hardware, find_hardware, find_versions
from headrace.runs.held_folder import HeldFolder

Status = Literal["running", "finished", "interrupted", "failed"]


class StageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the pipeline as it ran."""

    name: str
    kind: str
    """io, cpu or device."""
    role: str
    """map, fan_out, join or deliver."""
    releases_gil: bool
    executor: str
    """thread, process or inline."""
    station: str
    """The stage whose queue and workers it uses: itself, unless it is inline."""
    workers: int
    """Of that station."""
    most_workers: int | None = None
    """The same with those that were added in the places of workers that waited for a slow call; None: not noted."""
    task: str = ""
    """The task whose module it belongs to; empty where all tasks share it, or there is only one."""
    queue_capacity: int | None
    """Bound of that station's queue, in items; None where the receivers run it."""
    work: str = ""
    """What it does, as far as headrace knows: `download`, `decode`, `resize`, `preprocess`, `model`, `postprocess`, `deliver`;
    empty for a user's own stage, and for one that only takes time."""
    is_emulated: bool = False
    """It only takes time (`hr.emulated`); False too in runs of before 2026-11-23."""
    follows: str = ""
    """The stage whose options say what this one does as well; empty where none does, and in runs of before 2026-12."""
    fused: str = ""
    """Why it runs in the workers of the stage before: `plan`, which says so; `gil`: both compute with the GIL, and the Plan
    says nothing; `default` of the stage. Empty: it does not, or the run is older than 2026-11-23."""
    keeps_streams: bool = False
    """It needs the items of each stream in order, so it has one worker."""


class RunInfo(msgspec.Struct, kw_only=True):
    """What `run.json` holds. Unknown keys are ignored, so that a newer headrace may add some within one schema version."""

    schema_version: int
    """`base.records.SCHEMA_VERSION` of the headrace that wrote it."""
    headrace_version: str
    status: Status
    """Still `running` long after: the process was killed."""
    pipeline: str
    """Name of the pipeline, `module:attribute`."""
    options: list[str] = []
    """Options of the command line that chose Plan, settings and source, without secrets."""
    unit: str = "item"
    """What it counts: `item`; `frame` of video; `step`, where a model was trained."""
    served: bool = False
    """Its jobs were requests to `headrace serve`."""
    host: str
    """Host whose monotonic clock is the run's clock."""
    started_unix_seconds: float
    started_monotonic_ns: int
    """The host's monotonic clock at `started_unix_seconds`: span time t is Unix time
    started_unix_seconds + (t + clock_offsets_ns[host of the span] - started_monotonic_ns) / 1e9."""
    ended_unix_seconds: float | None = None
    ended_monotonic_ns: int | None = None
    plans: dict[str, dict[str, Any]] = {}
    """{plan_id: the Plan as a table}."""
    versions: dict[str, str] = {}
    """{distribution: version} of what was installed and can change what is measured."""
    hardware: Hardware = Hardware()
    handoff: HandoffCost | None = None
    """What it costs on this machine to wake a thread; None in runs of before 2026-11-23."""
    data_fingerprint: dict[str, Any] | None = None
    """What the items were, as far as the source can tell: number, bytes, hash of ids, ..."""
    counters: Counters = msgspec.field(default_factory=Counters)
    cost_curves: dict[str, dict[int, list[float]]] = {}
    """{device stage: {batch size: seconds of each call measured during warm-up}}; sizes above the Plan's only where somebody
    profiled."""
    cost_curve_cpu: dict[str, dict[int, list[float]]] = {}
    """{device stage: {batch size: CPU seconds of the calling thread in each of those calls}}."""
    variants: list[dict[str, Any]] = []
    """Models as opened: artifact and its hash, engine, threads, versions."""
    warnings: list[str] = []
    """What the settings do not add up to."""
    clock_offsets_ns: dict[str, int] = {}
    """{host: ns to add to its span times to have them on the run's clock}."""
    lost_spans: int = 0
    """Spans that could not be written; see `span_files`."""
    stages: list[StageInfo] = []
    """The stages, in the order an item meets them."""
    source_work: SourceWork | None = None
    """What the source does for each of its jobs, which are all there; None where it says nothing, and in runs of before
    2026-11-29."""
    streams: list[StreamRecord] = []
    """What became of the frames of each live stream, from the beginning of the run; as it was at most some seconds before a run
    was killed, or before what is recorded of an incident ends. Empty where there is none, and in runs of before 2026-11-30."""
    receiving: Receiving | None = None
    """None in runs of before 2026-11-21, or that did not live to write it."""
    tending: Tending | None = None
    """None in runs of before 2026-11-22, or that did not live to write it."""
    window: str = ""
    """Where the folder holds only some time of a run: which, and who recorded it. Empty: the whole run."""
    ended_by: str = ""
    """Of a program that was run for its training steps: `exit status 3`, `ended by SIGKILL`; empty: it ended well, or nothing
    of the kind was run."""
    summary: dict[str, Any] | None = None
    """Exact counts and sums of the whole run: the document `headrace.run/1` of `headrace run --json`."""


class RunFolder:
    """A run folder that is being written. Thread-safe.

    Attributes:
        path: The folder, wherever code of the run goes meanwhile.
        given: The same as it was named.
        spans: Its folder of span files.
        info: What `run.json` holds now; change it through `update`.
    """

    def __init__(self, path: Path, info: RunInfo, held: HeldFolder | None = None, *, in_code: bool = False) -> None:
        self.path, self.given = path.absolute(), path
        self.spans = self.path / SPANS_FOLDER
        self.info = info
        self._held, self._in_code = held, in_code
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        pipeline: str = "",
        options: Sequence[str] = (),
        unit: str = "item",
        served: bool = False,
        plans: Mapping[str, Mapping[str, Any]] | None = None,
        data_fingerprint: Mapping[str, Any] | None = None,
        force: bool = False,
        resumed: bool = False,
        in_code: bool = False,
        clock: Clock | None = None,
    ) -> RunFolder:
        """Make the folder, write a first `run.json` with status `running`, and return it.

        Args:
            path: New or empty folder; parents are made.
            pipeline: Name of the pipeline.
            options: Of the command line, which chose Plan, settings and source.
            unit: What it counts, `item`, `frame` or `step`.
            served: Whether its jobs are requests.
            plans: {plan_id: Plan as a table}; more may come with `update`.
            data_fingerprint: What the source tells about the items.
            force: Take the folder of an earlier run. The files of that run are removed; other files are left.
            resumed: Whether the run goes on with another, for the message.
            in_code: Whether the folder is an argument of a function, and no option of a command; for the message.
            clock: The run's clock.

        Raises:
            RunFolderError: If the folder is not empty and `force` is not given or no run was ever written there, or if it
                cannot be written.
        """
        path, clock = Path(path), clock or SystemClock()
        held = take_folder(path, force=force, resumed=resumed, in_code=in_code)
        try:
            (path / SPANS_FOLDER).mkdir(exist_ok=True)
        except OSError as error:
            raise explain_unwritable(path, error, in_code=in_code) from error
        host = socket.gethostname()
        info = RunInfo(
            schema_version=SCHEMA_VERSION,
            headrace_version=headrace_version(),
            status="running",
            pipeline=encodable(pipeline),
            options=[encodable(option) for option in options],
            unit=unit,
            served=served,
            host=host,
            started_unix_seconds=clock.unix_seconds(),
            started_monotonic_ns=clock.now_ns(),
            plans={plan_id: dict(table) for plan_id, table in (plans or {}).items()},
            versions=find_versions(),
            hardware=find_hardware(),
            handoff=handoff_cost(),
            data_fingerprint=dict(data_fingerprint) if data_fingerprint is not None else None,
            clock_offsets_ns={host: 0},
        )
        folder = cls(path, info, held, in_code=in_code)
        folder.update()
        return folder

    def update(self, **changes: Any) -> None:
        """Change fields of `info` and replace `run.json`.

        Args:
            **changes: Fields of RunInfo; each replaces what was there. Inside tables, values that JSON does not know are
                written as text.

        Raises:
            TypeError: If there is no such field.
            msgspec.ValidationError: If a value does not have the field's type (a ValueError).
            RunFolderError: If the file cannot be written; the one before it is still there, and so are the changes in
                `info` for the next call. A run in progress should log this and go on.
        """
        with self._lock:
            changed = msgspec.structs.replace(self.info, **changes)
            content = encode_document(changed, indent=True, or_text=True)
            decode_document(content, RunInfo)  # What cannot be read back must not be written.
            self.info = changed
            try:
                replace_file(self.path / RUN_JSON, content + b"\n")
            except OSError as error:
                raise explain_unwritable(self.given, error, in_code=self._in_code) from error

    def finish(self, status: Status, *, clock: Clock | None = None, **changes: Any) -> None:
        """Write how and when the run ended, with any last changes; raises like `update`."""
        clock = clock or SystemClock()
        try:
            self.update(
                status=status, ended_unix_seconds=clock.unix_seconds(), ended_monotonic_ns=clock.now_ns(), **changes
            )
        finally:
            self._let_go()

    def discard(self) -> None:
        """Remove what was written, and the folder if nothing else is in it: for a run that never began."""
        discard(self.path)
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    The file is on disk (fsync) before it takes the old one's place: `run.json` is small and written rarely.

    Raises:
        OSError: If it cannot be written; the old one is untouched and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def headrace_version() -> str:
    """Return the installed headrace's version."""
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
