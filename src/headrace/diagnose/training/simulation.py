"""Simulates a training: loader workers, their order, and the training thread, on shared cores.

How this works: what is replayed are needs (seconds of a core, seconds blocked), not durations, so that a changed run has its
own waits. The loader is PyTorch's `DataLoader`: `prefetch` batches for each worker are given out when an epoch begins, round
robin, and one more whenever a batch was taken. With `in_order` the training thread takes batch i before batch i + 1; without
it, what came first, and the next batch goes to a worker that has room. Without workers the training thread loads.

Several ranks are several such trainings on the one machine. Each has a process that carries its gradients: a bucket is sent
once all ranks have filled it, while their backward passes go on; the training thread goes on when the last one has come.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.diagnose.training.simulation_exchange import ExchangeModel
from headrace.diagnose.training.simulation_machine import NOTHING, Machine, Need, Process


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderModel:
    """How batches are loaded."""

    workers: int
    """0: by the training thread."""
    prefetch: int = 2
    """Batches for each worker that are given out ahead, >= 1."""
    in_order: bool = True
    persistent: bool = False
    """Workers live on from one epoch to the next."""
    turn: Need = NOTHING
    """What the training thread needs for each worker that an epoch starts and ends."""
    warm_up: Need = NOTHING
    """From its start until a worker can load its first batch."""
    send: Need = NOTHING
    """For a worker to hand a batch over."""
    receive: Need = NOTHING
    """For the training thread to take a batch that is there."""
    first_batches: tuple[Need, ...] = ()
    """What a worker needs besides for the first batch that it loads, the second, and so on."""
    first_steps: tuple[Need, ...] = ()
    """What the training thread needs besides in the first step after workers were started, the second, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """One batch of the loader, and what the training thread does with it before it asks for another."""

    samples: int
    load: tuple[Need, ...]
    compute: tuple[Need, ...]
    backward: tuple[Need, ...] = ()
    """What fills the buckets of an exchange, after `compute`; empty where none is simulated, and it is part of `compute`."""
    exchanges: bool = True
    """Its gradients are exchanged, if there are several ranks; False under `no_sync`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """One update of the parameters."""

    microbatches: tuple[Microbatch, ...]
    """At least one."""
    update: tuple[Need, ...]
    """What is done once, after the last of them."""

    @property
    def samples(self) -> int:
        """Samples in all its batches."""
        return sum(one.samples for one in self.microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModel:
    """A training, as it is simulated."""

    loader: LoaderModel
    epochs: tuple[tuple[StepModel, ...], ...]
    """No epoch is empty."""
    cores: float
    others: float = 0.0
    """Threads of other programs that are always runnable."""
    by_group: bool = False
    pace: float = 1.0
    """Both: see `Machine`."""
    peers: tuple[TrainingModel, ...] = ()
    """The other ranks, which share the machine of this one and have as many steps; their own `cores` and `others` are not
    looked at."""
    exchange: ExchangeModel | None = None
    """None: nothing is exchanged."""

    @property
    def ranks(self) -> tuple[TrainingModel, ...]:
        """All of them, this one first."""
        return (self, *self.peers)

    @property
    def steps(self) -> Iterator[StepModel]:
        """All steps, in order."""
        return (step for epoch in self.epochs for step in epoch)

    def replace(self, **changes: object) -> TrainingModel:
        """Return it with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTraining:
    """What came of it."""

    ends: list[float]
    """Seconds at which each step ended."""
    waits: list[float]
    """Seconds that each step waited for its batches, loading without workers included."""
    samples: list[int]
    """Of each step, on all ranks."""
    seconds: float
    cores_used: float
    """Core-seconds of all processes, as the system would count them."""
    run_delay: float
    """Seconds runnable without a core, one thread of each process counted."""
    worker_seconds: float
    """Seconds in which workers loaded, of all workers."""
    exchange_seconds: float = 0.0
    """Seconds that the first rank waited for an exchange after its own backward passes."""

    @property
    def rate(self) -> float:
        """Samples (steps where none are known) per second, from the end of the first step on."""
        done = sum(self.samples[1:]) or len(self.samples) - 1
        seconds = self.ends[-1] - self.ends[0]
        return done / seconds if seconds > 0 else 0.0

    @property
    def step_seconds(self) -> list[float]:
        """From the end of one step to the end of the next, turns of epochs included."""
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]


