"""Resources that one worker has at a time, or a few: devices, locks, and what stations claim while they serve."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.diagnose.simulator.station_states import StationState, Worker


class ExclusiveResources:
    """Who has them, and for how long they were had.

    Args:
        counts: How many there are of each.

    Attributes:
        seconds: For which each was had, all of it together; as of the last change, or `close`.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.seconds = [0.0] * len(counts)
        self._counts, self._free = counts, list(counts)
        self._since = [0.0] * len(counts)
        self._waiting: list[deque[Worker]] = [deque() for _ in counts]
        self._claiming: list[StationState] = []
        """Those that wait for what they claim, in order."""

    @property
    def claiming(self) -> Sequence[StationState]:
        """Stations that wait for what they claim, in order."""
        return self._claiming

    def take(self, worker: Worker, number: int, now: float) -> bool:
        """Return whether a worker has one now; if not, it is in line for it."""
        if self._free[number] <= 0:
            self._waiting[number].append(worker)
            return False
        self._change(number, -1, now)
        return True

    def give(self, number: int, now: float) -> Worker | None:
        """Give one back; return who has it from hand to hand."""
        if self._waiting[number]:
            return self._waiting[number].popleft()
        self._change(number, 1, now)
        return None

    def may_claim(self, state: StationState) -> bool:
        """Return whether a station's worker may have what it claims; if not, it is in line for it now."""
        claims = state.station.claims
        wanted = {number for number, _ in claims}
        is_there = all(self._free[number] >= amount for number, amount in claims)
        for other in self._claiming:
            if other is state:
                return is_there
            if other.queue and any(number in wanted for number, _ in other.station.claims):
                is_there = False
        if not is_there:
            self._claiming.append(state)
        return is_there

    def claim(self, state: StationState, now: float) -> None:
        """Let a station have what it claims."""
        for number, amount in state.station.claims:
            self._change(number, -amount, now)
        if state in self._claiming:
            self._claiming.remove(state)

    def end_claim(self, state: StationState, now: float) -> None:
        """Give back what a station claimed."""
        for number, amount in state.station.claims:
            self._change(number, amount, now)

    def close(self, now: float) -> None:
        """Count what is had until now."""
        for number in range(len(self._free)):
            self._change(number, 0, now)

    def _change(self, number: int, more: int, now: float) -> None:
        taken = self._counts[number] - self._free[number]
        self.seconds[number] += taken * (now - self._since[number])
        self._since[number] = now
        self._free[number] += more
