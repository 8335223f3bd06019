"""Computing: a stage's own work, more threads than cores, other programs, a quota, and cores that grow slower."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration, format_size
from headrace.diagnose.replay.demands import LARGE_RESULT, largest_result
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import MUCH_GIL_WAIT, MUCH_NATIVE, TOO_MANY_NATIVE, Facts, StageView
from headrace.diagnose.verdict.network import describe_waiting, is_idle, is_waiting, more_workers
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import SIBLINGS, EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: A stage computes rather than waits when this much of its service is CPU, or waiting for a core or the GIL to use it.
_COMPUTES = 0.5
#: Cores at work from which on they are the limit.
_ALL_CORES = 0.85
#: Of the cores, used by others: grade C of the environment, and the loss it can cause at most.
_OTHERS = 0.20
#: Of the cores, used by the run itself: it fills the machine alone.
_OWN = 0.80
_WAITS_FOR_CORE = 0.25
_THROTTLED = 0.05
#: As candidates are simulated.
_FIFTH_MORE = 1.2
#: Threads over cores from which on they only take cores from one another.
_TOO_MANY_THREADS = 2.0
#: Share of all CPU that a stage must use for its trend to count.
_COUNTS = 0.05
_RISE = 1.10
#: Speed-up of a stage's own code that is predicted as an example.
_EXAMPLE = 1.5
#: The stages' rises may differ by this ratio and still have one cause.
_TOGETHER = 1.5
#: Of what more cores give: a stage that gives less alone is not the one to blame.
_ONE_STAGE = 0.4
#: Share of all CPU from which on writing results down is named: without it a tenth more is done.
_SOME_WRITING = 0.09
#: Share of all CPU from which on writing results down is named before the cores or the GIL, which it takes from all else.
_MUCH_WRITING = 0.2

#: Of a stage's own work, whatever that is.
_RULE = "its stage gains most, and nothing special explains its time"
_CLASSES = {
    "download": VerdictClass.DOWNLOAD_LATENCY,
    "decode": VerdictClass.DECODE,
    "preprocess": VerdictClass.PREPROCESS,
    "compute": VerdictClass.PREPROCESS,
    "postprocess": VerdictClass.POSTPROCESS,
    "deliver": VerdictClass.SERIALIZATION,
    "callback": VerdictClass.SERIALIZATION,
}
_HOW = {
    "download": "fetch plain HTTP from a trusted network, or let a proxy end TLS: it is the client's CPU that limits",
    "decode": "decode no more pixels than the model needs (`decode.scale = auto`), or store images nearer to its input size",
    "preprocess": "use a cheaper filter or fewer pixels, or a vectorised library",
    "compute": "make its code cheaper: headrace profile --python shows its lines",
    "postprocess": "vectorise it (`hr.nms` suppresses overlapping boxes in C++), or let the model do it, in its graph",
    "deliver": "send less, or in a binary format: JSON writes each number as text",
    "callback": "send less, or in a binary format: JSON writes each number as text",
}


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages that compute and for the cores."""
    for view in facts.stages:
        if view.work != "model" and not is_waiting(view):
            yield _idle(view) if is_idle(view) else _own_work(facts, view)
        yield from _saturation(facts, view)
    yield from _all_stages(facts)
    yield from _writing(facts)
    yield from _neighbour(facts)
    yield from _quota(facts)
    yield from _oversubscription(facts) or _propose_native(facts) or _propose_turns(facts)
    yield from _thermal(facts)


def is_computing(view: StageView) -> bool:
    """Return whether a stage's service is mostly computing, or waiting to compute."""
    return view.computing_share is not None and view.computing_share >= _COMPUTES


def cores_line(facts: Facts) -> EvidenceLine:
    """Return how busy the cores were."""
    busy = facts.core_utilization
    if busy is None or facts.own_cores is None:
        return line("cores", "cores at work: not measured", None, _ALL_CORES)
    others = "" if facts.other_cores is None else f", others {facts.other_cores:.2f}"
    says = f"the run used {facts.own_cores:.2f} of {facts.cores:g} cores{others}"
    return line("cores", says, busy, _ALL_CORES, busy >= _ALL_CORES, "utilization law")


