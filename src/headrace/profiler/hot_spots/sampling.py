"""Samples the Python stacks of one stage's workers from outside, with py-spy."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.base.documents import decode_document
from headrace.base.errors import HeadraceError, MissingExtra, SettingsError
from headrace.pipeline import group
from headrace.pipeline.opening import groups
from headrace.pipeline.watching import RunInProgress
from headrace.pipeline.worker import WorkerThread
from headrace.profiler.hot_spots.records import (
    Frame,
    HotSpot,
    HotSpots,
    Stack,
    encode_record,
    file_stem,
    fold_stacks,
    most_costly,
    speedscope,
    write_files,
)
from headrace.runs.file_names import HOT_SPOTS_FOLDER

logger = logging.getLogger("headrace")

#: Samples a second and thread. More disturbs the program: py-spy's lag shows from 30 to 100 a second on small machines.
RATE_HERTZ = 50
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
            folder = progress.folder.path / HOT_SPOTS_FOLDER
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
    served = _cut_to_stage(by_worker)
    stacks = sum(served.values(), Counter())
    num_samples, num_without_stack = stacks.total(), seen[()]
    if not num_samples:
        raise HeadraceError(
            f"the {len(workers)} workers of stage {stage} were never seen within its call in {seconds:g} s at {rate} samples a "
            f"second, and {seen.total()} times elsewhere: it nearly always waits, or its calls are few; sample for longer"
        )
    stem = file_stem(stage)
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
    contents = (speedscope(f"stage {stage}, py-spy", weighted), fold_stacks(stacks), encode_record(result))
    write_files(folder, dict(zip(result.files, contents, strict=True)))
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
            running[process] = _start_py_spy(process, _spy_file(folder, process), seconds, rate)
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
    return {process: _check_file(process, spy, folder) for process, spy in running.items()}


def _spy_file(folder: Path, process: int) -> Path:
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


def _check_file(process: int, spy: subprocess.Popen[bytes], folder: Path) -> Path:
    file = _spy_file(folder, process)
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
        content = decode_document(file.read_bytes(), _SpyFile)
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


def _cut_to_stage(by_worker: Mapping[str, Counter[Stack]]) -> dict[str, Counter[Stack]]:
    """Return each worker's stacks that are within a stage's call, from there on."""
    served = {name: _count_by(stacks, _find_called) for name, stacks in by_worker.items()}
    if any(served.values()):
        return served
    # A stage that is native code has no frame of its own: the line that calls it stands for it. Where it has frames, samples
    # of that place are headrace's own work between the calls.
    return {name: _count_by(stacks, _caller) for name, stacks in by_worker.items()}


def _count_by(stacks: Counter[Stack], part: Callable[[Stack], Stack]) -> Counter[Stack]:
    found: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        kept = part(stack)
        if kept:
            found[kept] += count
    return found


def _find_called(stack: Stack) -> Stack:
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
    return most_costly(found)
