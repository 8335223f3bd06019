"""Records a run while it goes on, and has incidents written when something breaks.

How this works. The hooks, called by the threads that do the work, append to deques. One thread of the recorder looks at the
workers' threads some times a second, packs what came into blocks twice a second, and reads the machine and the triggers each
second. A kill costs the last half second. Above `SPANS_PER_SECOND` whole jobs are left out, like in run folders; a run that
writes a folder has such a limit of its own, and then both have the same spans.

An incident is written by a child process at a low priority (`headrace snapshot`), which reads the recording as it would
that of a dead process. Where it is better to see more of what goes wrong first, the child is started at once and waits until
its input is closed: by the recorder when it is time, or by the kernel when the run is killed before. So nothing that goes wrong
there can hold up the run: a full disk, a damaged block, hours of analysis.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.base.error_origin import Origin
from headrace.base.errors import HeadraceError, RunFolderError
from headrace.base.formatting import encodable
from headrace.base.goals import LatencyGoal
from headrace.base.log_events import event_fields
from headrace.base.observer import Observer
from headrace.base.records import SCHEMA_VERSION, Job, Outcome, OutcomeKind, Span
from headrace.monitor.published import count
from headrace.monitor.recorder.log_lines import LogLines
from headrace.monitor.recorder.places import make_place, read_boot, read_start
from headrace.monitor.recorder.readings import BacklogNotes, Readings, StateReadings
from headrace.monitor.recorder.recording import Event, Identity, Sample, States, pack, pack_identity, pack_spans
from headrace.monitor.recorder.ring import BlockKind, RingWriter, limit_to_room
from headrace.monitor.recorder.store import IncidentStore
from headrace.monitor.recorder.triggers import Latencies, Progress, Trigger, check_latency
from headrace.pipeline.span_limit import SpanLimit
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.backlog import BacklogGauge
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.errors_log import MAX_REASON_CHARACTERS, ErrorLine
from headrace.runs.hardware import find_hardware, find_versions
from headrace.runs.run_folder import RunInfo, headrace_version
from headrace.stages.stage import Stage

logger = logging.getLogger("headrace")

DEFAULT_BYTES = 8 * 2**20
#: Spans a second that are recorded where no run folder is written: 2 ms of a core.
SPANS_PER_SECOND = 400.0
_TICK_SECONDS, _PACK_SECONDS, _READ_SECONDS, _IDENTIFY_SECONDS = 0.125, 0.5, 1.0, 10.0
#: Spans of one block, and those that may wait for the recorder's thread.
_SPANS_PER_BLOCK, _MOST_WAITING = 4_096, 50_000
_ERRORS_PER_SECOND = 20
#: Live streams that are kept, the longest stalled: their counts are written again with each of the others.
_MOST_STREAMS = 100
#: A second trigger of one kind within this time is the same incident.
WINDOW_SECONDS = 600.0
#: One that could not be written is tried again after this time, within the window: there may be room on the disk by then.
_AGAIN_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
#: Characters of a trigger's words: fewer than a pipe takes at once.
_MOST_SAID = 8_192
#: What begins slowly is written later, so that there is something to compare with the time before.
_GRADUAL, _LATER_SECONDS = ("slo", "errors"), 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """What is recorded, and when an incident is written."""

    most_bytes: int = DEFAULT_BYTES
    """Bound of the memory of one process."""
    incidents: Path | None = None
    """Folder for incidents; None: none is written unasked."""
    goals: tuple[LatencyGoal, ...] = ()
    most_failed: float | None = None
    """Share of deliveries that may fail; None: any."""
    baseline: Path | None = None
    """Run folder that incidents are compared with; None: the earlier part of the recording."""
    canary: Path | None = None
    """Folder of canaries, whose roll-backs are incidents."""
    history: Path | None = None
    """History that incidents are added to; None: to none."""
    log_format: str = "text"
    """Of what the writer of an incident says on stderr: `text` or `json`, as its run does."""


class Recorder(Observer):
    """Records one run.

    Args:
        settings: What is recorded.
        supervisor: Process id of the supervisor; 0: there is none.
        worker: Number under the supervisor.
        write_incident: Starts the writing of one; for tests.
    """

    recorded_only = True

    def __init__(
        self,
        settings: RecorderSettings,
        *,
        supervisor: int = 0,
        worker: int = 0,
        write_incident: Callable[[RecorderSettings, Path, Trigger], subprocess.Popen[bytes] | None] | None = None,
    ) -> None:
        self._settings = settings
        self._supervisor, self._worker = supervisor, worker
        self.write_incident = write_incident or start_incident
        self._finished: deque[Sequence[Span]] = deque()
        self._num_waiting = 0
        self._failed: deque[ErrorLine] = deque(maxlen=_ERRORS_PER_SECOND)
        self.lost_spans = 0
        self.incidents = 0

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Take spans; returns at once."""
        if self._num_waiting > _MOST_WAITING:
            self.lost_spans += len(spans)
            return
        self._num_waiting += len(spans)
        self._finished.append(spans)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Take the reason of a delivery that failed."""
        if outcome.kind is OutcomeKind.DELIVERED or outcome.is_put_aside:
            return
        if len(self._failed) < _ERRORS_PER_SECOND:
            self._failed.append(_error_line(job, outcome))

    def take(self) -> list[Span]:
        """Return the spans that came since the last call; by one thread."""
        spans: list[Span] = []
        for _ in range(len(self._finished)):
            spans += self._finished.popleft()
        self._num_waiting = 0
        return [span for span in spans if span.weight]

    def take_failed(self) -> list[ErrorLine]:
        """Return the failures that came since the last call, as far as they are kept."""
        return [self._failed.popleft() for _ in range(len(self._failed))]

    def watch(self, run: RunInProgress) -> _Recording:
        """Return what records a run while it is entered."""
        return _Recording(self, run)


class _Recording:
    """The recording of one run that goes on; a context manager."""

    def __init__(self, recorder: Recorder, run: RunInProgress) -> None:
        self._recorder, self._run = recorder, run
        self._settings = recorder._settings  # noqa: SLF001 - two halves of one thing
        self._writer: RingWriter | None = None
        self._readings = Readings(run, recorder._supervisor or os.getpid())  # noqa: SLF001
        self._states = StateReadings(run)
        self._backlog_notes = BacklogNotes()
        self._backlog = BacklogGauge(run.pipeline.source, self._backlog_notes, run.begun)
        self._limit: SpanLimit | None = None
        names = [stage.name for stage in run.pipeline.stages]
        last = next((stage.name for stage in reversed(run.pipeline.stages) if stage.role == "deliver"), names[-1])
        self._latencies = Latencies(_first_stages(run.pipeline.routes.values()), last)
        self._progress = Progress(self._settings.most_failed)
        self._canary = CanaryFolder(self._settings.canary) if self._settings.canary else None
        self._rolled_back = ""
        self._last: dict[str, float] = {}
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._due: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._log_lines = LogLines()
        self._children: list[tuple[Trigger, subprocess.Popen[bytes]]] = []
        self._again: list[tuple[float, Trigger]] = []
        self._previous_handler: Any = None
        self._plan_ids: tuple[str, ...] = ()
        self._spans: list[Span] = []
        self._looks: list[States] = []
        self._thread = threading.Thread(target=self._record, name="headrace-recorder", daemon=True)

    def __enter__(self) -> _Recording:
        try:
            place = make_place()
            self._writer = RingWriter(place, limit_to_room(place.parent, self._settings.most_bytes))
        except OSError as error:
            logger.warning("the flight recorder is off: %s; the run goes on", error)
            return self
        self._run.metering.on = True
        if self._run.span_limit is None:
            self._limit = SpanLimit(self._run.metering, time.monotonic_ns())
            self._limit.per_second = SPANS_PER_SECOND
        self._info = self._describe()
        self._identify()
        self._readings.start()
        self._backlog.start()
        self._run.before_closing.append(self._backlog.stop)
        self._listen()
        self._log_lines.begin()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        self._stopping.set()
        self._thread.join()
        self._backlog.stop()
        self._unlisten()
        self._log_lines.end()
        self._readings.close()
        self._states.close()
        try:
            if error is not None and isinstance(error, Exception):
                self._trigger(Trigger("failed", f"the run ended with an error: {error}"))
            self._write_due(math.inf)
        except Exception as defect:  # the run's own error, if there is one, is what its caller must see
            logger.exception("the flight recorder failed; the run does not", exc_info=defect)
        self._writer.close(remove=self._wait_for_children())

    # --- the thread

    def _record(self) -> None:
        try:
            self._record_until_stopped()
        except Exception as error:  # Watching must not end the run.
            logger.exception("the flight recorder failed and records no more; the run goes on", exc_info=error)

    def _record_until_stopped(self) -> None:
        now = time.monotonic()
        pack_at, read_at, identify_at = now + _PACK_SECONDS, now, now + _READ_SECONDS
        while not self._stopping.wait(_TICK_SECONDS):
            now = time.monotonic()
            if (look := self._states.look()) is not None:
                self._looks.append(look)
            if self._limit is not None:
                received = self._run.counters.received * len(self._run.pipeline.stages)
                self._limit.look(time.monotonic_ns(), max(self._run.summary.num_passages, received))
            if now >= pack_at:
                pack_at = now + _PACK_SECONDS
                self._pack()
            if now >= read_at:
                read_at = now + _READ_SECONDS
                self._read(now)
            if now >= identify_at:
                identify_at = now + _IDENTIFY_SECONDS
                self._identify()
        self._pack()
        self._read(time.monotonic())

    def _pack(self) -> None:
        """Write what came since the last call."""
        writer = self._writer
        if writer is None:
            return
        spans = self._recorder.take()
        if not {span.plan_id for span in spans} <= set(self._plan_ids):
            self._identify()  # a kill must not leave spans of a Plan that nothing describes
        self._latencies.note(spans)
        for first in range(0, len(spans), _SPANS_PER_BLOCK):
            writer.append(BlockKind.SPANS, pack_spans(spans[first : first + _SPANS_PER_BLOCK]))
        if (threads := self._states.find_threads()) is not None:
            writer.append(BlockKind.THREADS, pack(threads))
            self._looks.clear()  # of the threads before
        if self._looks:
            writer.append(BlockKind.STATES, pack(self._looks))
            self._looks = []
        for line in self._log_lines.take():
            writer.append(BlockKind.EVENT, pack(line))
        if failed := self._recorder.take_failed():
            writer.append(BlockKind.ERROR, pack(failed))

    def _read(self, now: float) -> None:
        """Read the machine, and look whether something is to be reported."""
        if self._writer is None:
            return
        sample = self._readings.sample()
        sample = Sample(sample.at_ns, {**sample.values, **self._backlog_notes.take()})
        self._writer.append(BlockKind.RESOURCES, pack([sample]))
        self._say_written()
        for trigger in self._find_triggers(now, sample):
            self._trigger(trigger)
        due = [trigger for at, trigger in self._again if at <= now]
        self._again = [(at, trigger) for at, trigger in self._again if at > now]
        for trigger in due:
            self._begin_writing(trigger)
        self._write_due(now)

    def _find_triggers(self, now: float, sample: Sample) -> list[Trigger]:
        latencies = self._latencies.recent(sample.at_ns)
        usual = sorted(latencies)[len(latencies) // 2] if latencies else 0.0
        found = [check_latency(goal, latencies) for goal in self._settings.goals]
        found.append(self._progress.look(now, sample.values.get("run", {}), usual))
        found.append(self._check_canary())
        if self._asked.is_set() and not (
            self._children or self._due
        ):  # who asks again and again gets one after the other
            self._asked.clear()
            found.append(Trigger("signal", "SIGUSR2"))
        return [one for one in found if one is not None]

    def _check_canary(self) -> Trigger | None:
        if self._canary is None:
            return None
        try:
            state = self._canary.read()
        except HeadraceError:
            return None
        if state is None or state.status != "rolled back" or state.id == self._rolled_back:
            return None
        is_old = state.since_unix_seconds < self._info.started_unix_seconds
        self._rolled_back = state.id
        return None if is_old else Trigger("rollback", f"canary {state.id} was rolled back: {state.reason}")

    def _trigger(self, trigger: Trigger) -> None:
        """Have an incident written soon, unless there was one of this kind shortly before."""
        now, writer = time.monotonic(), self._writer
        window = _window(trigger)
        if writer is None or now - self._last.get(trigger.kind, -WINDOW_SECONDS) < window:
            return
        self._last[trigger.kind] = now
        writer.append(BlockKind.EVENT, pack(Event(time.monotonic_ns(), trigger.kind, encodable(trigger.says))))
        event = event_fields("incident", code=trigger.kind)
        if self._settings.incidents is None:
            logger.warning(
                "incident: %s; name a folder with --incidents DIR to have it written", trigger.says, extra=event
            )
            return
        self._begin_writing(trigger)

    def _begin_writing(self, trigger: Trigger) -> None:
        now, writer, incidents = time.monotonic(), self._writer, self._settings.incidents
        if writer is None or incidents is None or (_window(trigger) and not _claim(incidents, trigger.kind)):
            return  # another worker has it written
        event = event_fields("incident", code=trigger.kind)
        logger.warning("incident: %s; it is being written to %s", trigger.says, incidents, extra=event)
        self._recorder.incidents += 1
        count("headrace_recorder_incidents_total", trigger.kind)
        self._pack()
        child = self._recorder.write_incident(self._settings, writer.folder, trigger)
        if child is not None:
            self._children.append((trigger, child))
            self._due.append((now + (_LATER_SECONDS if trigger.kind in _GRADUAL else 0.0), child))

    def _write_due(self, now: float) -> None:
        """Let those write whose time has come."""
        due = [child for at, child in self._due if at <= now]
        self._due = [(at, child) for at, child in self._due if at > now]
        if due:
            self._pack()
        for child in due:
            _let_write(child)

    def _say_written(self) -> None:
        """Log which incidents are there by now, and which could not be written: their writers say why."""
        now = time.monotonic()
        for trigger, child in self._children:
            event = event_fields("incident", code=trigger.kind)
            if child.poll() == 0:
                logger.info("an incident was written to %s", self._settings.incidents, extra=event)
            elif child.returncode is not None:
                status = child.returncode
                logger.warning("an incident was not written: its writer ended with status %d", status, extra=event)
                if now - self._last[trigger.kind] < WINDOW_SECONDS:
                    self._again.append((now + _AGAIN_SECONDS, trigger))
        self._children = [(trigger, child) for trigger, child in self._children if child.returncode is None]

    # --- identity

    def _describe(self) -> RunInfo:
        folder = self._run.folder
        if folder is not None:
            return folder.info
        started = time.time(), time.monotonic_ns()
        return RunInfo(
            schema_version=SCHEMA_VERSION,
            headrace_version=headrace_version(),
            status="running",
            pipeline=self._run.pipeline.name,
            options=list(self._run.pipeline.options),
            host=os.uname().nodename,
            started_unix_seconds=started[0],
            started_monotonic_ns=started[1],
            versions=find_versions(),
            hardware=find_hardware(),
            clock_offsets_ns={os.uname().nodename: 0},
        )

    def _identify(self) -> None:
        changes = self._run.describe()
        changes["streams"] = sorted(changes["streams"], key=lambda one: -one.stalled_seconds)[:_MOST_STREAMS]
        self._info = msgspec.structs.replace(self._info, **changes)
        plan_ids = tuple(self._info.plans)
        if self._writer is None:
            return
        if self._plan_ids and plan_ids != self._plan_ids:
            says = f"Plan {plan_ids[-1]} came into force beside {', '.join(self._plan_ids)}"
            self._writer.append(BlockKind.EVENT, pack(Event(time.monotonic_ns(), "plan", says)))
        self._plan_ids = plan_ids
        self._writer.identify(
            pack_identity(
                Identity(
                    process=os.getpid(),
                    process_started=read_start(os.getpid()),
                    boot=read_boot(),
                    supervisor=self._recorder._supervisor,  # noqa: SLF001
                    worker=self._recorder._worker,  # noqa: SLF001
                    incidents=str(self._settings.incidents.absolute()) if self._settings.incidents else "",
                    info=self._info,
                )
            )
        )

    # --- signals and children

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGUSR2, lambda *_: self._asked.set())

    def _unlisten(self) -> None:
        if self._previous_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, self._previous_handler)

    def _wait_for_children(self) -> bool:
        """Wait for incidents that are being written; return whether all are."""
        ends = time.monotonic() + _CLOSE_SECONDS
        for _, child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, ends - time.monotonic()))
        self._say_written()
        return not self._children


def _window(trigger: Trigger) -> float:
    """Return for how long another of its kind is the same incident."""
    return 0.0 if trigger.kind == "signal" else WINDOW_SECONDS


def _claim(incidents: Path, kind: str) -> bool:
    """Return whether this process is to have an incident of this kind written, and not another worker."""
    try:
        return IncidentStore(incidents).claim(kind, WINDOW_SECONDS)
    except (OSError, RunFolderError):
        return True  # whoever writes it says what is wrong with the folder


def start_incident(
    settings: RecorderSettings, recording: Path | str, trigger: Trigger, *, is_dead: bool = False
) -> subprocess.Popen[bytes] | None:
    """Have a process write an incident of a recording; None where none can be started, which is logged.

    It begins at once; of what begins slowly when its input is closed. Its words go there, and not into its arguments, which
    every user of the machine can read.

    Args:
        settings: Where to, and what to compare with.
        recording: The folder, or the process id.
        trigger: Why.
        is_dead: Remove the recording afterwards: its process is dead.
    """
    command = [sys.executable, "-P", "-m", "headrace", "--quiet", "snapshot", str(recording), "--because", trigger.kind]
    command += ["--says", "-", "--incidents", str(settings.incidents), "--nice", "--json"]
    command += ["--baseline", str(settings.baseline)] if settings.baseline else []
    command += ["--history", str(settings.history)] if settings.history else []
    command += ["--remove"] if is_dead else []
    command += ["--log-format", settings.log_format]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=_environment(),
            process_group=0,  # Ctrl-C ends the run, and this is evidence of it
        )
    except OSError as error:
        logger.warning(
            "the incident cannot be written: %s; the run goes on, and headrace snapshot writes it too", error
        )
        return None
    with suppress(OSError):  # it ended already
        if child.stdin is not None:
            child.stdin.write(encodable(trigger.says[:_MOST_SAID]).encode())
            child.stdin.flush()
    if trigger.kind not in _GRADUAL:
        _let_write(child)
    return child


def _let_write(child: subprocess.Popen[bytes]) -> None:
    """Let the writer of an incident begin."""
    with suppress(OSError):
        if child.stdin is not None:
            child.stdin.close()


def _environment() -> dict[str, str]:
    """Return an environment in which the child imports the headrace that runs here."""
    root = Path(__file__).resolve().parents[3]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(root)])}


def _error_line(job: Job, outcome: Outcome) -> ErrorLine:
    origin: Origin | None = outcome.origin.brief() if outcome.origin is not None else None
    reason = encodable(outcome.reason[:MAX_REASON_CHARACTERS])
    return ErrorLine(encodable(job.id), job.attempt, outcome.kind, reason, time.time(), origin, outcome.excused)


def _first_stages(routes: Iterable[Sequence[Stage]]) -> list[str]:
    """Return where jobs begin: with the second stage, if the first lets some pass, as requests with their content."""
    return [stage.name for route in routes for stage in route[: 1 if type(route[0]).passes is Stage.passes else 2]]
