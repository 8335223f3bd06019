"""Phases of a training as ranges that Nsight Systems (NVTX) and VTune (ITT) draw above what they record themselves.

How this works: a recorder that ends a range and begins another at each of its marks, in the training thread. Without such a
tool attached, ranges cost a call each and do nothing else. A stretch that is cut in hindsight leaves ranges as they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import MissingExtra
from headrace.base.records import Span
from headrace.runs.training_phases import Phase
from headrace.train.current import read_asked
from headrace.train.recorder import Recorder

#: Set by `headrace train --ranges`; inherited by every process of the program.
VARIABLE = "HEADRACE_TRAIN_RANGES"
KINDS = ("nvtx", "itt")
#: What begins a range of this name, and what ends the last one that was begun in this thread.
Calls = tuple[Callable[[str], Any], Callable[[], Any]]


class RangedRecorder(Recorder):
    """A recorder whose phases are ranges too.

    Args:
        write: As for `Recorder`.
        calls: Begin and end a range.
        rank: Of this process.
    """

    def __init__(self, write: Callable[[Sequence[Span]], None], calls: Calls, *, rank: int = 0) -> None:
        self._push, self._pop = calls
        #: Thread in which a range is open; 0: none is.
        self._open_in = 0
        super().__init__(write, rank=rank)

    def _switch(self, phase: Phase) -> None:
        thread = threading.get_ident()
        if self._open_in == thread:
            self._pop()
        super()._switch(phase)
        self._push(phase.value)
        self._open_in = thread

    def close(self, *, failed: bool = False) -> None:
        """End the last range too, if this is its thread."""
        super().close(failed=failed)
        if self._open_in == threading.get_ident():
            self._pop()
        self._open_in = 0


def make_recorder(write: Callable[[Sequence[Span]], None], *, rank: int) -> tuple[Recorder, str]:
    """Return the recorder that the environment asks for, and why it makes no ranges although it should; else empty."""
    kind = read_asked(VARIABLE)
    if kind not in KINDS:
        return Recorder(write, rank=rank), ""
    try:
        return RangedRecorder(write, find_calls(kind), rank=rank), ""
    except (ImportError, RuntimeError, AttributeError) as error:
        return Recorder(write, rank=rank), str(error).splitlines()[0]


def find_calls(kind: str) -> Calls:
    """Return what begins and ends ranges.

    Raises:
        MissingExtra: If the package `nvtx` is not installed.
        RuntimeError: If this PyTorch has no ITT.
    """
    if kind == "nvtx":
        return _nvtx_calls()
    from torch.profiler import itt

    if not itt.is_available():
        raise RuntimeError("this PyTorch was built without ITT; that of PyPI for x86 has it")
    return itt.range_push, itt.range_pop


def _nvtx_calls() -> Calls:
    try:
        import nvtx
    except ImportError as error:
        raise MissingExtra("NVTX ranges around phases", "nvtx") from error
    domain = nvtx.get_domain("headrace")
    attributes = {str(phase): domain.get_event_attributes(message=str(phase), category="phase") for phase in Phase}

    def push(name: str) -> None:
        domain.push_range(attributes[name])

    return push, domain.pop_range
