"""Opens, starts and replaces the threads in which the stations' workers live."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from headrace.base.threads import start_thread
from headrace.pipeline.carriage import Carriage
from headrace.pipeline.guard import Guard
from headrace.pipeline.opening import make_opening_error
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.station import Station
from headrace.pipeline.thread_budget import limit_library_threads
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.pipeline.worker import Worker

logger = logging.getLogger("headrace")

_FEWER_WORKERS = "lower stages.{}.workers"


class Workers:
    """Those of one run.

    Args:
        stations: Whose workers.
        guard: Keeps what breaks them.
        context: Of the run.

    Attributes:
        of_all: The thread that carries the calls of all stations whose workers need none of their own; empty: there is none.
    """

    def __init__(self, stations: Sequence[Station], guard: Guard, context: RunContext) -> None:
        self.of_all: list[threading.Thread] = []
        self._stations = stations
        self._guard = guard
        self._context = context
        self._opened = threading.Semaphore(0)

    def start(self, wait: Callable[[threading.Semaphore], bool]) -> dict[tuple[Station, int], Worker]:
        """Start all threads, and return the workers that have none of their own: the receivers run them.

        Models are loaded before the first job is received: a job's visibility timeout is not for loading.

        Args:
            wait: Waits for one more worker to be open; returns False where there is no sense in waiting.

        Raises:
            HeadraceError: If a stage cannot be opened, or the system gives no thread.
        """
        # Before any other thread: it changes the environment, and a process that another thread starts at that moment gets
        # a list of variables that is gone, and dies.
        limit_library_threads()
        inline: dict[tuple[Station, int], Worker] = {}
        opening: list[threading.Thread] = []
        for station in self._stations:
            if station.runs_in_place:
                continue
            if station.has_queue:
                opening.extend(self._thread(station, number) for number in range(station.num_threads))
            else:
                opened = {(station, number): self._open(station, number) for number in range(station.num_workers)}
                inline.update((place, worker) for place, worker in opened.items() if worker is not None)
        # Then those where the first worker shows that one thread cannot carry the calls of all, as the Plan wanted.
        if self._open_all(opening, wait) and self._open_all(
            [
                self._thread(station, number)
                for station in self._stations
                if station.has_queue
                for number in range(len(station.threads), station.num_threads)
            ],
            wait,
        ):
            self._start_carriage()
        return inline

    def _start_carriage(self) -> None:
        carryings = [station.carrying for station in self._stations if station.carrying is not None]
        if not carryings:
            return
        carriage = Carriage(carryings, self._context.clock, self._context.metering)
        thread = threading.Thread(target=self._guard.around(carriage.work), name="carrier", daemon=True)
        start_thread(thread, "lower the workers of the stages")
        self.of_all.append(thread)

    def _open_all(self, threads: Sequence[threading.Thread], wait: Callable[[threading.Semaphore], bool]) -> bool:
        """Start threads and wait until their workers are open; return False where there was no sense in waiting."""
        for thread in threads:
            start_thread(thread, _FEWER_WORKERS.format(thread.name.rpartition("-")[0]))
        if not all(wait(self._opened) for _ in threads):
            return False
        if self._guard.error is not None:
            raise self._guard.error
        return True

    def start_one(self, station: Station, number: int) -> None:
        """Start a worker beside the others, or in the place of one that was left behind."""
        if station.carrying is not None:
            station.carrying.wake()  # its one thread makes the place
            return
        threads = station.threads
        station.threads = [thread for thread in threads if thread.name != f"{station.name}-{number}"]
        start_thread(self._thread(station, number), _FEWER_WORKERS.format(station.name))

    def _thread(self, station: Station, number: int) -> threading.Thread:
        thread = threading.Thread(
            target=self._guard.around(self._work), args=(station, number), name=f"{station.name}-{number}", daemon=True
        )
        station.threads.append(thread)
        return thread

    def _work(self, station: Station, number: int) -> None:
        try:
            worker = self._open(station, number)
        finally:
            self._opened.release()
        if worker is None or station.carrying is not None:  # the thread of all carries its calls
            return
        try:
            station.work(worker)
        finally:
            worker.close()

    def _open(self, station: Station, number: int) -> Worker | None:
        """Open a worker's stages; None where they cannot be opened, which ends the run if it needs this worker."""
        try:
            return station.open_worker(number)
        except BaseException as error:
            raise_if_of_the_run(error)
            failure = make_opening_error(station.name, error)
        if number < station.num_workers:
            self._guard.note(failure)
        else:  # it would have had the place of one that waits, and the others work as they did
            logger.warning("one more worker could not be opened: %s", failure)
        return None
