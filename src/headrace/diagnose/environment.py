"""How quiet the machine was while it measured: A, B or C.

The grade is the worst of what could be told. Limits of A and B, and why:

- cores used by others, of those that may be used: 5 % and 20 %. 5 % is what the checks allow between two figures that should
  agree; a fifth of the machine moves throughput by as much.
- time stolen by the hypervisor: 1 % and 5 %. Like cores used by others, but it also stops threads in the middle of an item.
- periods throttled by a CPU quota: 1 % and 5 %. Each costs the rest of a period, up to 100 ms: it is the tail that suffers.
- run-queue delay, as a share of the time in which threads had work for a core, while the run itself left a fifth of the cores
  free: 5 % and 20 %. Threads waited for a core that the run was not using on average. That may be a burst of the run's own
  threads, so that it counts for no more than what others and the hypervisor took, held against what the run used.
- clocks that change: by how much the cores' mean frequency differs between the halves of the run: 2 % and 10 %. CPU time per
  item goes with it, and so does everything that computes.

On A two runs can be compared as they are; on B in interleaved blocks (`headrace compare`); on C the comparison is doubtful.
Where nothing could be told there is no grade.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.base.page_cache import state_of
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.gauges import Gauge
from headrace.runs.formats.profile import Environment, Grade, Window

#: {sign: (A up to, B up to)}.
LIMITS = {
    "others": (0.05, 0.20),
    "steal": (0.01, 0.05),
    "throttled": (0.01, 0.05),
    "run delay": (0.05, 0.20),
    "clocks": (0.02, 0.10),
}
#: Share of the cores below which the run itself does not fill the machine.
_OWN_ROOM = 0.8
#: Readings of the cores' frequency in each half of a run.
_FEWEST_FREQUENCIES = 5


@dataclass(frozen=True, slots=True)
class _Sign:
    name: str
    value: float
    says: str

    @property
    def grade(self) -> Grade:
        quiet, noisy = LIMITS[self.name]
        return "A" if self.value <= quiet else "B" if self.value <= noisy else "C"


def environment(evidence: Evidence, window: Window) -> Environment:
    """Return how quiet the machine was in the window."""

    def mean(name: str, scope: str = "machine") -> float | None:
        gauge: Gauge | None = evidence.gauges.get(scope, name)
        return gauge.between(window.from_seconds, window.to_seconds).mean() if gauge else None

    hardware = evidence.info.hardware
    cores = min(float(hardware.num_cores), hardware.cpu_quota or float("inf"))
    others, own = mean("other_cpu_cores"), mean("cpu_cores", "processes")
    steal, throttled = mean("cpu_steal_ratio"), mean("throttled_ratio")
    delay = run_delay_share(evidence, window)
    signs = []
    if others is not None:
        signs.append(_Sign("others", others / cores, f"others used {others:.2f} of {cores:g} cores"))
    if steal is not None:
        signs.append(_Sign("steal", steal, f"the hypervisor took {steal:.1%} of the cores' time"))
    if throttled is not None:
        signs.append(_Sign("throttled", throttled, f"the CPU quota stopped the run in {throttled:.1%} of its periods"))
    if delay is not None and own is not None and own < _OWN_ROOM * cores:
        says = f"threads with work waited for a core {delay:.0%} of that time, though the run used {own:.2f} of {cores:g} cores"
        signs.append(_Sign("run delay", min(delay, _compute_taken_share(others, steal, own, hardware.num_cores)), says))
    change = _compute_clock_change(evidence, window)
    if change is not None:
        signs.append(
            _Sign("clocks", abs(change), f"the cores' clocks {'rose' if change > 0 else 'fell'} by {abs(change):.0%}")
        )
    grade = max((sign.grade for sign in signs), default=None)
    # Of a noisy machine only what makes it so; the figures of the rest stand beside.
    telling = [sign for sign in signs if sign.grade != "A"] or signs
    reasons = [sign.says for sign in sorted(telling, key=lambda sign: sign.grade, reverse=True)]
    return Environment(
        grade=grade,
        reasons=tuple(reasons or [_no_grade(evidence)]),
        run_delay_share=delay,
        other_cpu_cores=others,
        cpu_pressure=mean("cpu_pressure_ratio"),
        steal_share=steal,
        throttled_share=throttled,
        page_cache=state_of(evidence.profiling.page_cache_share if evidence.profiling else None),
    )


def _compute_taken_share(others: float | None, steal: float | None, own: float, num_cores: int) -> float:
    """Return what others took of the cores' time that they and the run used; 1 where it is not known."""
    if others is None:
        return 1.0
    taken = others + (steal or 0.0) * num_cores
    return taken / (taken + own) if taken + own > 0 else 0.0


def _compute_clock_change(evidence: Evidence, window: Window) -> float | None:
    """Return by which share the cores' mean frequency rose from the first half of a window to the second; None if unknown."""
    gauge = evidence.gauges.get("machine", "cpu_frequency_hertz")
    if gauge is None:
        return None
    middle = (window.from_seconds + window.to_seconds) / 2
    halves = gauge.between(window.from_seconds, middle), gauge.between(middle, window.to_seconds)
    if min(len(half.values) for half in halves) < _FEWEST_FREQUENCIES:
        return None
    first, second = (half.mean() or 0.0 for half in halves)
    return second / first - 1 if first > 0 else None


def _no_grade(evidence: Evidence) -> str:
    if evidence.profiling is None:
        return evidence.why_no_profile
    return "the run was too short to sample the machine; profile a longer run"


def run_delay_share(evidence: Evidence, window: Window) -> float | None:
    """Return run-queue delay over CPU time plus run-queue delay, of all stages; None where it was not measured."""
    spans = evidence.spans
    started = spans.started / 1e9
    rows = np.flatnonzero(
        np.isfinite(spans.cpu)
        & np.isfinite(spans.run_delay)
        & (started >= window.from_seconds)
        & (started <= window.to_seconds)
    )
    shares = spans.weight[rows] / spans.batch_size[rows]
    cpu, delay = float(spans.cpu[rows] @ shares), float(spans.run_delay[rows] @ shares)
    return delay / (cpu + delay) if cpu + delay > 0 else None
