"""The one thread of a run that carries calls: those of all stations whose workers only wait on the outside.

How this works: each station's calls are a `Carrying`. The thread has those that have something to do begin calls, sends their
requests, and only then hands on what has ended: who is woken by that finds the GIL free sooner, and servers are at work
meanwhile. Then it waits until calls have ended, or until somebody wakes it. A station that does nothing costs nothing.

It never waits for anything else: one that waited for the queue of a station that it carries itself would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.carrier import Carrier, Ended
from headrace.base.clock import Clock
from headrace.base.metering import Metering
from headrace.pipeline.carried_costs import Charges, Cost
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
        self._own = Cost()  # what no call is charged with: the way of the items from station to station

    def work(self) -> None:
        """Carry calls in this thread until all stations are over.

        Raises:
            OSError: If the system gives no file handle for it.
        """
        carrier = Carrier()
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
            carrying.free_places(carrier)
        carrier.charge = charge = self._charges.charge if self._charges.begin() else None
        if charge is None:
            for carrying in self._carryings:
                carrying.cost.forget()
        for carrying in due:
            if charge is not None:
                charge(carrying.cost)
            carrying.begin(carrier)
        carrier.advance()
        if charge is not None:
            charge(self._own)
        for carrying in due:
            carrying.hand_on()
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
            if carrier.charge is not None:
                carrying.cost.take(self._charges.common, len(own), left)
                left -= len(own)
            carrying.note_ended(own, has_cost=carrier.charge is not None)
