"""What a device did in the steps of a trace: computed, exchanged, copied, or nothing, and what the host did meanwhile.

How this works: work on the device belongs to the step in which the host launched it (`correlation`), and a step lasts on the
device from its first work to the first work of the next one; the device may be a whole step behind the host. The last step of a
trace has no end there and is left out, unless it is the only one.

In a step each moment is one of these, the first that applies: computing, communication, transfer, nothing. Where nothing runs,
the work that ends the pause decides: from its launch on it was `queued`; before that the device was idle, for the host had not
launched it. If a call that waited for the device ended within the pause or just before it, the pause is that call's: without it
the host would have been ahead. Otherwise it is that of the phases in which the host was.

References:
    facebookresearch/HolisticTraceAnalysis, breakdown_analysis.py: host wait, kernel wait and other, by the launch of the kernel
    that ends the pause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.base.formatting import pluralize
from headrace.runs.formats.training_trace import DeviceTime
from headrace.runs.training_phases import Phase
from headrace.train.trace.columns import Array, Columns, Sort
from headrace.train.trace.cutting import Cut, CutStretch
from headrace.train.trace.intervals import Intervals, gaps, join, subtract, union, within

COLLECTIVE = r"(?i)(nccl|rccl|msccl|oneccl)"
_TRANSFER = r"(?i)memcpy (htod|dtoh|h2d|d2h)|copyhosttodevice|copydevicetohost"
#: Calls in which the host waits until the device has done what was asked before.
WAITING = r"(cuda|hip)(Stream|Device|Event)Synchronize|(cuda|hip)Memcpy(_v\d+)?$|cu(Stream|Ctx|Event)Synchronize"
#: A call that waited ends a little after the work it waited for, ns.
_SOON = 50_000
#: Phases in which the host launches the model's work.
_MODEL = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.BEFORE_UPDATE, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange on the device."""

    step: int
    start: int
    end: int
    exposed: int
    """ns of it in which nothing was computed."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What the devices of one trace did."""

    times: tuple[DeviceTime, ...]
    collectives: list[Collective]
    idle_after: dict[int, int]
    """{position of a call that waited: ns that the device then had nothing to do, in the steps that are counted}."""
    steps: int
    """That are counted."""


def describe_devices(columns: Columns, cut: Cut) -> DeviceUse:
    """Return what each device did; nothing where the trace has no work of a device, or no step."""
    steps = cut.steps
    if not steps or not columns.is_on_device.any():
        return DeviceUse((), [], {}, 0)
    work = np.flatnonzero(columns.is_on_device)
    devices = np.array([device for device, _ in columns.threads])[columns.thread[work]]
    host = _Host(columns, cut)
    found = [_Device(columns, work[devices == device], device, steps, host) for device in np.unique(devices).tolist()]
    used = [one for one in found if one.edges is not None]
    after: dict[int, int] = {}
    for one in used:
        for at, nanoseconds in one.idle_after.items():
            after[at] = after.get(at, 0) + nanoseconds
    return DeviceUse(
        times=tuple(one.describe() for one in used),
        collectives=[each for one in used for each in one.collectives()],
        idle_after=after,
        steps=max((one.num_steps for one in used), default=0),
    )


