"""What carried calls cost the one thread that carries them.

How this works: the thread says whom it works for whenever that changes, and reads its clocks then. What it spends on a station
is for that station's calls; what it spends on waiting, and how long a core kept it waiting, is for all. What one call cost is
not known for itself: what a station has to pay is divided evenly among its calls that end then, so that the sum is right.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.metering import Metering, Reading, ThreadMeter


class Cost:
    """CPU time and run-queue delay that no call was charged with yet, ns; None where they were not read."""

    def __init__(self) -> None:
        self._cpu: int | None = None
        self._run_delay: int | None = None

    def add(self, before: Reading, after: Reading) -> None:
        """Add what went by between two readings."""
        self._cpu = _sum(self._cpu, before[1], after[1])
        self._run_delay = _sum(self._run_delay, before[2], after[2])

    def forget(self) -> None:
        """Leave out what no call was charged with yet, as clocks are not read now: nothing is known, which is not zero."""
        self._cpu = self._run_delay = None

    def take(self, other: Cost, count: int, out_of: int) -> None:
        """Take over the part of another cost that so many calls are to pay, out of so many."""
        self._cpu, other._cpu = _move(self._cpu, other._cpu, count, out_of)
        self._run_delay, other._run_delay = _move(self._run_delay, other._run_delay, count, out_of)

    def share(self, count: int, most: int) -> tuple[int | None, int | None]:
        """Return CPU time and run-queue delay of the next of so many calls, together no more than it lasted, ns.

        The rest is for those after it. None where nothing was read.
        """
        cpu = None if self._cpu is None else min(self._cpu // count, most)
        run_delay = None if self._run_delay is None else min(self._run_delay // count, most - (cpu or 0))
        if self._cpu is not None and cpu is not None:
            self._cpu -= cpu
        if self._run_delay is not None and run_delay is not None:
            self._run_delay -= run_delay
        return cpu, run_delay


class Charges:
    """Whom the thread works for; used by this thread alone.

    Attributes:
        common: What is for all calls.

    Args:
        metering: Whether to read the clocks.
        now_ns: The run's clock.
    """

    def __init__(self, metering: Metering, now_ns: Callable[[], int]) -> None:
        self.common = Cost()
        self._metering = metering
        self._meter = ThreadMeter(now_ns)
        self._payer = self.common
        self._last: Reading | None = None

    def begin(self) -> bool:
        """Begin to charge if clocks are to be read now; return whether they are."""
        if not self._metering.on:
            self.common.forget()
            return False
        self._payer, self._last = self.common, self._meter.read()
        return True

    def charge(self, payer: Cost | None) -> None:
        """Note for whom the thread works from now on; None: for all."""
        payer = payer or self.common
        if self._last is None or payer is self._payer:
            self._payer = payer
            return
        now = self._meter.read()
        self._payer.add(self._last, now)
        self._payer, self._last = payer, now

    def end(self) -> None:
        """Charge for nothing until the next `begin`."""
        if self._last is not None:
            self._payer.add(self._last, self._meter.read())
        self._last = None

    def close(self) -> None:
        """Give back what reading takes."""
        self._meter.close()


def _sum(known: int | None, before: int | None, after: int | None) -> int | None:
    return known if before is None or after is None else (known or 0) + after - before


def _move(known: int | None, other: int | None, count: int, out_of: int) -> tuple[int | None, int | None]:
    if other is None:
        return known, None
    part = other * count // out_of
    return (known or 0) + part, other - part
