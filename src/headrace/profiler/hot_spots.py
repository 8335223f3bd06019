"""Which Python lines of one stage cost most: sampled from outside with py-spy, or counted call by call with cProfile.

How this works. `StageSampler` watches a run; when the stage's items flow it has `sample_stage` start one py-spy for each
process in which workers of the stage live, and keeps the samples of those workers' threads that are within the stage's call:
whose stack goes through `pipeline.group`, which makes it. py-spy reads the interpreter's memory without stopping it
(`--nonblocking`): stopping it at each sample made programs with native threads several times slower. The price is samples whose
stack changed while it was read; those without any are counted. Threads that sleep or wait are left out by py-spy.

`CProfileInstrument` counts every call within one stage, exactly, and makes that stage slower. Each worker has a profiler of its
own that is on during the stage's calls alone. Workers in threads keep theirs in memory, workers in processes write them to
files; `collect`, called when the run is over, merges all.

Both give a `HotSpots` record and files in the folder: STAGE.json (the record), STAGE.speedscope.json, and STAGE.folded (stacks
of sampling, for flame graphs) or STAGE.pstats (for `python -m pstats`, SnakeViz).

References:
    py-spy issue 872 (slowdown without --nonblocking); Linux, Documentation/admin-guide/LSM/Yama.rst;
    speedscope's file format, sampled profiles over shared frames: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import cProfile
import ctypes
import functools
import io
import logging
import math
import multiprocessing
import multiprocessing.util
import os
import pstats
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError, MissingExtra, SettingsError
from headrace.pipeline import group
from headrace.pipeline.execute import RunInProgress
from headrace.pipeline.opening import groups
from headrace.pipeline.station import WorkerThread
from headrace.runs.run_folder import encodable, replace_file

logger = logging.getLogger("headrace")

SCHEMA = "headrace.hot_spots/1"
FOLDER = "hot_spots"
#: Samples a second and thread. More disturbs the program: py-spy's lag shows from 30 to 100 a second on small machines.
RATE_HERTZ = 50
#: Rows of the table.
_TOP = 100
#: Beyond its time, py-spy may take so long to start and to write its file.
_SPARE_SECONDS = 20.0
_POLL_SECONDS = 0.1
_TOO_SHORT = "the run was over before py-spy took a sample; run it on more items"

# prctl(2): lets one process, and no other, read our memory where Yama forbids it to all but parents.
_PR_SET_PTRACER = 0x59616D61

_NOT_PERMITTED = re.compile(r"permission denied|operation not permitted|os error (1|13)\b", re.IGNORECASE)
#: Whatever this calls is the stage. By its end: interpreters write the rest of the path in several ways.
_CALLER = os.path.join("headrace", "pipeline", Path(group.__file__).name)
#: Between two calls it also calls these.
_RUNTIME = tuple(os.path.join("headrace", folder, "") for folder in ("pipeline", "base"))
_PROFILE_NAME = re.compile(r'Thread (?P<id>\w+)(?: "(?P<name>.*)")?', re.DOTALL)

#: Outermost first.
Stack = tuple["Frame", ...]


class Frame(msgspec.Struct, frozen=True):
    """A place in the code."""

    name: str
    file: str
    line: int
    """The line at work (sampling), or where the function begins (counting); 0 for functions in C."""


class HotSpot(msgspec.Struct, frozen=True, kw_only=True):
    """One place and what it costs."""

    function: str
    file: str
    line: int
    """See `Frame.line`."""
    self_share: float
    """Of the stage's time at work, 0 to 1: in this line, or function, itself."""
    total_share: float
    """With what it called."""
    calls: int | None = None
    """None where they were not counted."""


