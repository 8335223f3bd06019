"""Where the CPU time of the run's processes went: stages, the rest of their workers, headrace's own threads, native pools.

How this works: a stage's line is its mean CPU per item, from spans, times its exact number of passages. Where a stage does
next to nothing that mean is mostly reading the clocks, which only recorded passages do: it is taken off, and has a line of its
own. Workers' threads and worker processes have clocks of their own, which also count what is not in a span: handing on,
waiting, bookkeeping; that is a line by itself, and no explanation. What has no line is the last one, `unattributed`.

References:
    M. Kuchnik et al., "Plumber", MLSys 2022: measured CPU time that a model of the pipeline does not explain is to be shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.diagnose.accounting import cpu_demand
from headrace.diagnose.clock_cost import MOST_SECONDS, clock_seconds
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.runs.formats.profile import CpuAccount, CpuLine

#: What reading the clocks adds to a passage at most; `benchmarks.overhead` measures it.
_CLOCKS_SECONDS = 2e-6
_ERRORS = 3.0
#: CPU seconds below which they are not shared out: the first reading comes up to a millisecond or two after the first job.
_LEAST_CPU_SECONDS = 0.02
WORKERS = "workers"
PROCESSES = "worker processes"
#: Role of threads: line for what they used beside the stages.
OUTSIDE = {WORKERS: "workers, outside stages", PROCESSES: "worker processes, outside stages"}
#: Roles of threads that take jobs in, and hand results on for a device.
RECEIVING, FINISHING = "receiving", "finishing batches"
#: Lines that each job adds to: taking it, handing it on, settling it.
HANDING_ON = {*OUTSIDE.values(), RECEIVING, FINISHING}
WARM_UP = "warming up models"
CLOCKS = "reading clocks"
NATIVE = "native threads"
UNATTRIBUTED = "unattributed"


def cpu_account(evidence: Evidence) -> CpuAccount | None:
    """Return the account; None where the processes' CPU time was not measured, or is too little to share out."""
    profile = evidence.profiling
    if profile is None or (profile.process_cpu_seconds or 0.0) < _LEAST_CPU_SECONDS:
        return None
    total = profile.process_cpu_seconds or 0.0
    clocks = _find_clocks(evidence, profile.thread_cpu_seconds)
    stages = {stage.name: _stage_seconds(evidence, stage, clocks[stage.name]) for stage in evidence.stages}
    lines = [_line(name, "stage", seconds, total) for name, seconds in stages.items() if seconds is not None]
    reading = {stage.name: clocks[stage.name] * _num_metered(evidence, stage) for stage in evidence.stages}
    measured = {name: None if seconds is None else seconds + reading[name] for name, seconds in stages.items()}
    own = _outside_stages(evidence, measured, profile.thread_cpu_seconds)
    own[CLOCKS] = sum(reading.values())
    own.update((role, value) for role, value in profile.thread_cpu_seconds.items() if role not in OUTSIDE)
    lines += [_line(name, "headrace", seconds, total) for name, seconds in own.items() if seconds > 0]
    if profile.native_cpu_seconds:
        lines.append(_line(NATIVE, "native", profile.native_cpu_seconds, total))
    named = sum(line.seconds for line in lines)
    outside = sum(line.seconds for line in lines if line.name in OUTSIDE.values())
    rest = 0.0 if math.isclose(named, total) else total - named
    lines.append(_line(UNATTRIBUTED, "unattributed", rest, total))
    hardware = evidence.info.hardware
    num_cores = min(float(hardware.num_cores), hardware.cpu_quota or float("inf"))
    uncertain = sum(_uncertain_seconds(evidence, stage) for stage in evidence.stages)
    # What the first jobs used before the first reading of the clocks is in stages and not in the total.
    uncertain += num_cores * max(0.0, evidence.elapsed_seconds - (profile.elapsed_seconds or math.inf))
    return CpuAccount(
        total_seconds=total,
        elapsed_seconds=profile.elapsed_seconds or evidence.elapsed_seconds,
        num_cores=num_cores,
        lines=tuple(lines),
        explained_share=(named - outside) / total,
        uncertain_share=uncertain / total,
        unread_seconds=sum(clocks[stage.name] * stage.items - reading[stage.name] for stage in evidence.stages),
    )


