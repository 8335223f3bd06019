"""The discrete-event loop: replays units of work through stations, cores, the GIL and exclusive resources.

How this works. Two heaps hold what comes next. One is of points in time: waits that end, arrivals, deadlines of batches, a
thread that must give up the GIL. The other is of work on cores. Runnable threads share the cores evenly, so all of them
advance at the same speed, min(1, cores / runnable threads): one virtual clock runs at that speed, and a piece of work that
needs c seconds of a core ends when the virtual clock has moved on by c. Whoever starts or stops changes the clock's speed and
nobody's place in the heap, so an event costs one heap operation, not one for each thread.

Where a system says how long a slice of a core is, threads take turns instead, as the kernel has it: as many as there are cores
run, each until it waits or has had its slice while another is ready; who has had least comes first. So a thread that wakes up
waits for its turn, and that decides who gets the GIL. CPython lets go of it and wakes one of those that wait; whoever asks
for it first, on a core, has it. While the one that was woken waits for a core, threads that compute there come back from their
calls and take the GIL again and again, and it goes back to waiting. Only who was made to give it up hands it over.

A worker runs the program of its unit (or batch), phase by phase, hands it on, and takes the next. It is in exactly one place:
idle at its station, in a phase, waiting for the GIL or a resource, or blocked because the next queue is full. A full queue lets
its producers go on once it is half empty, as the runtime's does. Batches are released by the runtime's own policy.

Where waking costs something, a worker that slept spends its half of that before it looks into the queue, so that it finds what
came meanwhile, and nobody else is woken for what those on their way will take. Its waker spends the other half before its next
piece of work. So a hop costs a wake-up at low rates and less at high ones, as in the runtime. A thread that goes on with Python
code keeps the GIL then, as CPython has it: from unit to unit, until it waits, computes without it, or has kept it for one
switch interval; and whoever waited for it is woken too.

References:
    Processor sharing by virtual time: A. Demers, S. Keshav, S. Shenker, "Analysis and simulation of a fair queueing
    algorithm", SIGCOMM 1989. The GIL, its switch interval and who takes it: CPython, `Python/ceval_gil.c`. Turns: I. Stoica,
    H. Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995, as in Linux, `kernel/sched/fair.c`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from headrace.base.policies.batching import Release, Waiting
from headrace.diagnose.simulator.entrance import ANSWERED, LATE, REFUSED, Entrance
from headrace.diagnose.simulator.exclusive import ExclusiveResources
from headrace.diagnose.simulator.station_states import StationState, Worker, connect, make_reader
from headrace.diagnose.simulator.system import CPU, GIL, SPREAD, TAKE, WAIT, Program, System
from headrace.diagnose.simulator.trace import Trace
from headrace.diagnose.simulator.turns import Turns


def simulate(system: System) -> Trace:
    """Run a system once and return what happened; deterministic.

    Raises:
        RuntimeError: If nothing can go on and jobs are left: a description that contradicts itself.
    """
    return Engine(system).run()


class Engine:
    """One simulation; see the module."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._num_events = 0
        # Cores
        self._running: list[tuple[float, int, Worker]] = []
        self._threads = 0.0
        self._virtual = 0.0
        self._speeds: dict[float, tuple[float, float]] = {}
        self._cpu_seconds = 0.0
        self._delay_seconds = 0.0
        takes_turns = system.slice_seconds > 0
        self._turns = Turns(self, max(1, int(system.cores)), system.slice_seconds) if takes_turns else None
        # The GIL
        self._holder: Worker | None = None
        self._held_since = 0.0
        self._switch_timer = 0
        self._gil_waiting: deque[Worker] = deque()
        self._gil_seconds = 0.0
        # Exclusive resources
        self._exclusive = ExclusiveResources(system.resources)
        # Jobs
        self._received = np.zeros(system.num_jobs)
        self._done = np.zeros(system.num_jobs)
        self._outcome = np.zeros(system.num_jobs, np.int8)
        self._num_done = 0
        self._num_claimed = 0
        self._inside = 0
        # Places
        self._receiving, self._states = connect(system)
        self._entrance = None if system.arrivals is None else Entrance(system, system.arrivals, self._states)
        self._claimants = [state for state in self._states if state.station.claims]
        self._waiting_room: deque[Worker] = deque()
        self._waiting_jobs: deque[Worker] = deque()
        self._call_seconds = 0.0
        # The source's own thread
        reader = system.receivers.reader
        self._reader = None if reader is None else make_reader(reader)
        self._is_reading = False
        self._reading_since = 0.0
        self._num_ready = 0
        # Waking
        self._half_handoff = system.handoff_seconds / 2
        self._waker: Worker | None = None
        self._num_wakes = 0
        self._wire()

    # --- the loop

    def run(self) -> Trace:
        """Run until every job is done and return what happened; see `simulate`."""
        for state in self._states:
            state.idle.extend(reversed(state.workers))
        for receiver in self._receiving.workers:
            self._receive(receiver)
        if self._entrance is not None:
            self.later(self._entrance.next_arrival, self._let_in, self._entrance)
        self._read_on()
        self._pass_events()
        return self._trace()

    def _pass_events(self) -> None:
        """Do what comes next until every job is done.

        Some hundred thousand events pass here: what a diagnosis takes is mostly this loop, `_step` and `_compute`. So there are
        no calls for the clock's speed, for its advance and for the end of a piece of work: the speed is looked up here once an
        event, where the number of threads is known for good until the next one.
        """
        timers, running, speeds, count = self._timers, self._running, self._speeds, self.system.num_jobs
        go_on = self._end_work if self._turns is None else self._end_on_core
        while self._num_done < count:
            threads = self._threads
            known = speeds.get(threads)
            if known is None:  # the same few numbers of threads come again some ten thousand times
                known = speeds[threads] = self._speed_of(threads)
            speed, slowdown = known
            worker = None
            if running:
                virtual, token, worker = running[0]
                if worker.token != token:
                    heappop(running)
                    continue
                when = self.now + (virtual - self._virtual) / speed
                if timers and timers[0][0] <= when:
                    worker = None
            elif not timers:
                raise RuntimeError(f"the simulation stands still with {count - self._num_done} of {count} jobs undone")
            self._num_events += 1
            if worker is None:
                when, _, call, argument = heappop(timers)
                if when <= self.now:
                    call(argument)
                    continue
            else:
                heappop(running)
            if threads:
                work = (when - self.now) * speed
                self._virtual += work
                self._cpu_seconds += work * threads * slowdown
            self.now = when
            if worker is None:
                call(argument)
                continue
            worker.token = 0
            self._delay_seconds += when - worker.since - worker.left
            self._threads -= worker.threads
            go_on(worker)

    def later(self, when: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call something at a point in time."""
        self._serial += 1
        heappush(self._timers, (when, self._serial, call, argument))

    # --- a worker's program

    def _begin(self, worker: Worker, program: Program) -> None:
        if worker.debt:
            program = ((self.system.waker_phase, worker.debt), *program)
            worker.debt = 0.0
        worker.program = program
        worker.at = 0
        if program and program[0][0] <= GIL:
            self._step(worker)
        else:  # it may end at once, and a long queue of such units would nest as many calls
            self.later(self.now, self._step, worker)

    def _step(self, worker: Worker) -> None:
        """Go on with the next phase."""
        program, at = worker.program, worker.at
        while at < len(program):
            kind, amount = program[at]
            worker.at = at = at + 1
            if kind == WAIT:
                self.later(self.now + amount, self._step, worker)
                return
            if kind <= GIL:
                if kind == CPU:
                    if self._holder is worker:
                        self._release_gil()
                elif self._holder is not worker and not self._takes_gil(worker, amount):
                    return
                if self._turns is not None and not worker.is_on_core:
                    self._compute(worker, amount, 1.0)
                    return
                self._threads += 1.0  # what `_compute` does, without the call
                self._serial = worker.token = token = self._serial + 1
                worker.threads = 1.0
                worker.since = self.now
                worker.left = amount
                worker.ends = ends = self._virtual + amount
                heappush(self._running, (ends, token, worker))
                return
            if kind == SPREAD:
                if self._holder is worker:
                    self._release_gil()
                self._compute(worker, amount, worker.state.threads)
                return
            if kind == TAKE:
                if not self._exclusive.take(worker, int(amount), self.now):
                    return
            else:
                self._give_back(int(amount))
        worker.ended(worker)

    def _give_back(self, number: int) -> None:
        worker = self._exclusive.give(number, self.now)
        if worker is not None:
            self.later(self.now, self._step, worker)

    # --- cores

    def _compute(self, worker: Worker, seconds: float, threads: float) -> None:
        self._serial = worker.token = self._serial + 1
        worker.threads = threads
        worker.since = self.now
        worker.left = seconds
        if self._turns is None or worker.is_on_core:
            self.run_on(worker, seconds)
        else:
            self._turns.start(worker, seconds)

    def run_on(self, worker: Worker, seconds: float) -> None:
        """Let a thread that has a core work for so long."""
        self._threads += worker.threads
        worker.ends = ends = self._virtual + seconds
        heappush(self._running, (ends, worker.token, worker))

    def interrupt(self, worker: Worker) -> float:
        """Stop a thread that works, and return the seconds of its work that are left."""
        self._threads -= worker.threads
        self._serial = worker.token = self._serial + 1  # its entry among the running is void
        return max(0.0, worker.ends - self._virtual)

    def _end_work(self, worker: Worker) -> None:
        if self._holder is worker:
            self._end_with_gil(worker)
        else:
            self._step(worker)

    def _end_on_core(self, worker: Worker) -> None:
        """Go on after a piece of work, and leave the core unless another one follows it at once."""
        if worker.contends:
            self._ask_for_gil(worker)
        else:
            self._end_work(worker)
        if self._turns is not None and not worker.token:
            self._turns.leave(worker)

    def _end_with_gil(self, worker: Worker) -> None:
        if not self._half_handoff:
            self._release_gil()
        self._step(worker)
        if self._holder is worker and not worker.token:
            self._release_gil()  # it waits for something else now

    def _speed_of(self, threads: float) -> tuple[float, float]:
        """Return how fast the virtual clock runs with so many threads at work, and the slowdown of the cores then."""
        # Fair shares among all that want a core; but more threads than before take nothing more from the others, who may
        # be groups of their own to the scheduler.
        system = self.system
        wanted, cores, left = threads + system.others, system.cores, system.cores - system.taken
        speed = 1.0 if wanted <= cores else cores / wanted
        slowdown = 1.0 if wanted < cores else system.slowdown
        return (speed if threads * speed <= left else left / threads) / slowdown, slowdown

    # --- the GIL

    def _takes_gil(self, worker: Worker, seconds: float) -> bool:
        """Return whether a thread that needs the GIL for so long has it now; if not, it is on its way to it, or waits."""
        worker.left = seconds
        if self._turns is not None and not worker.is_on_core:
            self._contend(worker)
        elif self._holder is not None:
            self._want_gil(worker)
        else:
            self._holder = worker
            self._held_since = self.now
        return self._holder is worker

    def _contend(self, worker: Worker) -> None:
        """Have a thread that has no core wake up and ask for the GIL."""
        worker.needs_gil = worker.left
        worker.contends = True
        self._compute(worker, max(2 * self._half_handoff, self.system.gil_wake_seconds), 1.0)

    def _ask_for_gil(self, worker: Worker) -> None:
        worker.contends = False
        worker.left = worker.needs_gil
        if self._holder is None:
            self._grant_gil(worker)
        else:
            self._want_gil(worker)

    def _want_gil(self, worker: Worker) -> None:
        worker.since = self.now
        # The first wait comes before the work is seen to begin, and the last after it is seen to end.
        worker.is_within = 1 < worker.at < len(worker.program)
        self._gil_waiting.append(worker)
        if not self._switch_timer:
            self._arm_switch()

    def _grant_gil(self, worker: Worker) -> None:
        self._holder = worker
        self._held_since = self.now
        self._compute(worker, worker.left, 1.0)
        if self._gil_waiting:
            self._arm_switch()

    def _arm_switch(self) -> None:
        self._serial += 1
        self._switch_timer = self._serial
        when = self.now + self.system.switch_seconds
        heappush(self._timers, (when, self._serial, self._switch, self._serial))

    def _switch(self, timer: int) -> None:
        """Make the thread that keeps the GIL give it up: another has waited for one switch interval."""
        holder = self._holder
        if timer != self._switch_timer or holder is None:
            return
        self._switch_timer = 0
        if self._gil_waiting:
            is_running = self._turns is None or holder.is_on_core
            left = max(0.0, holder.ends - self._virtual) if is_running else holder.to_do
            self._delay_seconds += self.now - holder.since - (holder.left - left)
            holder.left = left
            holder.token = 0  # its entry among the running, or the ready, is void
            if is_running:
                self._threads -= 1
            holder.since = self.now
            holder.is_within = True
            self._gil_waiting.append(holder)
            self._release_gil(is_forced=True)
            if self._turns is not None and holder.is_on_core and not holder.token:
                self._turns.leave(holder)

    def _release_gil(self, *, is_forced: bool = False) -> None:
        self._gil_seconds += self.now - self._held_since
        self._switch_timer = 0
        self._holder = None
        if self._gil_waiting:
            worker = self._gil_waiting.popleft()
            if worker.is_within:
                worker.state.gil_wait += self.now - worker.since
            is_handed_over = is_forced or self._turns is None
            if self._half_handoff:
                self._num_wakes += 1
                if is_handed_over:
                    worker.left += 2 * self._half_handoff
            go_on = self._grant_gil if is_handed_over else self._contend
            if self.system.wake_seconds > 0.0:
                if is_handed_over:
                    self._holder = worker
                self.later(self.now + self.system.wake_seconds, go_on, worker)
            else:
                go_on(worker)

    def _end_claim(self, state: StationState) -> None:
        self._exclusive.end_claim(state, self.now)
        for other in (*self._exclusive.claiming, *self._claimants):
            if other.idle and other.queue:
                self._offer(other)

    # --- queues

    def _put(self, state: StationState, unit: int) -> None:
        state.queue.append((unit, self.now))
        if len(state.queue) >= state.capacity and state.full_since < 0.0:
            state.full_since = self.now
        if state.idle:
            self._offer(state)

    def _offer(self, state: StationState) -> None:
        """Give idle workers what is in the queue."""
        while state.idle and state.queue:
            count = self._count(state)
            if count == 0:
                return
            if self._half_handoff and state.waking * max(count, state.station.units_per_wake) >= len(state.queue):
                return
            worker = state.idle.pop()
            state.idle_time += self.now - worker.since
            if self._half_handoff:
                self._wake(worker)
            else:
                self._serve(worker, count)

    def _wake(self, worker: Worker) -> None:
        self._num_wakes += 1
        worker.state.waking += 1
        if self._waker is not None:
            self._waker.debt += self._half_handoff
        worker.ended = self._end_waking
        self._begin(worker, ((CPU, self._half_handoff),))

    def _end_waking(self, worker: Worker) -> None:
        worker.state.waking -= 1
        worker.ended = self._end_service
        self._take_next(worker)

    def _take_next(self, worker: Worker) -> None:
        """Give a worker that has nothing to do its next units, or let it be idle."""
        state = worker.state
        count = self._count(state) if state.queue else 0
        if count:
            self._serve(worker, count)
        else:
            worker.since = self.now
            state.idle.append(worker)

    def _count(self, state: StationState) -> int:
        """Return how many units a worker takes now; 0: it waits for more."""
        station, queue = state.station, state.queue
        if self.system.deadline_seconds is not None and state.holds_jobs:
            self._drop_late(state)
            if not queue:
                return 0
        if station.batching is None:
            return 1 if station.chunk == 1 else min(station.chunk, -(-len(queue) // station.workers))
        count, closed = state.alike(station.batching.max_size)
        draining = self._num_claimed >= self.system.num_jobs
        waiting = Waiting(count, int(queue[0][1] * 1e9), closed, draining)
        decision = station.batching.decide(int(self.now * 1e9), waiting)
        if isinstance(decision, Release):
            return decision.size if not station.claims or self._exclusive.may_claim(state) else 0
        due = decision.until_ns / 1e9 + 1e-8  # the policy counts whole nanoseconds
        if due != state.due:
            state.due = due
            self.later(max(due, self.now), self._offer, state)
        return 0

    def _drop_late(self, state: StationState) -> None:
        """Give up what nobody wants any more, and was to be worked on next."""
        entrance, queue = self._entrance, state.queue
        while entrance is not None and queue and entrance.is_late(queue[0][0], self.now):
            self._finish(self._pop(state), LATE)
            self._make_room(state)

    def _pop(self, state: StationState) -> int:
        unit, came = state.queue.popleft()
        state.wait += self.now - came
        return unit

    def _serve(self, worker: Worker, count: int) -> None:
        state = worker.state
        station = state.station
        units = [self._pop(state) for _ in range(count)]
        state.taken += count
        if station.claims:
            self._exclusive.claim(state, self.now)
        worker.units, worker.index = units, 0
        if station.batch_program is not None:
            state.batches += 1
            self._begin(worker, station.batch_program(count, units[0]))
        elif count > 1:
            self._begin(worker, state.merge(units))
        else:
            self._begin(worker, state.program(units[0]))
        self._make_room(state)

    def _make_room(self, state: StationState) -> None:
        if state.full_since >= 0.0 and len(state.queue) < state.capacity:
            state.full += self.now - state.full_since
            state.full_since = -1.0
        if state.producers and len(state.queue) <= state.capacity // 2:
            self._let_producers(state)

    def _let_producers(self, state: StationState) -> None:
        for _ in range(len(state.producers)):
            if len(state.queue) >= state.capacity:
                return
            worker = state.producers.popleft()
            if worker.master is None:  # who hands on for a worker does not keep it from working
                worker.state.blocked += self.now - worker.since
            self._hand_on(worker)

    # --- handing on

    def _end_service(self, worker: Worker) -> None:
        state = worker.state
        if state.station.claims:
            self._end_claim(state)
        if state.station.retries:
            worker.units = [unit for unit in worker.units if not self._fail_try(state, unit)]
            if not worker.units:
                self._take_next(worker)
                return
        if state.first_child is not None:
            worker.units = self._fan_out(state, worker.units)
        aside = worker.aside
        if aside is None:
            self._hand_on(worker)
        elif not aside.units:
            aside.units, aside.index = worker.units, 0
            self._take_next(worker)
            self._hand_on(aside)
        elif worker.parked is None:
            worker.parked = worker.units
            self._take_next(worker)
        else:
            worker.is_stuck = True
            worker.since = self.now

    def _hand_on(self, worker: Worker) -> None:
        """Put units into the next queue until it is full; then wait for room."""
        self._waker = worker.master or worker
        units = worker.units
        while worker.index < len(units):
            unit = units[worker.index]
            state = worker.state.after(unit)
            if state is None:
                self._finish(unit)
            elif state.joined is not None:
                if state.gathers(unit):
                    self._put(state, state.joined.parent[unit])
            elif state.station.ordered:
                for ready in state.in_order(unit):
                    self._put(state, ready)
            elif len(state.queue) >= state.capacity:
                worker.since = self.now
                state.producers.append(worker)
                self._waker = None
                return
            else:
                self._put(state, unit)
            worker.index += 1
        self._waker = None
        worker.handed_on(worker)

    def _end_handing_aside(self, aside: Worker) -> None:
        """The thread that hands on for a device has done so: go on with what waits beside it."""
        master = aside.master
        aside.units = []
        if master is None or master.parked is None:
            return
        aside.units, aside.index, master.parked = master.parked, 0, None
        if master.is_stuck:
            master.is_stuck = False
            master.state.blocked += self.now - master.since
            master.parked = master.units
            self._take_next(master)
        self.later(self.now, self._hand_on, aside)

    def _fan_out(self, state: StationState, units: list[int]) -> list[int]:
        children: list[int] = []
        for unit in units:
            first, last = state.children(unit)
            children.extend(range(first, last))
            if first == last and state.join is not None:
                self._put(state.join, unit)
        return children

    def _fail_try(self, state: StationState, unit: int) -> bool:
        """Return whether the try of a unit has failed; then it comes back later."""
        if not state.fails(unit):
            return False
        self.later(self.now + state.note_failure(unit), self._come_back, (state, unit))
        return True

    def _come_back(self, where: tuple[StationState, int]) -> None:
        self._put(*where)

    def _finish(self, unit: int, outcome: int = ANSWERED) -> None:
        self._end(unit, outcome)
        self._inside -= 1
        if self._entrance is not None:
            self._entrance.leave(unit, self.now)
        if self._waiting_room:
            self.later(self.now, self._receive, self._waiting_room.popleft())

    def _end(self, job: int, outcome: int) -> None:
        self._done[job] = self.now
        self._outcome[job] = outcome
        self._num_done += 1

    # --- receiving

    def _receive(self, worker: Worker) -> None:
        """Ask the source for as many jobs as may come in."""
        system, receivers = self.system, self.system.receivers
        limit = system.max_in_flight
        room = receivers.jobs_per_call if limit is None else min(receivers.jobs_per_call, limit - self._inside)
        if self._num_claimed >= system.num_jobs:
            return
        if room <= 0:
            self._waiting_room.append(worker)
            return
        entrance = self._entrance
        count = min(room, self._num_there())
        if count == 0:
            worker.since = self.now
            self._waiting_jobs.append(worker)
            return
        if entrance is None:
            worker.claimed = list(range(self._num_claimed, self._num_claimed + count))
        else:
            worker.claimed = [entrance.waiting.popleft() for _ in range(count)]
        self._num_claimed += count
        self._inside += count
        self._call_seconds += receivers.call_seconds
        self.later(self.now + receivers.call_seconds, self._admit, worker)
        if self._reader is not None:
            self._num_ready -= count
            self._read_on()

    def _num_there(self) -> int:
        """Return how many jobs a call may bring now."""
        num_come, reader = self._num_come(), self.system.receivers.reader
        return num_come if reader is None else min(num_come, self._num_ready, reader.depth)

    def _num_come(self) -> int:
        """Return how many jobs have come that no receiver has taken."""
        return self.system.num_jobs - self._num_claimed if self._entrance is None else len(self._entrance.waiting)

    def _read_on(self) -> None:
        """Let the source's own thread make another job ready, if there is one and room for it."""
        reader, thread = self.system.receivers.reader, self._reader
        if reader is None or thread is None or self._is_reading:
            return
        if self._num_ready <= reader.depth and self._num_ready < self._num_come():
            self._is_reading, self._reading_since = True, self.now
            self._begin(thread, reader.program)

    def _end_reading(self, thread: Worker) -> None:
        self._is_reading = False
        self._call_seconds += self.now - self._reading_since
        self._num_ready += 1
        self._read_on()
        self._wake_receivers()

    def _let_in(self, entrance: Entrance) -> None:
        """Let in what comes now, or turn it away, and wake a receiver for what came in."""
        for job in entrance.turn_away(self.now):
            self._received[job] = self.now
            self._num_claimed += 1
            self._end(job, REFUSED)
        if entrance.has_more:
            self.later(entrance.next_arrival, self._let_in, entrance)
        self._read_on()
        self._wake_receivers()

    def _wake_receivers(self) -> None:
        """Let receivers take what is there: one that finds more than it may take has the next one look."""
        while self._waiting_jobs and self._num_there():
            receiver = self._waiting_jobs.popleft()
            self._receiving.idle_time += self.now - receiver.since
            self._receive(receiver)

    def _admit(self, worker: Worker) -> None:
        arrivals = self.system.arrivals
        for unit in worker.claimed:
            self._received[unit] = self.now if arrivals is None else arrivals[unit]
        self._next_claimed(worker)

    def _next_claimed(self, worker: Worker) -> None:
        """Run the receiver's own stages on what it received, some at a time, and hand it on; then receive again."""
        receivers = self.system.receivers
        if not worker.claimed:
            self.later(self.now, self._receive, worker)
            return
        if receivers.batch_program is None and receivers.programs is None:
            worker.units, worker.index, worker.claimed = worker.claimed, 0, []
            if worker.debt:
                self._begin(worker, ())
            else:
                self._hand_on(worker)
            return
        count = receivers.batch if receivers.batch_program is not None else 1
        worker.units, worker.index, worker.claimed = worker.claimed[:count], 0, worker.claimed[count:]
        if receivers.batch_program is not None:
            self._begin(worker, receivers.batch_program(len(worker.units), worker.units[0]))
        elif receivers.programs is not None:
            self._begin(worker, receivers.programs[worker.units[0]])

    # --- the end

    def _wire(self) -> None:
        """Tell every worker what to do when its program has ended, and when its units have been handed on."""
        for state in self._states:
            for worker in state.workers:
                worker.ended = self._end_service
                worker.handed_on = self._take_next
                if worker.aside is not None:
                    worker.aside.handed_on = self._end_handing_aside
        if self._reader is not None:
            self._reader.ended = self._end_reading
        for receiver in self._receiving.workers:
            receiver.ended = self._hand_on
            receiver.handed_on = self._next_claimed

    def _trace(self) -> Trace:
        elapsed = max(self.now, 1e-12)
        for state in self._states:
            state.close(elapsed)
        self._exclusive.close(self.now)
        if self._holder is not None:
            self._gil_seconds += self.now - self._held_since
        num_receivers = len(self._receiving.workers)
        by_name = {state.station.name: state for state in self._states}
        worker_time = {name: max(1, state.station.workers) * elapsed for name, state in by_name.items()}
        return Trace(
            received=self._received,
            done=self._done,
            outcome=self._outcome,
            elapsed=elapsed,
            workers_busy={
                name: max(0.0, 1.0 - (state.idle_time + state.blocked) / worker_time[name])
                for name, state in by_name.items()
            },
            starved={name: state.idle_time / worker_time[name] for name, state in by_name.items()},
            blocked={name: state.blocked / worker_time[name] for name, state in by_name.items()},
            queue_mean={name: state.wait / elapsed for name, state in by_name.items()},
            full={name: state.full / elapsed for name, state in by_name.items()},
            wait={name: state.wait / max(1, state.taken) for name, state in by_name.items()},
            batch_mean={name: state.taken / state.batches for name, state in by_name.items() if state.batches},
            cpu_seconds=self._cpu_seconds,
            delay_seconds=self._delay_seconds,
            gil_seconds=self._gil_seconds,
            gil_wait={name: state.gil_wait / max(1, state.taken) for name, state in by_name.items()},
            gil_wait_seconds=self._receiving.gil_wait + sum(state.gil_wait for state in self._states),
            resource_seconds=tuple(self._exclusive.seconds),
            receivers_busy=self._call_seconds / ((num_receivers if self._reader is None else 1) * elapsed),
            receivers_idle=self._receiving.idle_time / (num_receivers * elapsed),
            cores=self.system.cores,
            num_wakes=self._num_wakes,
            num_events=self._num_events,
        )