class HotSpots(msgspec.Struct, frozen=True, kw_only=True):
    """Where one stage's Python code spends its time."""

    schema: str = SCHEMA
    stage: str
    method: str
    """`py-spy`: samples of threads at work. `cProfile`: every call, in wall time."""
    seconds: float
    """Observed, summed over workers: samples over their rate, or time in the stage's calls."""
    num_samples: int | None
    """Within the stage's calls; None where calls were counted."""
    num_outside: int | None
    """Samples of its workers at headrace's own work: taking items and handing them on."""
    num_without_stack: int | None
    """Samples whose stack could not be read."""
    num_calls: int | None
    """Of the stage; None where it was sampled."""
    workers: tuple[str, ...]
    """Threads that were seen at work, or processes that were counted."""
    files: tuple[str, ...]
    """In the folder."""
    notes: tuple[str, ...]
    top: tuple[HotSpot, ...]
    """The most costly ones by their own share."""


# --- sampling


class StageSampler:
    """Samples one stage while a run goes on: a context manager for `headrace.run(..., watch=...)`.

    Trouble never ends the run: it is in `problem`, and logged.

    Args:
        progress: The run.
        stage: Name of the stage.
        folder: Where files go; `hot_spots` in the run folder if there is one.
        seconds: How long to sample, from the first passage through the stage on; less when the run ends before.
        rate: Samples a second.

    Attributes:
        result: What was found; None before the run has ended, or if there is a problem.
        problem: Why there is no result.

    Raises:
        SettingsError: If there is no such stage, no folder, or a number is impossible.
        MissingExtra: If py-spy is not installed.
    """

    def __init__(
        self,
        progress: RunInProgress,
        stage: str,
        *,
        folder: Path | None = None,
        seconds: float = 10.0,
        rate: int = RATE_HERTZ,
    ) -> None:
        self.result: HotSpots | None = None
        self.problem: str | None = None
        self._progress = progress
        self._stage = stage
        self._seconds = seconds
        self._rate = rate
        self._station, self._notes = _station_of(progress, stage)
        if folder is None:
            if progress.folder is None:
                raise SettingsError("hot spots need a place: give the run an output, or the sampler a folder")
            folder = progress.folder.path / FOLDER
        self._folder = folder
        _check_sampling(seconds, rate)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="headrace-hot-spots", daemon=True)

    def __enter__(self) -> StageSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _has_begun(self) -> bool:
        return bool(self._progress.summary.progress().passages.get(self._stage))

    def _sample(self) -> None:
        try:
            while not self._has_begun():
                if self._stopping.wait(_POLL_SECONDS):
                    self.problem = f"no item went through stage {self._stage}"
                    if self._has_begun():
                        self.problem = _TOO_SHORT
                    return
            workers = [one for one in self._progress.worker_threads() if _is_of(one.name, self._station)]
            self.result = sample_stage(
                self._stage,
                workers,
                self._folder,
                seconds=self._seconds,
                rate=self._rate,
                stopping=self._stopping,
                notes=self._notes,
            )
        except Exception as error:  # Watching must not end the run.
            self.problem = str(error)
            logger.warning("stage %s could not be sampled: %s", self._stage, error)


