"""The sampler's side in the profiled process: starts the sampler, tells it of workers, asks for its report."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headrace.pipeline.worker import WorkerThread
from headrace.profiler.sampler.gil import GilNotFound, find_gil
from headrace.profiler.sampler.messages import GilPlace, Report, SamplerSettings

logger = logging.getLogger("headrace")

_PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True, kw_only=True)
class SamplerReport:
    """How the run was watched."""

    helper_process: int | None
    """Process id; None if the sampler could not be started or did not live to the end."""
    helper_cpu_seconds: float | None
    """CPU time of the sampler, with its start."""
    state_samples_per_second: float | None
    """How often the threads' states were looked at, on average; None if they never were."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """{what: why}."""
    problem: str | None = None
    """What went wrong, for the user; None if nothing did."""
    outputs: dict[str, list[str]] = field(default_factory=dict)
    """{worker: pipes and terminals that it waited for somebody to read}."""


class Sampler:
    """Has a sampler process sample resources and thread states into a run folder. Thread-safe.

    Whatever happens to the sampler, no method raises for it; the report tells.

    Args:
        folder: The run folder; must exist. `runs.resource_files.seal` it after `close`.
        resource_hertz: How often resources are sampled, 0.5 to 10.
        state_hertz: How often threads are looked at, 1 to 1000; seldomer where that would cost over 0.4 % of a core (1.5 % in
            the first 10 s), and a tenth of it after five minutes.
        close_seconds: How long the sampler may take to answer at the end. It needs milliseconds, and seconds on a machine that
            hardly gets to it.

    Raises:
        ValueError: If a rate is out of range.
    """

    def __init__(
        self, folder: Path, *, resource_hertz: float = 2.0, state_hertz: float = 100.0, close_seconds: float = 10.0
    ) -> None:
        for name, value, low, high in (
            ("resource_hertz", resource_hertz, 0.5, 10.0),
            ("state_hertz", state_hertz, 1.0, 1000.0),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} must lie between {low:g} and {high:g}, got {value:g}")
        self._folder = folder.absolute()
        self._resource_hertz = resource_hertz
        self._state_hertz = state_hertz
        self._close_seconds = close_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unsent = b""
        self._told: list[tuple[int, int, str]] = []
        self._problem: str | None = None
        self._report: SamplerReport | None = None

    @property
    def helper_process(self) -> int | None:
        """Process id of the sampler, None if there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the sampler; returns before it has begun."""
        with self._lock:
            if self._process is not None:
                raise RuntimeError("the sampler has been started already")
            try:
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sampler
                self._process = self._start_helper(self._errors)
            except OSError as error:
                self._give_up(f"the sampler could not be started: {error}")
                self._last_words()
                return
        allow_tracing(self._process.pid)

    def set_threads(self, workers: Sequence[WorkerThread]) -> None:
        """Say which threads to look at from now on; call it again when they change, as often as you like."""
        told = [(worker.process, worker.thread_id, worker.name) for worker in workers]
        with self._lock:
            if told != self._told:
                self._told = told
                self._unsent += json.dumps({"threads": told}).encode() + b"\n"
            self._send()

    def close(self) -> SamplerReport:
        """End the sampler and return its report; the same one if called again."""
        with self._lock:
            if self._report is None:
                self._report = self._end()
            return self._report

    def _start_helper(self, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        place, reason = _place_of_gil()
        settings = SamplerSettings(
            folder=self._folder,
            process=os.getpid(),
            resource_hertz=self._resource_hertz,
            state_hertz=self._state_hertz,
            gil=place,
            gil_reason=reason,
        )
        process = subprocess.Popen(
            # -P: no file of the current folder may stand in for a module that the sampler imports.
            [sys.executable, "-P", "-m", "headrace.profiler.sampler", settings.encode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env=_environment(),
            process_group=0,  # Ctrl-C must not reach it before it has said that it does not listen to that
        )
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)  # a sampler that was stopped must not stop the run
        return process

    def _send(self) -> None:
        """Send what there is to send, as far as the pipe takes it."""
        process = self._process
        if not self._unsent or process is None or process.stdin is None or self._problem:
            return
        try:
            with contextlib.suppress(BlockingIOError):
                self._unsent = self._unsent[os.write(process.stdin.fileno(), self._unsent) :]
        except OSError:
            self._give_up("the sampler ended in the middle of the run")

    def _end(self) -> SamplerReport:
        process = self._process
        if process is None:
            return self._make_report(None)
        self._unsent += b'{"close": true}\n'
        self._send()
        if process.stdin is not None:
            process.stdin.close()
            process.stdin = None
        try:
            answer, _ = process.communicate(timeout=self._close_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self._give_up(f"the sampler did not answer for {self._close_seconds:g} s and was ended")
            return self._make_report(None)
        finally:
            errors = self._last_words()
        try:
            return self._make_report(Report.decode(answer.decode()))
        except (ValueError, TypeError):
            self._give_up(f"the sampler ended too early ({_describe_end(process.returncode)}){errors}", anew=True)
            return self._make_report(None)

    def _last_words(self) -> str:
        """Return the last line that the sampler wrote to its standard error, as part of a sentence."""
        file, self._errors = self._errors, None
        if file is None:
            return ""
        with file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _give_up(self, problem: str, *, anew: bool = False) -> None:
        if self._problem is None:
            logger.warning("%s; the run goes on, and resources and thread states are not sampled any more", problem)
        if self._problem is None or anew:
            self._problem = problem

    def _make_report(self, report: Report | None) -> SamplerReport:
        if report is None:
            why = {"resources": self._problem or "not started", "thread states": self._problem or "not started"}
            return SamplerReport(
                helper_process=None,
                helper_cpu_seconds=None,
                state_samples_per_second=None,
                not_measured=why,
                problem=self._problem,
            )
        problem = self._problem
        if report.lost_samples:
            problem = f"{report.lost_samples:,} samples of the sampler could not be written to {self._folder}"
        return SamplerReport(
            helper_process=self.helper_process,
            helper_cpu_seconds=report.cpu_seconds,
            state_samples_per_second=report.state_samples_per_second,
            not_measured=report.not_measured,
            problem=problem,
            outputs=report.outputs,
        )


class Permission:
    """Lets the sampler look at worker processes: an `Instrument`, which each opens with its stages.

    Attributes:
        helper_process: Set before workers are opened; None if there is no sampler.
    """

    def __init__(self) -> None:
        self.helper_process: int | None = None
        self._main_process = os.getpid()

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Give the permission; the call stays as it is."""
        if self.helper_process is not None and os.getpid() != self._main_process:
            allow_tracing(self.helper_process)
        return call


def allow_tracing(sampler: int) -> None:
    """Let the sampler look at the threads of the process that calls this, where Yama asks for that; harmless elsewhere.

    The permission is not inherited: worker processes give it by `Permission`.

    References:
        PR_SET_PTRACER(2const); Linux kernel, Documentation/admin-guide/LSM/Yama.rst.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(sampler), *[ctypes.c_ulong(0)] * 3)


def _place_of_gil() -> tuple[GilPlace | None, str]:
    try:
        return find_gil(with_holder=True), ""
    except (GilNotFound, OSError, RuntimeError) as error:  # RuntimeError: no thread more may be started
        return None, str(error)


def _environment() -> dict[str, str]:
    """Return an environment in which the sampler imports the headrace that runs here."""
    root = Path(__file__).resolve().parents[3]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(root)])}


def _describe_end(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
