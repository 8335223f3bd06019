"""Whether the numbers of a run can be believed: all checks, and which of them make it UNTRUSTED.

A check that fails means that numbers of the report are wrong or contradict one another, and makes the run untrusted: Little's
law, the utilization law (of workers and of cores), flow balance, forced flow, clock order, the identity of a span's clocks,
spans that disagree with the exact counters, a `run.json` that contradicts itself, samples and thread states that contradict the
counts and clocks, spans lost above 1 %, CPU time that does not add up, and a profiler that surely costs more than a tenth.
TRUSTED takes more than that none failed: the laws must have been checked, see `unchecked`. A warning means that the numbers are
right but say less than one might read into them: the run was not steady, percentiles lack samples, a part of the CPU time has
no name, the folder is not whole, the profiler costs a few per cent. What could not be checked is neither, and says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.diagnose.checks import check, not_measured
from headrace.diagnose.counter_checks import exact_counters
from headrace.diagnose.cpu_account import OUTSIDE, UNATTRIBUTED, WORKERS, why_no_account
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.laws import WINDOW, cores_law, flow_balance, forced_flow, littles_law, utilization_law
from headrace.diagnose.sampler_checks import samples, thread_states
from headrace.diagnose.span_checks import clock_order, lost_spans, run_folder, sample_counts, span_identity
from headrace.diagnose.summary_checks import summary
from headrace.runs.formats.profile import Check, CheckStatus, CpuAccount, Distribution, StageAccount, Window
from headrace.runs.formats.profiling import OverheadEstimate

#: Jobs below which a verdict or a prediction would be chance: the median of 30 is known to about a fifth of the spread.
FEWEST_JOBS = 30
#: Laws of exact counters, which trust needs, and laws of samples, of which it needs one.
_COUNTED, _SAMPLED = ("flow_balance", "forced_flow"), ("littles_law", "utilization_law")
_EXPLAINED = 0.85
_EXPLAINED_TOO_MUCH = 1.05
#: What workers may use outside of stages: cores, a share of what all they used, and seconds for each item handed on. All three
#: are passed only where CPU times of spans are too small: in 60 runs a share above 30 % came with
#: 0.13 ms at most.
_OUTSIDE_CORES, _OUTSIDE_SHARE, _HOP_SECONDS = 0.15, 0.4, 0.3e-3
#: CPU seconds below which shares of them fail or pass by chance.
_LEAST_CPU_SECONDS = 0.2
_OVERHEAD_NOTED = 0.03
_OVERHEAD_TOO_MUCH = 0.10


def all_checks(
    evidence: Evidence,
    window: Window,
    latency: Distribution,
    cpu: CpuAccount | None,
    overhead: OverheadEstimate | None,
    stages: Sequence[StageAccount],
    throughput: float | None,
) -> tuple[Check, ...]:
    """Return every check, in the order in which a report shows them."""
    return (
        littles_law(evidence),
        utilization_law(evidence, window),
        cores_law(throughput, stages, cpu, _outcomes(evidence)),
        flow_balance(evidence),
        forced_flow(evidence),
        explained_cpu(cpu, why_no_account(evidence), stages),
        clock_order(evidence),
        span_identity(evidence.spans),
        steady_state(window),
        sample_counts(latency),
        lost_spans(evidence),
        exact_counters(evidence),
        summary(evidence),
        samples(evidence),
        thread_states(evidence, window),
        run_folder(evidence),
        overhead_check(overhead, evidence.why_no_profile),
    )


def distrust(checks: tuple[Check, ...]) -> tuple[str, ...]:
    """Return why a run is not to be trusted, one sentence for each check that failed; nothing if none did."""
    return tuple(f"{one.name}: {one.says}" for one in checks if one.status == "failed")


def list_unchecked(checks: tuple[Check, ...]) -> tuple[str, ...]:
    """Return which laws were not checked and why, one sentence each; nothing if those that trust needs were.

    It needs the balance of what came and went, by exact counters, one law that holds spans against something else (Little's or
    the utilization law), and all files that the run wrote. A run too short for that may be right, and nothing shows it.
    """
    if any(one.says == WINDOW for one in checks):
        return (WINDOW,)
    missing = {one.name: f"{one.name}: {one.says}" for one in checks if one.status == "not_measured"}
    found = [missing[name] for name in (*_COUNTED, "run_folder") if name in missing]
    if all(name in missing for name in _SAMPLED):
        found += [missing[name] for name in _SAMPLED]
    return tuple(found)


def _outcomes(evidence: Evidence) -> int:
    counters = evidence.info.counters
    done = counters.delivered + counters.rejected + counters.dead_lettered
    return done if evidence.info.summary is not None else int(evidence.jobs.weight.sum())


def explained_cpu(cpu: CpuAccount | None, why_not: str, stages: Sequence[StageAccount]) -> Check:
    """Return how much of the processes' CPU time is explained by what it was used for.

    What workers used outside of stages has a line and no explanation. Too little is a warning, because the rest is shown; more
    than there was is a failure, because then something was counted twice.
    """
    source = "Plumber, MLSys 2022: show what the model does not explain"
    if cpu is None:
        return not_measured("explained_cpu", why_not, source)
    if cpu.total_seconds < _LEAST_CPU_SECONDS:
        says = f"the run used {cpu.total_seconds:.3f} s of CPU time, too little to judge by"
        return not_measured("explained_cpu", says, source)
    share = cpu.explained_share
    outside = sum(line.share for line in cpu.lines if line.name in OUTSIDE.values())
    unattributed = sum(line.share for line in cpu.lines if line.name == UNATTRIBUTED)
    if 1 - unattributed > _EXPLAINED_TOO_MUCH + cpu.uncertain_share:
        says = (
            f"stages and named threads account for {1 - unattributed:.0%} of {cpu.total_seconds:.3g} s CPU time, more than "
            "all: something is counted twice; report this with the folder"
        )
        return check("explained_cpu", "failed", 1 - unattributed, _EXPLAINED_TOO_MUCH, says, source)
    if says := _find_unexplained_workers(cpu, stages):
        return check("explained_cpu", "failed", share, _EXPLAINED, says, source)
    says = (
        f"{share:.0%} of {cpu.total_seconds:.3g} s CPU time is explained by stages, native threads and headrace's own; "
        f"{outside:.0%} went to workers outside stages, {max(0.0, unattributed):.0%} has no name"
    )
    if share < _EXPLAINED:
        if outside > unattributed:
            says += f": the items are small for what handing them on costs; {_ask_for_fewer_hops(stages)}"
        return check("explained_cpu", "warning", share, _EXPLAINED, says, source)
    return check("explained_cpu", "ok", share, _EXPLAINED, says, source)


def _find_unexplained_workers(cpu: CpuAccount, stages: Sequence[StageAccount]) -> str:
    """Return in words how much workers used outside of stages, where handing items on cannot have cost that; empty otherwise.

    Processes get their items as bytes: what packing these costs depends on the items.
    """
    outside = sum(line.seconds for line in cpu.lines if line.name == OUTSIDE[WORKERS])
    inside = sum(line.seconds for line in cpu.lines if line.kind == "stage")
    hops = sum(stage.items for stage in stages if stage.station == stage.name)
    if any(stage.executor == "process" for stage in stages) or outside < _OUTSIDE_CORES * cpu.elapsed_seconds:
        return ""
    if outside < _OUTSIDE_SHARE * (outside + inside) or outside < _HOP_SECONDS * hops:
        return ""
    each = outside / max(1, hops) * 1e3
    return (
        f"workers used {outside:.3g} s of CPU time outside of stages and {inside:.3g} s within, {each:.2g} ms for each item "
        "handed on, which costs a tenth of that: the CPU times of stages are too small; profile again, and report this "
        "with the folder if it stays"
    )


def _ask_for_fewer_hops(stages: Sequence[StageAccount]) -> str:
    """Return what to do where handing on costs much; a stage that waits or is carried by events fuses with no other."""
    fusable = [one.name for before, one in itertools.pairwise(stages) if _has_threads(before) and _has_threads(one)]
    fuse = f"fuse {', '.join(fusable)} with the stage before (executor `inline`), or " if fusable else ""
    return f"{fuse}put more work into one item: several records or images in a job"


def _has_threads(stage: StageAccount) -> bool:
    return stage.kind == "cpu" and stage.executor == "thread" and stage.station == stage.name


def steady_state(window: Window) -> Check:
    """Return whether the part of the run that is reported was steady."""
    source = "MSER; White 1997"
    if window.is_steady is None:
        return not_measured("steady_state", window.says, source)
    if window.is_steady:
        return check("steady_state", "ok", window.warm_up_seconds, None, window.says, source)
    says = f"{window.says}; profile longer, or look at the time charts for what changed"
    return check("steady_state", "warning", window.warm_up_seconds, None, says, source)


def overhead_check(overhead: OverheadEstimate | None, why_not: str) -> Check:
    """Return whether the profiler left what it measured as it was.

    Held to the limit are the clocks, which are within the services; the threads and the process beside cost CPU time only.
    """
    source = "paired blocks A B B A within the run"
    if overhead is None:
        return not_measured("overhead", why_not, source)
    if overhead.clocks_ratio is None:
        return not_measured("overhead", overhead.says, source)
    low, mid, _ = overhead.clocks_ratio
    surely, value = low - 1, mid - 1
    if surely > _OVERHEAD_TOO_MUCH:
        says = f"{overhead.says}: services are longer than without the clocks; make items larger, or fuse stages"
        return check("overhead", "failed", value, _OVERHEAD_TOO_MUCH, says, source)
    status: CheckStatus = "warning" if surely > _OVERHEAD_NOTED else "ok"
    return check("overhead", status, value, _OVERHEAD_NOTED, overhead.says, source)