def sample_stage(
    stage: str,
    workers: Sequence[WorkerThread],
    folder: Path,
    *,
    seconds: float = 10.0,
    rate: int = RATE_HERTZ,
    stopping: threading.Event | None = None,
    notes: Sequence[str] = (),
) -> HotSpots:
    """Sample the threads of a stage's workers with py-spy, write the files of `HotSpots`, and return it.

    Args:
        stage: Its name, for the files.
        workers: Threads to keep samples of; others of their processes are dropped.
        folder: Made if need be; files of an earlier sampling of this stage are replaced.
        seconds: How long, > 0.
        rate: Samples a second, 1 to 1000.
        stopping: Ends it before its time; what was sampled until then counts.
        notes: What a reader should know.

    Raises:
        MissingExtra: If py-spy is not installed.
        SettingsError: If a number is impossible or there are no workers.
        HeadraceError: If py-spy may not read the process, fails, or has seen none of the threads at work.
    """
    _check_sampling(seconds, rate)
    if not workers:
        raise SettingsError(f"stage {stage} has no workers to sample: is the run over, or has it not begun?")
    by_worker: defaultdict[str, Counter[Stack]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        files = _spy(sorted({one.process for one in workers}), Path(temporary), seconds, rate, stopping)
        for process, file in files.items():
            for name, found in _samples(file, [one for one in workers if one.process == process]):
                by_worker[name] += found
    seen = sum(by_worker.values(), Counter())
    served = _within_stage(by_worker)
    stacks = sum(served.values(), Counter())
    num_samples, num_without_stack = stacks.total(), seen[()]
    if not num_samples:
        raise HeadraceError(
            f"the {len(workers)} workers of stage {stage} were never seen within its call in {seconds:g} s at {rate} samples a "
            f"second, and {seen.total()} times elsewhere: it nearly always waits, or its calls are few; sample for longer"
        )
    stem = _stem(stage)
    result = HotSpots(
        stage=stage,
        method="py-spy",
        seconds=num_samples / rate,
        num_samples=num_samples,
        num_outside=seen.total() - num_samples - num_without_stack,
        num_without_stack=num_without_stack,
        num_calls=None,
        workers=tuple(sorted(name for name, found in served.items() if found)),
        files=(f"{stem}.speedscope.json", f"{stem}.folded", f"{stem}.json"),
        notes=(
            "shares are of the samples within the stage's calls that were not waiting",
            f"with {num_samples} samples a share may be off by {98 / math.sqrt(num_samples):.0f} percentage points",
            *notes,
        ),
        top=tuple(_top(stacks)),
    )
    weighted = {name: {stack: n / rate for stack, n in found.items()} for name, found in served.items() if found}
    contents = (speedscope(f"stage {stage}, py-spy", weighted), _folded(stacks), _encoded(result))
    _write(folder, dict(zip(result.files, contents, strict=True)))
    return result


def _check_sampling(seconds: float, rate: int) -> None:
    if not 0 < seconds <= 86_400:
        raise SettingsError(f"seconds is {seconds:g}; expected more than 0, at most 86400")
    if not 1 <= rate <= 1000:
        raise SettingsError(f"rate is {rate}; expected 1 to 1000 samples a second")
    _py_spy()


def _py_spy() -> str:
    """Return the path of py-spy: the one installed with this Python, else the one found on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise MissingExtra("sampling a stage's Python code", "pyspy")
    return found


def _station_of(progress: RunInProgress, stage: str) -> tuple[str, list[str]]:
    """Return the stage whose workers run this one, and what to know about that."""
    known = []
    for stages in progress.pipeline.routes.values():
        for sharing in groups(stages, progress.plan):
            names = [one.name for one in sharing]
            known += names
            if stage in names:
                shared = f"the workers of {names[0]} run {', '.join(names)}; the samples are of all of these"
                return names[0], [shared] if len(names) > 1 else []
    raise SettingsError(f"there is no stage {stage!r}; this pipeline has {', '.join(dict.fromkeys(known))}")


def _is_of(thread: str, station: str) -> bool:
    return re.fullmatch(re.escape(station) + r"-\d+", thread) is not None


def _spy(
    processes: Sequence[int], folder: Path, seconds: float, rate: int, stopping: threading.Event | None
) -> dict[int, Path]:
    """Let py-spy watch processes, and return the speedscope file of each."""
    stopping = stopping or threading.Event()
    running: dict[int, subprocess.Popen[bytes]] = {}
    deadline = time.monotonic() + seconds + _SPARE_SECONDS
    stop_at = time.monotonic() + seconds
    asked = False
    try:
        for process in processes:
            running[process] = _start_py_spy(process, _spied(folder, process), seconds, rate)
        while any(spy.poll() is None for spy in running.values()):
            if not asked and (stopping.wait(_POLL_SECONDS) or time.monotonic() > stop_at + _SPARE_SECONDS / 2):
                for spy in running.values():
                    spy.send_signal(signal.SIGINT)  # it writes what it has
                asked = True
            elif asked:
                time.sleep(_POLL_SECONDS)
            if time.monotonic() > deadline:
                raise HeadraceError(f"py-spy did not end {_SPARE_SECONDS:g} s after its time; it was stopped")
    finally:
        for spy in running.values():
            spy.kill()
            spy.wait()
    return {process: _checked(process, spy, folder) for process, spy in running.items()}


def _spied(folder: Path, process: int) -> Path:
    return folder / f"{process}.json"


def _start_py_spy(process: int, file: Path, seconds: float, rate: int) -> subprocess.Popen[bytes]:
    command = [_py_spy(), "record", "--nonblocking", "--threads", "--format", "speedscope"]
    # Whole seconds are all it takes.
    command += [
        "--rate",
        str(rate),
        "--duration",
        str(math.ceil(seconds)),
        "--output",
        str(file),
        "--pid",
        str(process),
    ]
    with file.with_suffix(".log").open("wb") as log:
        # A session of its own: Ctrl-C is for the run, which then ends this.
        spy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    if process == os.getpid():
        # Where Yama is on, only a parent may read a process, and py-spy is our child. It tries again until we have said so.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(spy.pid), 0, 0, 0)
    return spy


def _checked(process: int, spy: subprocess.Popen[bytes], folder: Path) -> Path:
    file = _spied(folder, process)
    if file.exists() and file.stat().st_size:
        return file
    said = file.with_suffix(".log").read_text(errors="replace")
    if _NOT_PERMITTED.search(said):
        raise HeadraceError(
            f"py-spy may not read process {process}. Run as the same user or as root; where the kernel allows it to parents "
            "alone: sudo sysctl kernel.yama.ptrace_scope=0; in a container: docker run --cap-add SYS_PTRACE. Or count calls "
            "with cProfile instead, which needs no permission"
        )
    if spy.returncode == -signal.SIGINT and not said:  # we ended it before it was ready
        raise HeadraceError(_TOO_SHORT)
    lines = [line for line in said.splitlines() if line.startswith(("Error", "py-spy> Error"))] or said.splitlines()
    raise HeadraceError(
        f"py-spy could not sample process {process} (exit code {spy.returncode}): {(lines or ['it said nothing'])[0]}"
    )


class _SpyFrame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None


class _SpyShared(msgspec.Struct):
    frames: list[_SpyFrame]


class _SpyProfile(msgspec.Struct):
    name: str
    samples: list[list[int]]


class _SpyFile(msgspec.Struct):
    shared: _SpyShared
    profiles: list[_SpyProfile]


def _samples(file: Path, workers: Sequence[WorkerThread]) -> Iterable[tuple[str, Counter[Stack]]]:
    """Yield each worker's name and how often each of its stacks was seen; of workers that were seen at work."""
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_SpyFile)
    except msgspec.DecodeError as error:
        raise HeadraceError(f"py-spy wrote something else than expected: {error}; expected py-spy 0.4") from error
    frames = [Frame(one.name, one.file or "", one.line or 0) for one in content.shared.frames]
    by_id = {str(one.thread_id): one.name for one in workers}
    names = {one.name for one in workers}
    for profile in content.profiles:
        match = _PROFILE_NAME.search(profile.name)
        thread = match["name"] if match else None
        worker = by_id.get(match["id"]) if match else None
        if worker is None and thread in names:
            worker = thread
        if worker is not None:
            # The outermost frame is the thread's name.
            yield worker, Counter(tuple(frames[index] for index in stack[1:]) for stack in profile.samples)