def simulate_training(model: TrainingModel) -> SimulatedTraining:
    """Run a training once and return what happened; deterministic.

    Args:
        model: Of two steps at least.
    """
    machine = Machine(model.cores, model.others, by_group=model.by_group, pace=model.pace)
    meeting = _Meeting(machine, model.exchange, len(model.ranks)) if model.exchange and model.peers else None
    ranks = [_Simulation(one, machine, meeting) for one in model.ranks]
    for rank in ranks:
        rank.start()
    machine.run()
    return SimulatedTraining(
        ends=ranks[0].ends,
        waits=ranks[0].waits,
        samples=[
            sum(step.samples for step in steps) for steps in zip(*(one.steps for one in model.ranks), strict=True)
        ],
        seconds=machine.now,
        cores_used=machine.busy,
        run_delay=machine.run_delay,
        worker_seconds=sum(rank.worker_seconds for rank in ranks),
        exchange_seconds=ranks[0].exchange_seconds,
    )


class _Meeting:
    """Where ranks exchange: counts who has filled which bucket, and who has sent it.

    Buckets are numbered over the whole training.
    """

    def __init__(self, machine: Machine, exchange: ExchangeModel, ranks: int) -> None:
        self._machine, self._ranks = machine, ranks
        self.shares = exchange.shares
        self._transfers = [exchange.link.transfer(size, ranks) for size in exchange.buckets]
        self._filled: list[int] = []
        self._sent: list[int] = []
        self._sleeping: list[Process] = []

    def fill(self, number: int) -> None:
        """One more rank has filled a bucket."""
        if number == len(self._filled):
            self._filled.append(0)
            self._sent.append(0)
        self._filled[number] += 1
        if self._filled[number] == self._ranks:
            self._wake()

    def has_come(self, number: int) -> bool:
        """Whether all ranks have sent a bucket."""
        return number < len(self._sent) and self._sent[number] == self._ranks

    def sleep(self, process: Process) -> None:
        """Wake a process, which yields None now, when something has changed."""
        self._sleeping.append(process)

    def carry(self, own: list[Process]) -> Process:
        """What sends the buckets of one rank, one after another; `own` holds this process itself."""
        number = 0
        while True:
            while not (
                number < len(self._filled)
                and self._filled[number] == self._ranks
                and (number == 0 or self.has_come(number - 1))
            ):
                self.sleep(own[0])
                yield None
            yield self._transfers[number % len(self._transfers)]
            self._sent[number] += 1
            if self._sent[number] == self._ranks:
                self._wake()
            number += 1

    def _wake(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        for process in sleeping:
            self._machine.wake(process)


class _Simulation:
    """The state of one rank.

    Attributes:
        ends: As in `SimulatedTraining`, like the others.
        waits: Of each step.
        worker_seconds: Of its workers.
        exchange_seconds: In which it waited for an exchange.
    """

    def __init__(self, model: TrainingModel, machine: Machine, meeting: _Meeting | None) -> None:
        self._model, self._loader = model, model.loader
        self._machine, self._meeting = machine, meeting
        self._num_filled = 0
        self.exchange_seconds = 0.0
        self.ends: list[float] = []
        self.waits: list[float] = []
        self.worker_seconds = 0.0
        self._workers: dict[int, Process] = {}
        self._reset()

    def start(self) -> None:
        """Begin to train when the machine runs."""
        self._trainer = self._train()
        self._machine.start(self._trainer)
        if self._meeting is not None:
            carrier: list[Process] = []
            carrier.append(self._meeting.carry(carrier))
            self._machine.start(carrier[0])

    def _reset(self) -> None:
        """Forget the batches of the epoch before."""
        workers = self._loader.workers
        self._queues: list[deque[int]] = [deque() for _ in range(workers)]
        self._outstanding = [0] * workers
        self._sleeping: set[int] = set()
        self._loads: list[tuple[Need, ...]] = []
        self._given = self._turn_of = 0
        self._arrived: dict[int, int] = {}
        self._is_waiting = False

    # The training thread.

    def _train(self) -> Process:
        for number, epoch in enumerate(self._model.epochs):
            starts = bool(self._loader.workers) and (number == 0 or not self._loader.persistent)
            yield from self._begin_epoch(epoch, starts=starts)
            position = 0
            besides = iter(self._loader.first_steps if starts else ())
            for step in epoch:
                waited = 0.0
                for microbatch in step.microbatches:
                    began = self._machine.now
                    yield from self._take(position, microbatch)
                    waited += self._machine.now - began
                    position += 1
                    yield from microbatch.compute
                    yield from self._backward(microbatch)
                yield next(besides, NOTHING)
                yield from step.update
                self.ends.append(self._machine.now)
                self.waits.append(waited)

    def _backward(self, microbatch: Microbatch) -> Process:
        """Fill the buckets, and wait for their exchange."""
        meeting = self._meeting
        if meeting is None or not microbatch.exchanges:
            yield from microbatch.backward
            return
        for share in meeting.shares:
            for need in microbatch.backward:
                yield need.scaled(share)
            meeting.fill(self._num_filled)
            self._num_filled += 1
        began = self._machine.now
        while not meeting.has_come(self._num_filled - 1):
            meeting.sleep(self._trainer)
            yield None
        self.exchange_seconds += self._machine.now - began

    def _begin_epoch(self, epoch: tuple[StepModel, ...], *, starts: bool) -> Process:
        loader = self._loader
        if not loader.workers:
            return
        if starts:
            self._workers.clear()
            self._reset()
            yield loader.turn.scaled(loader.workers)
        self._loads = [one.load for step in epoch for one in step.microbatches]
        self._given, self._arrived = 0, {}
        for worker in range(loader.workers if starts else 0):
            self._workers[worker] = self._work(worker, self._queues)
            self._machine.start(self._workers[worker])
        for _ in range(loader.prefetch * loader.workers):
            self._give()

    def _take(self, position: int, microbatch: Microbatch) -> Process:
        """Wait for a batch and take it; without workers, load it."""
        if not self._loader.workers:
            yield from microbatch.load
            return
        while not (position in self._arrived if self._loader.in_order else self._arrived):
            self._is_waiting = True
            yield None
        taken = position if self._loader.in_order else next(iter(self._arrived))
        self._outstanding[self._arrived.pop(taken)] -= 1
        yield self._loader.receive
        self._give()

    def _give(self) -> None:
        """Give the next batch of the epoch to the worker whose turn it is."""
        if self._given == len(self._loads):
            return
        loader = self._loader
        for _ in range(loader.workers):
            worker = self._turn_of
            self._turn_of = (worker + 1) % loader.workers
            if loader.in_order or self._outstanding[worker] < loader.prefetch:
                break
        self._queues[worker].append(self._given)
        self._outstanding[worker] += 1
        self._given += 1
        if worker in self._sleeping:
            self._sleeping.remove(worker)
            self._machine.wake(self._workers[worker])

    # A worker.

    def _work(self, worker: int, queues: list[deque[int]]) -> Process:
        yield self._loader.warm_up
        besides = iter(self._loader.first_batches)
        while queues is self._queues:  # else the epoch is over, and others took its place
            if not queues[worker]:
                self._sleeping.add(worker)
                yield None
                continue
            number, began = queues[worker].popleft(), self._machine.now
            yield from self._loads[number]
            yield next(besides, NOTHING)
            yield self._loader.send
            self.worker_seconds += self._machine.now - began
            self._arrived[number] = worker
            if self._is_waiting:
                self._is_waiting = False
                self._machine.wake(self._trainer)