class _Host:
    """What the host did: phases, calls that wait, and launches."""

    def __init__(self, columns: Columns, cut: Cut) -> None:
        names = columns.named(WAITING)
        is_runtime = columns.sort == Sort.RUNTIME
        self.waits = np.flatnonzero(is_runtime & names[columns.name])
        self.waits = self.waits[np.argsort(columns.end[self.waits], kind="stable")]
        launches = np.flatnonzero(is_runtime & (columns.link >= 0))
        order = np.argsort(columns.link[launches], kind="stable")
        self._links, self._launches = columns.link[launches][order], launches[order]
        self.phases: dict[Phase, Intervals] = {}
        marks = [
            (phase, start, end)
            for one in cut.stretches
            for (phase, _, start), (_, _, end) in zip(one.marks, one.marks[1:], strict=False)
        ]
        for phase in {phase for phase, _, _ in marks}:
            own = np.array([(start, end) for each, start, end in marks if each is phase], np.int64)
            self.phases[phase] = union(own[:, 0], own[:, 1])

    def launch_of(self, links: Array) -> Array:
        """Return the position of the call that launched work; -1: it is not in the trace."""
        if not len(self._links):
            return np.full(len(links), -1, np.int64)
        at = np.minimum(np.searchsorted(self._links, links), len(self._links) - 1)
        return np.where((self._links[at] == links) & (links >= 0), self._launches[at], -1)


