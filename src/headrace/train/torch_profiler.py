"""Runs torch.profiler for some steps of a training that is recorded, on a schedule; its traces go into the run folder.

How this works: the recorder calls `step` behind each step, in the training thread, where the profiler must begin and end.
Steps in which the profiler runs, and the one in which its trace is written, are of a `Kind` of their own and in no figure. The
profiler's number of a step is that of the run, so a `ProfilerStep#37` in the trace is step 37 of the run folder.

Where the program itself profiles at that time, or PyTorch refuses, the training goes on and `why_not` says so.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from headrace.runs.file_names import TRACES_FOLDER
from headrace.runs.training_phases import Kind
from headrace.train.profiler_schedule import ProfilerSchedule
from headrace.train.recorder import Recorder


class ScheduledProfiler:
    """torch.profiler on a schedule, from the first step that ended until the schedule is over.

    Attributes:
        traces: Names of the files that were written.
        why_not: Why there is no trace, or none any more; empty: nothing went wrong.
    """

    def __init__(self, folder: Path, schedule: ProfilerSchedule, recorder: Recorder) -> None:
        """Profile nothing yet.

        Args:
            folder: The run folder.
            schedule: When to profile.
            recorder: Whose steps these are.
        """
        self.traces: list[str] = []
        self.why_not = ""
        self._folder, self._schedule, self._recorder = folder / TRACES_FOLDER, schedule, recorder
        #: Of the cycle in progress; None between cycles.
        self._profiler: Any = None
        self._mark: Any = None
        self._is_recording = False
        self._thread = 0
        self._begun = -1
        self._write_seconds = 0.0
        self._is_over = False

    def step(self) -> None:
        """A step ended, and the next one has begun; called in the training thread."""
        if self._is_over:
            return
        try:
            self._step()
        except Exception as error:  # The training goes on, whatever the profiler does.
            self._is_over = True
            self.why_not = (
                f"torch.profiler stopped: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )

    def _step(self) -> None:
        if self._begun < 0:
            self._begun, self._thread = self._recorder.steps, threading.get_ident()
        number = self._recorder.steps - self._begun
        before, now = self._schedule.phase(number - 1) if number else "none", self._schedule.phase(number)
        self._is_over = number >= self._schedule.repeat * self._schedule.cycle
        if before == now == "none":
            return
        self._recorder.set_kind(Kind.PROFILED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._leave_step()
            if before in ("none", "last"):
                self._end_cycle()
                if now != "none":
                    self._begin_cycle()
            if now in ("active", "last"):
                self._enter_step()

    def _begin_cycle(self) -> None:
        if torch.autograd._profiler_enabled():  # noqa: SLF001 -- there is no other way to ask
            raise RuntimeError("the program itself profiles")
        schedule = self._schedule
        self._profiler = profile(
            activities=[one for one in supported_activities() if one in (ProfilerActivity.CPU, ProfilerActivity.CUDA)],
            with_stack=bool(schedule.stack),
            record_shapes=bool(schedule.shapes),
        )
        self._profiler.prepare_trace()

    def _enter_step(self) -> None:
        if not self._is_recording:
            self._profiler.start_trace()
            self._is_recording = True
        self._mark = record_function(f"ProfilerStep#{self._recorder.steps}")
        self._mark.__enter__()

    def _leave_step(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _end_cycle(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        if not self._is_recording:  # what was prepared must be begun before it can be ended
            profiler.start_trace()
        profiler.stop_trace()
        has_steps, self._is_recording = self._is_recording, False
        if has_steps:
            self._write(profiler)

    def _write(self, profiler: Any) -> None:
        begun = time.monotonic()
        self._folder.mkdir(exist_ok=True)
        name = f"{socket.gethostname()}_{os.getpid()}.{self._recorder.steps}.pt.trace.json.gz"
        temporary = self._folder / f".{name}"
        profiler.export_chrome_trace(str(temporary))
        temporary.replace(self._folder / name)
        self.traces.append(f"{TRACES_FOLDER}/{name}")
        self._write_seconds += time.monotonic() - begun

    def close(self) -> None:
        """End a cycle in progress, in the training thread; what another thread closes leaves no trace of it."""
        self._is_over = True
        if self._profiler is None:
            return
        if threading.get_ident() != self._thread:
            self.why_not = "the training ended while torch.profiler recorded, in another thread: that trace is lost"
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._leave_step()
                self._end_cycle()
        except Exception as error:
            self.why_not = f"the last trace is lost: {type(error).__name__}: {error}"

    def describe(self) -> dict[str, Any]:
        """Return what `details["torch_profiler"]` of `training/HOST-PID.json` holds."""
        return {"traces": list(self.traces), "write_seconds": self._write_seconds}