def _within_stage(by_worker: Mapping[str, Counter[Stack]]) -> dict[str, Counter[Stack]]:
    """Return each worker's stacks that are within a stage's call, from there on."""
    served = {name: _counted_by(stacks, _called) for name, stacks in by_worker.items()}
    if any(served.values()):
        return served
    # A stage that is native code has no frame of its own: the line that calls it stands for it. Where it has frames, samples
    # of that place are headrace's own work between the calls.
    return {name: _counted_by(stacks, _caller) for name, stacks in by_worker.items()}


def _counted_by(stacks: Counter[Stack], part: Callable[[Stack], Stack]) -> Counter[Stack]:
    found: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        kept = part(stack)
        if kept:
            found[kept] += count
    return found


def _called(stack: Stack) -> Stack:
    """Return what a group's worker called, unless that is a part of the runtime."""
    calls = [index for index, frame in enumerate(stack) if frame.file.endswith(_CALLER)]
    inner = stack[calls[-1] + 1 :] if calls else ()
    return () if inner and any(part in inner[0].file for part in _RUNTIME) else inner


def _caller(stack: Stack) -> Stack:
    """Return the line of a group at work itself."""
    return stack[-1:] if stack and stack[-1].file.endswith(_CALLER) else ()


def _top(stacks: Counter[Stack]) -> list[HotSpot]:
    own: Counter[Frame] = Counter()
    total: Counter[Frame] = Counter()
    for stack, count in stacks.items():
        if stack:
            own[stack[-1]] += count
        for frame in set(stack):  # one that calls itself counts once
            total[frame] += count
    num_samples = stacks.total()
    found = [
        HotSpot(
            function=frame.name,
            file=frame.file,
            line=frame.line,
            self_share=own[frame] / num_samples,
            total_share=count / num_samples,
        )
        for frame, count in total.items()
    ]
    return _most_costly(found)


