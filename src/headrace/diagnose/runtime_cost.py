"""What the runtime itself used: CPU time of the run's processes that went into no stage, and how often its threads slept.

How this works: the lines of the CPU account that are headrace's own are added up (handing on, receiving, making and writing
spans, settling), without what only somebody who watches needs (the profiler's thread, the progress view) and without warming
up, which is the model's. Switches are the kernel's count for the whole process, so they hold those within stages as well.
"""

from __future__ import annotations

from headrace.base.units import format_duration
from headrace.diagnose.cpu_account import CLOCKS, WARM_UP
from headrace.diagnose.evidence import Evidence
from headrace.runs.formats.profile import CpuAccount, RuntimeCost

#: Lines of headrace's own threads that are not for the items, or are the items' own work.
_NOT_FOR_ITEMS = {WARM_UP, CLOCKS, "profiling", "progress view", "decoding frames", "other Python threads"}
#: Parts below this share of the whole are not named.
_NAMED = 0.05


def runtime_cost(evidence: Evidence, cpu: CpuAccount | None) -> RuntimeCost | None:
    """Return what the runtime used for an item; None where the CPU time was not measured, or no job came."""
    jobs, profile = evidence.info.counters.received, evidence.profiling
    if cpu is None or profile is None or not jobs or cpu.elapsed_seconds <= 0:
        return None
    parts = {
        line.name: line.seconds / jobs
        for line in cpu.lines
        if line.kind == "headrace" and line.name not in _NOT_FOR_ITEMS
    }
    per_item = sum(parts.values())
    seconds = per_item * jobs
    asleep, lost = profile.voluntary_switches, profile.involuntary_switches
    share, core_share = seconds / cpu.total_seconds, seconds / cpu.elapsed_seconds / cpu.num_cores
    switches = None if asleep is None else asleep / jobs
    price = evidence.info.handoff.cpu_seconds if evidence.info.handoff else None
    return RuntimeCost(
        seconds=seconds,
        seconds_per_item=per_item,
        share=share,
        core_share=core_share,
        parts=dict(sorted(parts.items(), key=lambda part: -part[1])),
        voluntary_switches_per_item=switches,
        involuntary_switches_per_item=None if lost is None else lost / jobs,
        handoff_cpu_seconds=price,
        says=(
            f"{_says(per_item, parts)}, {share:.0%} of the CPU time and {core_share:.0%} of the cores"
            f"{_sleeps(switches, price)}"
        ),
    )


def _says(per_item: float, parts: dict[str, float]) -> str:
    largest = sorted((part for part in parts.items() if part[1] >= _NAMED * per_item), key=lambda part: -part[1])
    named = f" ({', '.join(f'{name} {format_duration(seconds)}' for name, seconds in largest)})" if largest else ""
    return f"{format_duration(per_item)} of CPU time per item{named}"


def _sleeps(switches: float | None, price: float | None) -> str:
    if switches is None:
        return ""
    here = f", and waking one costs {format_duration(price)} of CPU time here" if price else ""
    return f"; threads go to sleep {switches:.3g} times per item{here}"