def most_cpu(facts: Facts) -> StageView:
    """Return the stage that uses most CPU."""
    return max(facts.stages, key=lambda view: view.cpu_seconds)


def _idle(view: StageView) -> Proposal:
    return Proposal(
        verdict=_CLASSES[view.work],
        stage=view.name,
        says=(
            f"{view.name} is of kind cpu, but waits rather than computes: it takes {format_duration(view.service)} per item, "
            f"{format_duration(view.account.cpu_demand or 0.0)} of it CPU, with {pluralize(view.workers, 'worker')}"
        ),
        rule=_RULE,
        resources=view.resources,
        share=0.0,
        evidence=tuple(describe_waiting(view)),
        advice=(
            more_workers(view),
            more_workers(view, 4),
            Advice(
                says='or declare kind="io" where the stage is yours: then it has more workers by default, and shares none with '
                "stages that compute"
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _own_work(facts: Facts, view: StageView) -> Proposal:
    demand = view.account.cpu_demand or 0.0
    is_large = (view.account.bytes_in or 0.0) + (view.account.bytes_out or 0.0) >= LARGE_RESULT
    lines = [
        at_least("computing", f"share of {view.name}'s service that is computing", view.computing_share, _COMPUTES),
        cores_line(facts),
    ]
    if view.work in ("deliver", "callback"):
        size = largest_result(view.account)
        lines.append(line("bytes", f"a result has {format_size(size)}", size, LARGE_RESULT, is_large))
    how = _HOW[view.work]
    advice = _decode_at_scale(facts, view)
    num_free = len(advice)
    if not advice:  # what it would come to nobody knows beforehand: one example, called so
        example = Change(speedups={view.name: _EXAMPLE})
        advice = [Advice(says=f"{how} (predicted as if {view.name} ran {_EXAMPLE:g} times as fast)", change=example)]
    busy = facts.core_utilization
    if (busy is None or busy < _ALL_CORES) and view.workers < facts.cores:
        settings = (f"{view.account.station}.workers={max(view.workers + 1, int(facts.cores))}",)
        advice.insert(num_free, Advice(says=f"give {view.name} a worker for each core", settings=settings))
    elif busy is not None:
        advice.append(Advice(says="more cores", change=Change(cores=2 * facts.cores)))
    return Proposal(
        verdict=_CLASSES[view.work],
        stage=view.name,
        cause="cpu" if view.work == "download" else "",
        says=(
            f"{view.name} takes {format_duration(view.service)} per item, {format_duration(demand)} of it CPU, with "
            f"{pluralize(view.workers, 'worker')}"
        ),
        rule=_RULE,
        resources=view.resources,
        share=0.0,
        evidence=tuple(lines),
        advice=tuple(advice),
        removal=Change(speedups={view.name: 4.0}),
    )


def _decode_at_scale(facts: Facts, *views: StageView) -> list[Advice]:
    """Return the advice that costs nothing where images are decoded in full; empty where they are not."""
    if facts.plan.decode.scale != "full" or not any(view.work == "decode" for view in views):
        return []
    return [Advice(says=_HOW["decode"], settings=("decode.scale=auto",))]


def _saturation(facts: Facts, view: StageView) -> Iterator[Proposal]:
    own, delay = facts.own_cores, view.delay_share
    if own is None or delay is None or view.work == "model" or view.account.executor == "process":
        return
    if view.workers <= facts.cores or delay < _WAITS_FOR_CORE or own < _OWN * facts.cores:
        return
    workers = max(1, int(facts.cores))
    yield Proposal(
        verdict=VerdictClass.CPU_SATURATION,
        stage=view.name,
        says=(
            f"{view.workers} workers of {view.name} compute on {facts.cores:g} cores: an item waits {delay:.0%} of its "
            f"{format_duration(view.service)} for a core, and the run itself uses {own:.2f} of them"
        ),
        rule=(
            f"more workers than cores, at least {_WAITS_FOR_CORE:.0%} of the service waiting for a core, "
            f"and the run itself uses at least {_OWN:.0%} of the cores"
        ),
        resources=view.resources,
        share=delay,
        evidence=(
            at_least("run_delay", f"share of {view.name}'s service waiting for a core", delay, _WAITS_FOR_CORE),
            cores_line(facts),
            line("workers", f"{view.workers} workers, {facts.cores:g} cores", view.workers, facts.cores, True),
        ),
        advice=(
            *_decode_at_scale(facts, view),
            Advice(says="more cores", change=Change(cores=2 * facts.cores)),
            Advice(says=f"make {view.name} cheaper", change=Change(speedups={view.name: 1.5})),
            Advice(
                says="fewer workers wait less, and do as much", settings=(f"{view.account.station}.workers={workers}",)
            ),
        ),
        removal=Change(cores=2 * facts.cores),
    )


def _all_stages(facts: Facts) -> Iterator[Proposal]:
    gain = facts.gain("cores")
    alone = max((one.gain for one in facts.candidates if one.kind in ("stage", "device")), default=1.0)
    busy = facts.core_utilization
    if gain is None or gain - 1 <= 0 or alone - 1 >= _ONE_STAGE * (gain - 1) or busy is None or busy < _ALL_CORES:
        return
    top = sorted(facts.stages, key=lambda view: -view.cpu_seconds)[:3]
    listed = ", ".join(f"{view.name} {format_duration(view.account.cpu_demand or 0.0)}" for view in top)
    yield Proposal(
        verdict=VerdictClass.CPU_SATURATION,
        stage=None,
        says=f"all cores are at work, and no stage alone is to blame; most CPU per item: {listed}",
        rule=f"cores gain most, and no stage alone gives {_ONE_STAGE:.0%} of that",
        resources=("cores",),
        share=0.0,
        evidence=(cores_line(facts),),
        advice=(
            *_decode_at_scale(facts, *facts.stages),
            Advice(says="more cores", change=Change(cores=2 * facts.cores)),
            Advice(says="or make several stages cheaper; one alone gives little"),
        ),
        removal=Change(cores=2 * facts.cores),
    )


def _writing(facts: Facts) -> Iterator[Proposal]:
    """Propose that results are written down in another way, where the cores or the GIL are taken and a part of that is it.

    Each stage's own work may be needed. That numbers become text is a choice, which costs more than most of them.
    """
    limit = _find_shared_limit(facts)
    if limit is None:
        return
    has_cores_left = limit.name == "gil"
    is_taken = "stages wait for Python's global interpreter lock" if has_cores_left else "all cores are at work"
    total = sum(one.cpu_seconds for one in facts.stages)
    for view in facts.stages:
        size = largest_result(view.account)
        share = view.cpu_seconds / total if total else 0.0
        if not view.delivers_much or share < _SOME_WRITING:
            continue
        is_much = share >= _MUCH_WRITING
        yield Proposal(
            verdict=VerdictClass.SERIALIZATION,
            stage=view.name,
            cause=limit.name,
            says=(
                f"{is_taken}, and {share:.0%} of what the stages compute is writing results of {format_size(size)} down: "
                f"{format_duration(view.account.cpu_demand or 0.0)} of CPU per item in {view.name}"
            ),
            rule=(
                f"all cores are at work, or a stage waits at least {MUCH_GIL_WAIT:.0%} of its service for the GIL, and at "
                f"least {_SOME_WRITING:.0%} of the CPU time of all stages is that of the delivery, whose results have at "
                f"least {format_size(LARGE_RESULT)}; from {_MUCH_WRITING:.0%} on it is named before what it takes them from"
            ),
            resources=(limit.name, *view.resources) if is_much else view.resources,
            share=share,
            evidence=(
                at_least("writing", "share of the CPU time of all stages", share, _SOME_WRITING),
                line("bytes", f"a result has {format_size(size)}", size, LARGE_RESULT, True),
                limit,
            ),
            advice=(
                Advice(
                    says=f"{_HOW[view.work]} (predicted as if {view.name} ran four times as fast)",
                    change=Change(speedups={view.name: 4.0}),
                ),
                *(() if has_cores_left else (Advice(says="more cores", change=Change(cores=2 * facts.cores)),)),
            ),
            removal=Change(speedups={view.name: 4.0}),
            is_seen=True,
        )


def _find_shared_limit(facts: Facts) -> EvidenceLine | None:
    """Return what all stages share and wait for, the candidate's name first: cores, or the GIL; None if there is enough."""
    busy = facts.core_utilization
    if busy is not None and busy >= _ALL_CORES:
        return cores_line(facts)
    waits = {view.name: view.waits("gil") or 0.0 for view in facts.stages if view.account.executor != "process"}
    name = max(waits, key=lambda one: waits[one], default="")
    if facts.cores <= 1 or waits.get(name, 0.0) < MUCH_GIL_WAIT:
        return None
    return at_least("gil", f"share of {name}'s service waiting for the GIL", waits[name], MUCH_GIL_WAIT)


_FOR_NEIGHBOURS = (
    Advice(
        says="stop the other programs, or give this run cores of its own (taskset, a cgroup, another machine)",
        change=Change(quiet=True),
    ),
    Advice(says="measure again on a quiet machine before changing anything in the pipeline"),
)
_FOR_SIBLINGS = (
    Advice(
        says="no more processes here: together they have all cores; what makes an item cheaper makes all of them faster"
    ),
    Advice(says="another machine, or more cores"),
)


def _neighbour(facts: Facts) -> Iterator[Proposal]:
    others, own = facts.other_cores, facts.own_cores
    delay = facts.document.environment.run_delay_share
    if others is None or own is None or others < _OTHERS * facts.cores:
        return
    busy = facts.core_utilization or 0.0
    are_siblings = (facts.document.environment.sibling_cpu_cores or 0.0) >= others / 2
    is_kept = busy >= _ALL_CORES and (delay is None or delay >= WORTH_NAMING)
    # Where they have a fifth of what the run has, it gains by their going at least what a fifth more cores give.
    is_much = is_kept and others >= (_FIFTH_MORE - 1) * own
    who, me = ("other processes of this run", "this one") if are_siblings else ("other programs", "this run")
    yield Proposal(
        verdict=VerdictClass.NEIGHBOUR,
        stage=None,
        cause=SIBLINGS if are_siblings else "",
        says=(
            f"{who} used {others:.2f} of {facts.cores:g} cores while {me} used {own:.2f}"
            + (
                f", and its threads waited for a core {delay:.0%} of the time they had work"
                if delay is not None
                else ""
            )
        ),
        rule=f"others use at least {_OTHERS:.0%} of the cores, all cores are at work, and threads wait for one",
        # What a quiet machine would give; of a run that does not wait for cores, nothing.
        resources=("neighbours", *(["cores"] if is_much or facts.gain("neighbours") is None else [])),
        share=others / facts.cores if is_kept else 0.0,
        evidence=(
            at_least("other_cores", "share of the cores that others used", others / facts.cores, _OTHERS),
            at_least("run_delay", "share of its computing time that the run waited for a core", delay, WORTH_NAMING),
            cores_line(facts),
        ),
        advice=_FOR_SIBLINGS if are_siblings else _FOR_NEIGHBOURS,
        removal=Change(quiet=True),
        is_seen=True,
    )


def _quota(facts: Facts) -> Iterator[Proposal]:
    throttled, quota = facts.document.environment.throttled_share, facts.info.hardware.cpu_quota
    if throttled is None or throttled < _THROTTLED:
        return
    allowed = f"{quota:g} cores" if quota else "its CPU quota"
    stopped, most = facts.machine.get("machine.throttled_cpu_cores"), _gain_without_stops(facts)
    gain = None if most is None else min(most, 1 + (_FIFTH_MORE - 1) * throttled)
    simulated = facts.gain("cores")
    is_seen = gain is not None and gain > (simulated or 1.0)
    raise_limit = "raise the CPU limit of the container"
    yield Proposal(
        verdict=VerdictClass.QUOTA,
        stage=None,
        says=f"the control group allows {allowed} and stopped the run in {throttled:.0%} of its periods until the next began",
        rule=f"throttled in at least {_THROTTLED:.0%} of the scheduler's periods",
        resources=("cores",),
        # Stopped for part of each of those periods; however small that part, threads beyond the quota gain nothing.
        share=max(throttled, WORTH_NAMING),
        measured_gain=gain,
        evidence=(
            at_least(
                "throttled", "share of the scheduler's periods in which the run was stopped", throttled, _THROTTLED
            ),
            line(
                "stopped",
                "cores that had work and were stopped: " + ("not measured" if stopped is None else f"{stopped:.2f}"),
                stopped,
                None,
                None if most is None else most - 1 >= WORTH_NAMING,
            ),
            cores_line(facts),
        ),
        advice=(
            # The simulation did not see the stops; what they come to at most is known.
            Advice(says=f"{raise_limit}: at most x{most:.2f} of the throughput, by the time that it was stopped")
            if is_seen and most is not None
            else Advice(says=raise_limit, change=Change(cores=2 * facts.cores)),
            Advice(says="or run fewer threads than the quota has cores: the same work without stops of up to 100 ms"),
        ),
        removal=Change(cores=2 * facts.cores),
        is_seen=True,
    )


def _gain_without_stops(facts: Facts) -> float | None:
    """Return the throughput ratio at most of a run that its quota never stops; None where that was not measured.

    What work got of the cores, over that and what it was kept from; no more than there are cores.
    """
    stopped, own = facts.machine.get("machine.throttled_cpu_cores"), facts.own_cores
    if stopped is None or not own:
        return None
    return max(1.0, min(own + stopped, float(facts.info.hardware.num_cores)) / own)


def _oversubscription(facts: Facts) -> list[Proposal]:
    view = facts.model
    threads = _model_threads(facts)
    if view is None or threads is None or facts.document.is_emulated:
        return []
    total, utilization = threads * view.workers, view.account.utilization
    if threads < 2 or total < _TOO_MANY_THREADS * facts.cores or utilization is None:
        return []
    at_work = utilization * total
    if at_work < facts.cores:
        return []  # a model that is hardly called takes cores from nobody
    runnable, switches = (
        facts.machine.get("machine.runnable"),
        facts.machine.get("processes.involuntary_switches_per_second"),
    )
    most = _TOO_MANY_THREADS * facts.cores
    fewer = max(1, int(facts.cores // view.workers))
    proposal = Proposal(
        verdict=VerdictClass.OVERSUBSCRIPTION,
        stage=view.name,
        says=(
            f"{view.workers} workers of {view.name} with {threads} threads each are {total} threads for {facts.cores:g} cores: "
            "they take cores from one another in the middle of their work"
        ),
        rule=(
            f"threads inside the model times workers at least {_TOO_MANY_THREADS:g} times the cores, and on average as many "
            "of them in calls as there are cores"
        ),
        # Threads of the model take cores from every stage.
        resources=("cores", *view.resources),
        share=1 - facts.cores / total,
        evidence=(
            line("threads", f"{total} threads for {facts.cores:g} cores", total, most, True),
            line("in_calls", f"{at_work:.1f} of them are in calls on average", at_work, facts.cores, True),
            line(
                "runnable",
                "threads that want a core: " + ("not measured" if runnable is None else f"{runnable:.1f}"),
                runnable,
                facts.cores,
                runnable is not None and runnable > facts.cores,
            ),
            line(
                "involuntary_switches",
                "threads that lost their core: "
                + ("not measured" if switches is None else f"{switches:,.0f} a second"),
                switches,
            ),
            cores_line(facts),
        ),
        advice=(
            Advice(
                says="one thread for each core in all",
                settings=(f"model.threads={fewer}",),
                command=_compare(facts, fewer),
            ),
        ),
        removal=Change(speedups={view.name: 2.0}),
        is_seen=True,
    )
    return [proposal]


def _propose_native(facts: Facts) -> list[Proposal]:
    """Return the proposal that threads of a library, such as BLAS, take cores from one another; at most one."""
    wanting = facts.native_runnable
    if not facts.do_native_threads_fight or wanting is None:
        return []
    # Who calls the library waits at its locks; where nobody does, its threads take cores from all, and most from this one.
    callers = [one for one in facts.stages if (one.waits("lock") or 0.0) >= WORTH_NAMING] or facts.stages
    view = max(callers, key=lambda one: _kept_waiting(one) * (one.account.busy_seconds or 0.0))
    share, most = _kept_waiting(view), TOO_MANY_NATIVE * facts.cores
    if share < WORTH_NAMING:
        return []
    proposal = Proposal(
        verdict=VerdictClass.OVERSUBSCRIPTION,
        stage=view.name,
        cause="native",
        says=(
            f"beside the workers, {wanting:.1f} threads of libraries want one of {facts.cores:g} cores, and {view.name} waits "
            f"{share:.0%} of its {format_duration(view.service)} for a core or for them: each call of such a library (NumPy, "
            "OpenCV, an engine) starts work on threads of its own, which take cores from one another"
        ),
        rule=(
            f"threads of libraries that want a core are at least {TOO_MANY_NATIVE:g} times the cores, they use at least "
            f"{WORTH_NAMING:.0%} of the CPU time, and a stage waits at least that share of its service for locks and cores"
        ),
        resources=("cores", *view.resources),
        share=share,
        evidence=(
            line("native_runnable", f"{wanting:.1f} threads of libraries want a core", wanting, most, True),
            at_least(
                "kept_waiting", f"share of {view.name}'s service waiting for locks and cores", share, WORTH_NAMING
            ),
            cores_line(facts),
        ),
        advice=(_call_by_one_thread(facts),),
        removal=Change(speedups={view.name: 2.0}),
        is_seen=True,
    )
    return [proposal]


def _call_by_one_thread(facts: Facts) -> Advice:
    command = "env OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 " + profile_again(facts.info)
    return Advice(says="one thread for each call, since the workers fill the cores already", command=command)


def _propose_turns(facts: Facts) -> list[Proposal]:
    """Return the proposal that calls of a library wait for one another, each of which takes all of its threads; at most one."""
    callers = [one for one in facts.stages if one.workers > 1 and one.work != "model" and facts.waits_in_library(one)]
    if not callers:
        return []
    view = max(callers, key=lambda one: (one.waits("lock") or 0.0) * (one.account.busy_seconds or 0.0))
    share = view.waits("lock") or 0.0
    proposal = Proposal(
        verdict=VerdictClass.OVERSUBSCRIPTION,
        stage=view.name,
        cause="native",
        says=(
            f"{view.name} waits {share:.0%} of its {format_duration(view.service)} for a lock while threads that a library "
            f"started use {facts.native_share:.0%} of the CPU time: a call of such a library (BLAS) takes all of its threads, "
            f"and the calls of {view.workers} workers take turns"
        ),
        rule=(
            f"a stage with several workers waits for a lock at least {MUCH_NATIVE:.0%} of its service, and threads of "
            "libraries use at least that share of the CPU time"
        ),
        resources=("cores", *view.resources),
        share=share,
        evidence=(
            at_least("lock_wait", f"share of {view.name}'s service waiting for a lock", share, MUCH_NATIVE),
            at_least("native", "share of the CPU time of threads of libraries", facts.native_share, MUCH_NATIVE),
            cores_line(facts),
        ),
        advice=(
            _call_by_one_thread(facts),
            Advice(says=f"if {view.name} takes a lock of its own around such a call, hold it for less of the work"),
        ),
        removal=Change(speedups={view.name: 1 / max(0.05, 1 - share)}),
    )
    return [proposal]


def _kept_waiting(view: StageView) -> float:
    """Return the share of a stage's service that it waits for locks and for a core."""
    return (view.waits("lock") or 0.0) + (view.delay_share or 0.0)


def _compare(facts: Facts, threads: int) -> str:
    # What fewer threads cost alone was not measured, so the simulator refuses it: it has to be tried.
    return profile_again(facts.info, "--set", f"model.threads={threads}")


def _model_threads(facts: Facts) -> int | None:
    if facts.plan.model.threads is not None:
        return facts.plan.model.threads
    found = [variant.get("threads") for variant in facts.info.variants]
    return max((int(count) for count in found if isinstance(count, int)), default=None)


def _thermal(facts: Facts) -> Iterator[Proposal]:
    spans = facts.evidence.spans
    total = sum(view.cpu_seconds for view in facts.stages)
    rises = []
    for view in facts.stages:
        used = view.cpu_seconds
        if total <= 0 or used < _COUNTS * total:
            continue
        own = spans.of(view.name)
        found = trends.growth(spans.started[own], spans.cpu[own] / spans.batch_size[own])
        sizes = trends.growth(spans.started[own], spans.bytes_in[own].astype(float))
        if found is None or not found.is_rise or found.ratio < _RISE:
            return
        if sizes is not None and sizes.is_rise and sizes.ratio >= _RISE:
            return  # larger inputs explain it
        rises.append((view, found, used))
    if len(rises) < 2:
        return
    ratios = [found.ratio for _, found, _ in rises]
    share = sum(found.excess_share * used for _, found, used in rises) / sum(used for _, _, used in rises)
    if max(ratios) / min(ratios) > _TOGETHER or share < WORTH_NAMING:
        return
    listed = ", ".join(f"{view.name} x{found.ratio:.2f}" for view, found, _ in rises)
    frequency = _frequency(facts)
    # Slower cores lengthen what computes; a stage that waits is as fast as what it waits for, however its CPU time grows.
    names = [name for view, _, _ in rises if is_computing(view) for name in view.resources]
    yield Proposal(
        verdict=VerdictClass.THERMAL,
        stage=None,
        says=f"the same work took more and more CPU time in every stage that computes ({listed}): the cores became slower",
        rule=(
            f"CPU per item of at least two stages, and of every one that uses {_COUNTS:.0%} of the CPU, rises by at least "
            f"{_RISE - 1:.0%}, all alike, while their inputs do not grow"
        ),
        resources=("cores", *names),
        share=share,
        evidence=(
            line("cpu_rise", f"CPU per item, end over beginning: {listed}", min(ratios), _RISE, True),
            line(
                "frequency",
                "clock of the cores, end over beginning: "
                + ("not measured" if frequency is None else f"x{frequency:.2f}"),
                frequency,
                0.95,
                frequency is not None and frequency < 0.95,
            ),
        ),
        advice=(
            Advice(
                says="look at cooling, power limits and burst credits of the machine (turbostat, cloud metrics)",
                change=Change(speedups={view.name: found.mean / found.early for view, found, _ in rises}),
            ),
        ),
        removal=Change(cores=2 * facts.cores),
    )


def _frequency(facts: Facts) -> float | None:
    gauge = facts.evidence.gauges.get("machine", "cpu_frequency_hertz")
    if gauge is None or len(gauge.values) < 10:
        return None
    fifth = len(gauge.values) // 5
    early = float(gauge.values[:fifth].mean())
    return float(gauge.values[-fifth:].mean()) / early if early > 0 else None