def _most_costly(found: list[HotSpot]) -> list[HotSpot]:
    return sorted(found, key=lambda one: (-one.self_share, -one.total_share, one.file, one.line, one.function))[:_TOP]


# --- counting calls


class CProfileInstrument:
    """Counts every call within one stage with cProfile, in whichever threads and processes its workers are.

    Give it to `headrace.run(..., instruments=[...])`, and call `collect` when that has returned. The stage becomes slower, the
    more so the smaller its functions: shares within it are to be believed, its times are not. Times are wall time: what
    waits for the GIL or a core counts where it waits.

    Args:
        stage: Name of the stage.
        folder: Where files go; made if need be.
    """

    def __init__(self, stage: str, folder: str | Path) -> None:
        self.stage = stage
        self.folder = Path(folder)
        self._profiles: list[cProfile.Profile] = []
        if multiprocessing.parent_process() is None:
            for part in self._parts():  # of an earlier run that was killed
                part.unlink()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stage, self.folder)  # what was counted stays in its process

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is counted, if it is this stage's.

        Raises:
            SettingsError: If this Python's cProfile cannot tell threads apart.
        """
        if stage != self.stage:
            return call
        is_child = multiprocessing.parent_process() is not None
        if not is_child and _counts_all_threads():
            raise SettingsError(
                f"cProfile of Python {sys.version_info.major}.{sys.version_info.minor} counts the calls of all threads of a "
                f"process as one; give the stage processes (--set {stage}.executor=process), or sample it with py-spy"
            )
        profile = cProfile.Profile()
        if is_child:
            part = _Part(profile, self.folder / f".{_stem(stage)}-{os.getpid()}-{time.monotonic_ns()}.part")
            return functools.partial(_counted_in_child, profile, part, call)
        self._profiles.append(profile)
        return functools.partial(_counted, profile, call)

    def collect(self) -> HotSpots:
        """Merge what all workers counted, write the files of `HotSpots`, and return it. Call it when the run is over.

        Raises:
            HeadraceError: If no call was counted.
            OSError: If the files cannot be written.
        """
        parts = self._parts()
        counted = [profile for profile in self._profiles if profile.getstats()]
        sources = [pstats.Stats(one, stream=io.StringIO()) for one in counted]
        sources += [pstats.Stats(str(part), stream=io.StringIO()) for part in parts]
        if not sources:
            raise HeadraceError(
                f"no call of stage {self.stage} was counted: no item came so far, there is no stage of that name, or its call "
                "is native code that Python's profiler does not see"
            )
        merged = sources[0]
        for source in sources[1:]:
            merged.add(source)
        result, weighted = _counted_spots(self.stage, _without_profiler(merged), len(counted), len(parts))
        pstats_name, speedscope_name, record_name = result.files
        contents = {speedscope_name: speedscope(f"stage {self.stage}, cProfile", {self.stage: weighted})}
        contents[record_name] = _encoded(result)
        _write(self.folder, contents)
        merged.dump_stats(self.folder / pstats_name)
        for part in parts:
            part.unlink()
        return result

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(f".{_stem(self.stage)}-*.part"))


def _counts_all_threads() -> bool:
    # From 3.12 on it is made of sys.monitoring, whose events come from all threads of the interpreter.
    return sys.version_info >= (3, 12)


def _counted(profile: cProfile.Profile, call: Callable[..., Any], *arguments: Any) -> Any:
    profile.enable()
    try:
        return call(*arguments)
    finally:
        profile.disable()


def _counted_in_child(profile: cProfile.Profile, part: _Part, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return _counted(profile, call, *arguments)
    finally:
        part.write_if_due()


class _Part:
    """What one worker in a process of its own counted, in a file: written now and then, as it may be killed, and at its end."""

    def __init__(self, profile: cProfile.Profile, file: Path) -> None:
        self._profile = profile
        self._file = file
        self._due = 0.0
        multiprocessing.util.Finalize(None, self.write, exitpriority=1)

    def write_if_due(self) -> None:
        """Write it once a second."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write it."""
        began = time.monotonic()
        if not self._profile.getstats():
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_suffix(".tmp")
            self._profile.dump_stats(temporary)
            temporary.replace(self._file)
        except OSError as error:
            logger.warning("what was counted cannot be written to %s: %s", self._file.parent, error)
        # A large table takes a while; never more than a twentieth of the time.
        self._due = time.monotonic() + max(1.0, 20 * (time.monotonic() - began))