def why_no_account(evidence: Evidence) -> str:
    """Return why there is no account."""
    profile = evidence.profiling
    if profile is None:
        return evidence.why_no_profile
    if profile.process_cpu_seconds is None:
        return profile.not_measured.get("cpu", "the profiler wrote none")
    return f"the run used {profile.process_cpu_seconds:.3f} s of CPU time, too little to share out"


def _line(name: str, kind: str, seconds: float, total: float) -> CpuLine:
    return CpuLine(name=name, kind=kind, seconds=seconds, share=seconds / total)  # type: ignore[arg-type]


def _find_clocks(evidence: Evidence, roles: Mapping[str, float]) -> dict[str, float]:
    """Return {stage: CPU seconds that the clocks added to a passage in which they were read}.

    Where passages without them are too few to compare with, stages can still come to more than the clocks of their threads
    say: that is what readings added which only some of the passages had, the same for all.
    """
    clocks = {stage.name: clock_seconds(evidence, stage.name) for stage in evidence.stages}
    sampled = [stage for stage in evidence.stages if _num_metered(evidence, stage) < stage.items]
    passages = sum(stage.items for stage in sampled)
    measured = {stage.name: _stage_seconds(evidence, stage, clocks[stage.name]) for stage in evidence.stages}
    excess = -_outside_stages(evidence, measured, roles).get(OUTSIDE[WORKERS], 0.0)
    if excess > 0 and passages:
        for stage in sampled:
            clocks[stage.name] = min(MOST_SECONDS, clocks[stage.name] + excess / passages)
    return clocks


def _stage_seconds(evidence: Evidence, stage: StageFacts, clocks: float) -> float | None:
    own = evidence.stage_rows(stage.name)
    demand = cpu_demand(evidence.spans, np.arange(own.start, own.stop))
    return None if demand is None else max(0.0, demand - clocks) * stage.items


def _num_metered(evidence: Evidence, stage: StageFacts) -> int:
    return int(np.isfinite(evidence.spans.cpu[evidence.stage_rows(stage.name)]).sum())


def _uncertain_seconds(evidence: Evidence, stage: StageFacts) -> float:
    """Return by how much a stage's line may be too high because some of its passages were not measured.

    Those that were had clocks read within them, which cost time of their own, and are a sample.
    """
    own, spans = evidence.stage_rows(stage.name), evidence.spans
    cpu = spans.cpu[own] / spans.batch_size[own] / 1e9
    metered, weight = np.isfinite(cpu), spans.weight[own]
    unmetered = stage.items - int(metered.sum())
    if unmetered <= 0 or not metered.any():
        return 0.0
    cpu, weight = cpu[metered], weight[metered]
    error = float(cpu.std() * math.sqrt((weight**2).sum()) / weight.sum())
    return unmetered * (_CLOCKS_SECONDS + _ERRORS * error)


def _outside_stages(
    evidence: Evidence, stages: Mapping[str, float | None], roles: Mapping[str, float]
) -> dict[str, float]:
    """Return what workers used beside their stages, in place of all that they used."""
    profile = evidence.profiling
    executors = {stage.name: stage.executor for stage in evidence.stages}
    in_processes, in_threads = 0.0, 0.0
    for stage in evidence.stages:
        if executors.get(stage.station, stage.executor) == "process":
            in_processes += stages[stage.name] or 0.0
        else:
            in_threads += stages[stage.name] or 0.0
    warm_up = (profile.warm_up_cpu_seconds if profile else None) or 0.0
    found: dict[str, float] = {}
    if WORKERS in roles:
        found[WARM_UP] = min(warm_up, roles[WORKERS])
        found[OUTSIDE[WORKERS]] = roles[WORKERS] - in_threads - found[WARM_UP]
    if PROCESSES in roles:
        found[OUTSIDE[PROCESSES]] = roles[PROCESSES] - in_processes
    return found
