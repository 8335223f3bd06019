"""What a GPU takes for each phase, by its own clock: events where phases begin, read later, and never waited for.

How this works: a GPU works off later what the host launches; the host's clock sees launches alone. So an event goes onto the
device's current stream at each mark, and between two of them lies what the device took for what was launched in that phase, and
the time in which it had nothing to do. Once a later stretch ends, events that are over are read (`query`), in order, and become
spans of the unit `DEVICE`. Nothing waits for the device, so the training goes on as without headrace. Work on other streams
(copies, NCCL) is seen where the current one waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

#: Stretches that may wait to be read. A device that is further behind than that stands still.
_MOST_WAITING = 256
#: Where a mark's clocks have the event: behind those of the host.
_EVENT = 3
#: How long `finish` gives the device for its last stretches.
_PATIENCE_SECONDS = 1.0


class DeviceStep(NamedTuple):
    """When the device came to the marks of one step."""

    number: int
    """Of the step."""
    device: str
    """Such as `cuda:0`."""
    marks: list[tuple[Any, int, int]]
    """(phase, micro-batch, ns on the host's clock)."""


class DeviceClock:
    """Events at the marks of one training thread.

    Attributes:
        not_measured: Why steps have no times; empty: nothing was lost.
    """

    def __init__(self, cuda: Any) -> None:
        """Begin.

        Args:
            cuda: `torch.cuda`, or what behaves as it does.
        """
        self._cuda = cuda
        self._free: list[Any] = []
        self._waiting: deque[tuple[int | None, str, Sequence[Any]]] = deque()
        self._has_failed = False
        self.not_measured = ""

    def is_ready(self) -> bool:
        """Return whether the program uses the device; asking must not begin that: children that are forked later could not."""
        return bool(self._cuda.is_initialized()) and not self._has_failed

    def record(self) -> Any:
        """Return an event that the device comes to after all that was launched so far; None while a graph is captured."""
        try:
            if self._has_failed or self._cuda.is_current_stream_capturing():
                return None
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
        except RuntimeError as error:
            self._fail(error)
            return None
        return event

    def keep(self, number: int | None, marks: Sequence[Any]) -> Iterator[DeviceStep]:
        """Take a stretch that has ended; give the steps that the device is through with.

        Args:
            number: Of the step; None: it is none.
            marks: (phase, micro-batch, clocks of the host and event); the last one is the first of the next stretch.
        """
        if all(isinstance(clocks, tuple) and len(clocks) > _EVENT for _, _, clocks in marks):
            self._waiting.append((number, f"cuda:{self._cuda.current_device()}", marks))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()  # its events are not used again: one may belong to the next stretch
            self.not_measured = (
                f"the device was more than {_MOST_WAITING} steps behind: some have the host's times alone"
            )
        return self._read()

    def finish(self) -> Iterator[DeviceStep]:
        """Give the last steps; what the device has not come to after a second is lost."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while self._waiting:
            yield from self._read()
            if self._waiting and time.monotonic() > until:
                self.not_measured = f"the device was not through with the last {len(self._waiting)} steps"
                self._waiting.clear()
            elif self._waiting:
                time.sleep(0.001)

    def _read(self) -> Iterator[DeviceStep]:
        while self._waiting and self._is_over(self._waiting[0][2][-1][2][_EVENT]):
            number, device, marks = self._waiting.popleft()
            events = [clocks[_EVENT] for _, _, clocks in marks]
            if number is not None and None not in events:
                try:
                    elapsed = [0, *(int(events[0].elapsed_time(event) * 1e6) for event in events[1:])]
                except (
                    RuntimeError,
                    ValueError,
                ) as error:  # of two devices: the program chose another one within the step
                    self.not_measured = f"the device's events cannot be read: {str(error).splitlines()[0]}"
                else:
                    came = _on_host_clock([clocks[0] for _, _, clocks in marks], elapsed)
                    yield DeviceStep(number, device, [(*mark[:2], at) for mark, at in zip(marks, came, strict=True)])
            self._free += [event for event in events[:-1] if event is not None]

    def _is_over(self, event: Any) -> bool:
        try:
            return event is None or bool(event.query())
        except RuntimeError as error:
            self._fail(error)
            return False

    def _fail(self, error: RuntimeError) -> None:
        """Use the device no more: an error of the program's own came up here first, and comes up again where it asks."""
        self._has_failed = True
        self._waiting.clear()
        self.not_measured = f"the device failed: {str(error).splitlines()[0]}"


def _on_host_clock(host: Sequence[int], elapsed: Sequence[int]) -> list[int]:
    """Return when the device came to each mark: never before the host, and at one of them with it."""
    lags = [late - (now - host[0]) for now, late in zip(host, elapsed, strict=True)]
    return [host[0] + late - min(lags) for late in elapsed]
