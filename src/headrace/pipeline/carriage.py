"""The one thread of a run that carries calls: those of all stations whose workers only wait on the outside.

How this works: each station's calls are a `Carrying`. In turn the thread lets those that have something to do hand on and
begin, and then waits until calls have ended, or until somebody wakes it. A station that does nothing costs nothing.

It never waits for anything else: one that waited for the queue of a station that it carries itself would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.carrier import Carrier, Ended
from headrace.base.clock import Clock
from headrace.base.metering import Metering
from headrace.pipeline.carried_costs import Charges
from headrace.pipeline.carrying import Carrying


class Carriage:
    """Carries the calls of one run.

    Args:
        carryings: Those of its stations.
        clock: Of the run.
        metering: Whether to read what the calls cost the thread.
    """

    def __init__(self, carryings: Sequence[Carrying], clock: Clock, metering: Metering) -> None:
        self._carryings = carryings
        self._charges = Charges(metering, clock.now_ns)

    def work(self) -> None:
        """Carry calls in this thread until all stations are over.

        Raises:
            OSError: If the system gives no file handle for it.
        """
        carrier = Carrier(self._charges.charge)
        try:
            for carrying in self._carryings:
                carrying.join_in(carrier)
            while self._step(carrier):
                self._wait(carrier)
        finally:
            carrier.close()
            self._charges.close()
            for carrying in self._carryings:
                carrying.leave()

    def _step(self, carrier: Carrier) -> bool:
        """Let the stations do what they have to; return whether one is not over."""
        due = [carrying for carrying in self._carryings if carrying.is_due]
        for carrying in due:
            carrying.is_due = False  # first: who has it look again meanwhile is heard in the next round
            carrying.hand_on(carrier)
        is_metered = self._charges.begin()
        for carrying in due:
            if not is_metered:
                carrying.cost.forget()
            self._charges.charge(carrying.cost)
            carrying.begin(carrier)
        return any(carrying.is_alive() for carrying in self._carryings)

    def _wait(self, carrier: Carrier) -> None:
        """Wait until calls have ended or somebody wakes the thread."""
        ended = carrier.wait(None)
        self._charges.end()
        by_carrying: dict[Carrying, list[Ended]] = {}
        for one in ended:
            by_carrying.setdefault(one.token.carrying, []).append(one)
        left = len(ended)
        for carrying, own in by_carrying.items():
            carrying.cost.take(self._charges.common, len(own), left)
            left -= len(own)
            carrying.note_ended(own)