class _Device:
    """One device in one trace."""

    def __init__(self, columns: Columns, work: Array, name: str, steps: list[CutStretch], host: _Host) -> None:
        self._columns, self._name, self._host, self._steps = columns, name, host, steps
        self._work = work
        self._launch = host.launch_of(columns.link[work])
        launched = np.where(self._launch >= 0, columns.start[self._launch], columns.start[work])
        begins = np.array([one.start for one in steps])
        #: Of each work: position of its step; -1: before the first.
        self._step = np.searchsorted(begins, launched, "right") - 1
        self.edges = self._find_edges()
        self.idle_after: dict[int, int] = {}
        if self.edges is not None:
            self._use()

    @property
    def num_steps(self) -> int:
        """Steps that are counted."""
        return 0 if self.edges is None else len(self.edges) - 1

    def _find_edges(self) -> Array | None:
        """Return when each step began on the device, and when the last one that counts ended; None: nothing of a step ran."""
        columns, first = self._columns, []
        for number in range(len(self._steps)):
            own = self._work[self._step == number]
            if len(own):
                first.append(int(columns.start[own].min()))
        if len(first) == 1:
            own = self._work[self._step >= 0]
            first.append(max(int(columns.end[own].max()), self._steps[-1].end))
        edges = np.unique(np.array(first, np.int64))
        return edges if len(edges) > 1 else None

    def _use(self) -> None:
        """Work out what each moment was."""
        columns, work, edges = self._columns, self._work, self.edges
        names, sort = columns.name[work], columns.sort[work]
        is_exchange = columns.named(COLLECTIVE)[names] & (sort == Sort.KERNEL)
        is_transfer = columns.named(_TRANSFER)[names] & (sort == Sort.COPY)

        def cover(mask: Array) -> Intervals:
            return union(columns.start[work[mask]], columns.end[work[mask]])

        self._exchange, self._transfer = cover(is_exchange), cover(is_transfer)
        self._compute = cover(~is_exchange & ~is_transfer)
        self._busy = join(self._compute, self._exchange, self._transfer)
        self._is_kernel = (sort == Sort.KERNEL) & ~is_exchange
        self._is_exchange = is_exchange
        assert edges is not None
        self._pauses(gaps(self._busy, int(edges[0]), int(edges[-1])))

    def _pauses(self, pauses: Intervals) -> None:
        """Split the times in which nothing ran: queued, behind a call that waited, or a phase of the host's."""
        columns, host = self._columns, self._host
        starts = columns.start[self._work]
        order = np.argsort(starts, kind="stable")
        ending = order[np.minimum(np.searchsorted(starts[order], pauses.end), len(order) - 1)]
        launch = self._launch[ending]
        # Without a launch in the trace nobody knows whether the host was late: it counts as late.
        launched = np.where(launch >= 0, columns.end[launch], pauses.end)
        until = np.clip(launched, pauses.start, pauses.end)
        self._queued = int((pauses.end - until).sum())
        late = until > pauses.start
        start, until = pauses.start[late], until[late]
        wait = self._wait_behind(start, until)
        for at in np.unique(wait[wait >= 0]).tolist():
            self.idle_after[at] = int((until - start)[wait == at].sum())
        rest = Intervals(start[wait < 0], until[wait < 0])
        self._idle = {phase: _overlap(rest, cover) for phase, cover in host.phases.items()}
        self._idle[Phase.OUTSIDE] = self._idle.get(Phase.OUTSIDE, 0) + max(rest.total - sum(self._idle.values()), 0)

    def _wait_behind(self, start: Array, end: Array) -> Array:
        """Return for each pause the call that waited for the work before it; -1: none did."""
        columns, waits = self._columns, self._host.waits
        if not len(waits):
            return np.full(len(start), -1, np.int64)
        at = np.searchsorted(columns.end[waits], start, "left")
        at = np.minimum(at, len(waits) - 1)
        found = waits[at]
        is_behind = (columns.end[found] >= start) & (columns.end[found] < np.minimum(end, start + _SOON))
        is_behind &= columns.start[found] < start
        return np.where(is_behind, found, -1)

    def collectives(self) -> list[Collective]:
        """Return the exchanges of the steps, in order of time."""
        found = self._work[self._is_exchange & (self._step >= 0)]
        step = self._step[self._is_exchange & (self._step >= 0)]
        rows = zip(step.tolist(), self._columns.start[found].tolist(), self._columns.end[found].tolist(), strict=True)
        found_all = []
        for number, start, end in rows:
            hidden = int(within(self._compute, np.array([start, end], np.int64))[0])
            found_all.append(Collective(self._steps[number].number, start, end, end - start - hidden))
        return [one for one in found_all if one.end > one.start]

    def describe(self) -> DeviceTime:
        """Return means of the steps that are counted."""
        edges, columns = self.edges, self._columns
        assert edges is not None
        count = len(edges) - 1

        def mean(cover: Intervals) -> float:
            return float(within(cover, edges).sum()) / count / 1e9

        streams = {columns.threads[code] for code in np.unique(columns.thread[self._work])}
        inside = (columns.start[self._work] >= edges[0]) & (columns.start[self._work] < edges[-1])
        kernels = self._work[self._is_kernel & inside]
        lengths = (columns.end - columns.start)[kernels]
        between = self._launch_interval(inside)
        return DeviceTime(
            device=f"GPU {self._name}, {pluralize(len(streams), 'stream')}",
            steps=count,
            step_seconds=float(edges[-1] - edges[0]) / count / 1e9,
            compute_seconds=mean(self._compute),
            communication_seconds=mean(self._exchange),
            exposed_communication_seconds=mean(subtract(self._exchange, self._compute)),
            transfer_seconds=mean(self._transfer),
            exposed_transfer_seconds=mean(subtract(self._transfer, join(self._compute, self._exchange))),
            queued_seconds=self._queued / count / 1e9,
            idle_seconds={str(phase): value / count / 1e9 for phase, value in self._idle.items() if value},
            idle_after_sync_seconds=sum(self.idle_after.values()) / count / 1e9,
            kernels=len(kernels) / count,
            kernel_seconds=float(lengths.mean()) / 1e9 if len(kernels) else 0.0,
            launch_seconds=between / 1e9,
            short_share=float((lengths < between).mean()) if len(kernels) else 0.0,
        )

    def _launch_interval(self, inside: Array) -> float:
        """Return ns of the phases of the model and the optimizer for each launch of a kernel in them."""
        columns = self._columns
        launch = self._launch[self._is_kernel & inside]
        launched = np.sort(columns.start[launch[launch >= 0]])
        if not len(launched):
            return 0.0
        own = [cover for phase, cover in self._host.phases.items() if phase in _MODEL]
        if not own:
            return 0.0
        cover = join(*own)
        span = int(within(cover, np.array([launched[0], launched[-1] + 1])).sum())
        return span / len(launched)


def _overlap(one: Intervals, other: Intervals) -> int:
    return one.total - subtract(one, other).total