_PUT_TOGETHER = (
    "stacks in the speedscope file are put together from pairs of caller and called: where a function was called from several "
    "places, its inner time is divided among them in proportion"
)

#: File, line, name: how pstats names a function.
_Function = tuple[str, int, str]


class _Counts(msgspec.Struct, frozen=True):
    """What cProfile knows of one function, and of one function called by another."""

    calls: int
    own: float
    total: float


#: {function: (its counts, {caller: its counts when called from there})}
_Table = dict[_Function, tuple[_Counts, dict[_Function, _Counts]]]


def _without_profiler(stats: pstats.Stats) -> _Table:
    """Return what was counted, without the call that ended the counting."""
    table: _Table = {}
    entries: dict[_Function, Any] = stats.stats  # type: ignore[attr-defined]
    for function, (_, calls, own, total, callers) in entries.items():
        if "_lsprof.Profiler" not in function[2]:
            known = {caller: _Counts(row[0], row[2], row[3]) for caller, row in callers.items()}
            table[function] = (_Counts(calls, own, total), known)
    return table


def _counted_spots(
    stage: str, table: _Table, num_threads: int, num_processes: int
) -> tuple[HotSpots, dict[Stack, float]]:
    seconds = sum(counts.own for counts, _ in table.values())
    roots = _roots(table)
    found = [
        HotSpot(
            function=name,
            file=file,
            line=line,
            self_share=counts.own / seconds if seconds else 0.0,
            total_share=counts.total / seconds if seconds else 0.0,
            calls=counts.calls,
        )
        for (file, line, name), (counts, _) in table.items()
    ]
    stem = _stem(stage)
    result = HotSpots(
        stage=stage,
        method="cProfile",
        seconds=seconds,
        num_samples=None,
        num_outside=None,
        num_without_stack=None,
        num_calls=sum(calls for calls, _ in roots.values()),
        workers=(f"{num_threads} in threads, {num_processes} in processes",),
        files=(f"{stem}.pstats", f"{stem}.speedscope.json", f"{stem}.json"),
        notes=(
            "counting makes the stage slower: believe the shares, not the times",
            _PUT_TOGETHER,
        ),
        top=tuple(_most_costly(found)),
    )
    return result, _stacks(table, {root: time_here for root, (_, time_here) in roots.items()}, seconds)


def _roots(table: _Table) -> dict[_Function, tuple[int, float]]:
    """Return what the stage called itself: {function: (calls, seconds)}."""
    found = {}
    for function, (counts, callers) in table.items():
        calls = counts.calls - sum(one.calls for one in callers.values())
        others = sum(one.total for caller, one in callers.items() if caller != function)
        if calls > 0:
            found[function] = calls, max(0.0, counts.total - others)
    return found


def _stacks(table: _Table, roots: dict[_Function, float], seconds: float) -> dict[Stack, float]:
    """Return seconds by stack, expanded from the roots in proportion to each caller's share; the sum is that of the roots."""
    called: defaultdict[_Function, list[tuple[_Function, float]]] = defaultdict(list)
    for function, (_, callers) in table.items():
        for caller, counts in callers.items():
            called[caller].append((function, counts.total))
    smallest = seconds / 2000  # narrower than a pixel
    found: defaultdict[Stack, float] = defaultdict(float)
    waiting: list[tuple[tuple[_Function, ...], float]] = [((root,), time_here) for root, time_here in roots.items()]
    while waiting:
        path, time_here = waiting.pop()
        whole = table[path[-1]][0].total
        inner = [(function, part) for function, part in called[path[-1]] if function not in path and part > 0]
        # Of a function that calls itself, what it called may add up to more than its own outermost calls.
        scale = time_here / max(whole, sum(part for _, part in inner)) if inner and whole > 0 else 0.0
        left = time_here
        for function, part in inner if time_here >= smallest else ():
            waiting.append(((*path, function), part * scale))
            left -= part * scale
        if left > 0:
            found[tuple(Frame(name, file, line) for file, line, name in path)] += left
    return dict(found)


# --- files


def speedscope(name: str, profiles: dict[str, dict[Stack, float]]) -> bytes:
    """Return a speedscope file.

    Args:
        name: Title.
        profiles: {thread: {stack, outermost first: seconds}}; stacks are sorted, so that equal ones are neighbours.
    """
    frames: dict[Frame, int] = {}
    written = []
    for thread, stacks in profiles.items():
        ordered = sorted(stacks.items(), key=lambda one: [(frame.name, frame.file, frame.line) for frame in one[0]])
        samples = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in ordered]
        weights = [weight for _, weight in ordered]
        written.append(
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "headrace",
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": written,
    }
    return msgspec.json.encode(document)


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    place = {"file": encodable(frame.file), "line": frame.line} if frame.line else {}
    return {"name": encodable(frame.name), **place}


def _folded(stacks: Counter[Stack]) -> bytes:
    """Return stacks as lines `outer;inner count`, which flame graph tools read."""
    lines = []
    for stack, count in stacks.items():
        names = [f"{frame.name} ({Path(frame.file).name}:{frame.line})".replace(";", ",") for frame in stack]
        lines.append(f"{';'.join(names)} {count}\n")
    return encodable("".join(sorted(lines))).encode()


def _encoded(result: HotSpots) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def _write(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        replace_file(folder / name, content)


def _stem(stage: str) -> str:
    """Return a stage's name as files can have it."""
    return re.sub(r"[^\w.-]", "_", stage)
