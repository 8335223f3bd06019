"""The model's device: how its batches are filled, what launching costs, and whether computing or memory limits it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.plan import model_key
from headrace.base.units import format_duration
from headrace.diagnose.replay.costs import BatchCost
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: Mean batch over largest batch at which batches count as not filled.
_FILL = 0.6
#: Share of the batches.
_FEW, _MOST = 0.10, 0.50
_BUSY = 0.7
#: Jobs in flight over their bound from which on it is the bound that keeps more away: it is reached only now and then.
_AT_LIMIT = 0.7
#: Queue wait over the longest wait for company: a batch's items wait half of it on average.
_OF_MAX_WAIT = 0.4
#: Share of the latency that waiting for company must take to be named.
_OF_LATENCY = 0.2
#: Share of a call that does not depend on the batch.
_FIXED = 0.5
#: Time per item over the least there is, from which on larger batches gain little more.
_NEARLY_BEST = 1.1
#: A call at warm-up and in the run may differ by so many times and still be of one kind.
_SAME_COST = 3.0
#: Share of the model's time in layers that memory limits.
_MEMORY = 0.5
#: Throughput of two calls side by side over one, alone, below which they share one memory.
_SCALES = 1.4
_KEPT_FED = 0.9
#: The device's own clock over the call's time, below which the worker waits for something else than its computing.
_OWN_CLOCK = 0.7


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for each stage that runs a model."""
    for view in facts.stages:
        if view.work != "model":
            continue
        yield _own_work(facts, view)
        yield from _underfill(facts, view)
        yield from _delay(facts, view)
        yield from _launch(facts, view)
        yield from _sync(facts, view)


def per_item(cost: BatchCost, size: float) -> float:
    """Return seconds per item of a batch of this size; beyond what was measured, those of the largest."""
    size = min(size, float(cost.largest))
    return float(np.interp(size, cost.sizes, cost.seconds)) / size


def sweet_spot(cost: BatchCost) -> int:
    """Return the smallest measured batch size within a tenth of the least time per item."""
    each = cost.seconds / cost.sizes
    return int(cost.sizes[int(np.argmax(each <= _NEARLY_BEST * each.min()))])


def mean_batch(view: StageView) -> float:
    """Return items per call."""
    return view.account.batches.mean_size if view.account.batches else 1.0


def _reason(view: StageView, name: str) -> float:
    batches = view.account.batches
    total = sum(batches.release_reasons.values()) if batches else 0
    return batches.release_reasons.get(name, 0) / total if batches and total else 0.0


def _largest(view: StageView) -> int:
    return view.plan.batch or 1


def busy_line(view: StageView) -> EvidenceLine:
    """Return how busy the device was."""
    return at_least("utilization", f"{view.name} at work", view.account.utilization, _KEPT_FED, "utilization law")


def _own_work(facts: Facts, view: StageView) -> Proposal:
    memory = _memory_lines(facts, view)
    is_memory = any(one.supports for one in memory)
    verdict = VerdictClass.DEVICE_MEMBW if is_memory else VerdictClass.DEVICE_COMPUTE
    each = view.service / mean_batch(view)
    emulated = " (emulated)" if facts.document.is_emulated else ""
    if is_memory:
        advice = [
            Advice(says="move less: fuse element-wise layers, a smaller data type, a layout that the engine likes"),
            Advice(says="more threads or workers gain little: they share one memory"),
        ]
        why = "and memory, not arithmetic, limits its layers"
    else:
        advice = [
            *_one_thread_each(facts, view),
            Advice(
                says="a faster engine, a smaller variant or lower precision", change=Change(speedups={view.name: 1.5})
            ),
            *_second_device(facts, view),
        ]
        why = "and is kept at it"
    return Proposal(
        verdict=verdict,
        stage=view.name,
        says=f"the model{emulated} takes {format_duration(each)} per item at batches of {mean_batch(view):.3g}, {why}",
        rule="the model's stage gains most and nothing special explains its time",
        resources=view.resources,
        share=0.0,
        evidence=(busy_line(view), *memory),
        advice=tuple(advice),
        removal=Change(speedups={view.name: 4.0}),
    )


def _one_thread_each(facts: Facts, view: StageView) -> list[Advice]:
    """Return the layout that costs nothing: the same cores as workers of one thread each, which never wait for one another."""
    spread, workers = facts.replay.spreads.get(view.name), int(facts.cores)
    if spread is None or spread.threads < 2 or view.workers >= workers:
        return []
    if spread.is_measured and spread.busy >= (1 - WORTH_NAMING) * spread.threads:
        return []  # its threads have no time to spare
    key = model_key(next(one.task for one in facts.info.stages if one.name == view.name), view.name)
    table = f"models.{key}" if key in facts.plan.models else "model"
    settings = (f"{view.account.station}.workers={workers}", f"{table}.threads=1")
    now = f"{pluralize(view.workers, 'worker')} of {pluralize(spread.threads, 'thread')}"
    layout = f"the same cores as {workers} workers of 1 thread each instead of {now}, which costs nothing"
    if spread.is_measured:
        return [Advice(says=f"{layout}: a call keeps {spread.busy:.2g} of its threads busy", settings=settings)]
    command = profile_again(facts.info, *(part for one in settings for part in ("--set", one)))
    unknown = "try it, for how busy a call keeps its threads was not measured"
    return [Advice(says=f"{layout}: {unknown}", settings=settings, command=command)]


def _larger_batches(facts: Facts, view: StageView) -> list[Advice]:
    cost, largest = facts.replay.costs.get(view.name), _largest(view)
    if cost is None or _reason(view, "full") < _MOST:
        return []
    best = sweet_spot(cost)
    if best <= largest or per_item(cost, best) > (1 - WORTH_NAMING) * per_item(cost, largest):
        return []
    return [Advice(says=f"batches of up to {best} instead of {largest}", settings=(f"{view.name}.batch={best}",))]


def _second_device(facts: Facts, view: StageView) -> list[Advice]:
    if not facts.document.is_emulated and not facts.info.hardware.accelerators:
        return []
    # A worker of its own has to keep it at work.
    workers = max(2, view.workers)
    change = Change(
        devices=2, settings=(f"{view.account.station}.workers={workers}",) if workers > view.workers else ()
    )
    return [Advice(says="a second device", change=change)]


def _memory_lines(facts: Facts, view: StageView) -> list[EvidenceLine]:
    layers, isolation = facts.document.layers, facts.document.isolation
    found = []
    if layers is not None and layers.layers:
        share = sum(layer.share for layer in layers.layers if layer.bound == "memory")
        text = "share of the model's time in layers that memory limits, by the roofline"
        found.append(at_least("roofline", text, share, _MEMORY, "Williams, Waterman and Patterson, 2009"))
    else:
        found.append(
            line("roofline", "roofline of the layers: not measured (headrace profile --layers)", None, _MEMORY)
        )
    scaling = None
    alone = next((one for one in isolation.stages if one.name == view.name), None) if isolation else None
    if alone is not None:
        by_workers = {point.workers: point.throughput for point in alone.curve}
        if by_workers.get(1) and 2 in by_workers:
            scaling = by_workers[2] / by_workers[1]
    text = "two calls side by side over one, alone: "
    text += (
        "not measured (headrace profile --isolate)" if scaling is None else f"x{scaling:.2f} (below {_SCALES:g} memory)"
    )
    # Alone it does not tell memory from cores that share their units: it counts only beside the roofline.
    is_shared = scaling is not None and scaling < _SCALES
    found.append(line("scaling", text, scaling, _SCALES, (is_shared and bool(found[0].supports)) or None))
    return found


def _underfill(facts: Facts, view: StageView) -> Iterator[Proposal]:
    batches, largest = view.account.batches, _largest(view)
    if batches is None or largest < 2:
        return
    fill = batches.mean_size / largest
    full = _reason(view, "full")
    waiting = _reason(view, "max_wait")
    limit, in_flight = facts.plan.source.max_in_flight, facts.machine.get("run.in_flight")
    at_limit = _is_at_limit(facts)
    taken = _compute_taken_share(view)
    if fill > _FILL or full > _FEW or taken is None or taken < _BUSY:
        return
    share = _underfill_share(facts, view, largest, taken)
    if share is None or share < WORTH_NAMING:
        return
    raised = max(2 * largest, 2 * (limit or 1))
    advice = (
        Advice(
            says=f"hold more jobs at once, so that a batch can fill: {raised} instead of {limit}",
            settings=(f"source.max_in_flight={raised}",),
        )
        if at_limit
        else Advice(
            says="more workers in the stages before, so that a batch can fill while the device is busy",
            settings=tuple(
                f"{one.account.station}.workers={2 * one.workers}"
                for one in facts.stages[: view.index]
                if one.account.station == one.name and one.account.kind == "io"
            ),
        ),
        Advice(says=f"do not wait for company that cannot come: batch {max(1, round(batches.mean_size))}, no wait",
               settings=(f"{view.name}.batch={max(1, round(batches.mean_size))}", f"{view.name}.max_wait_seconds=0")),
    )  # fmt: skip
    yield Proposal(
        verdict=VerdictClass.BATCH_UNDERFILL,
        stage=view.name,
        says=(
            f"batches hold {batches.mean_size:.1f} of {largest} items and hardly one is full"
            + (f": {in_flight:.0f} jobs are in flight and {limit} may be" if at_limit else "")
        ),
        rule=(
            f"mean batch at most {_FILL:.0%} of the largest, at most {_FEW:.0%} of them full, the device at work or waiting "
            f"for company at least {_BUSY:.0%} of the time, and full batches would be at least {WORTH_NAMING:.0%} cheaper"
        ),
        resources=("in_flight", f"batch:{view.name}", *view.resources),
        share=share,
        evidence=(
            line("fill", f"mean batch {fill:.0%} of the largest (up to {_FILL:.0%})", fill, _FILL, fill <= _FILL),
            line("full", f"{full:.0%} of the batches were full (up to {_FEW:.0%})", full, _FEW, full <= _FEW),
            line("max_wait", f"{waiting:.0%} of the batches left because the wait was over", waiting, None, None),
            at_least("taken", f"{view.name} at work or waiting for company", taken, _BUSY),
            line(
                "in_flight",
                "jobs in flight: "
                + ("not measured" if in_flight is None else f"{in_flight:.1f} of {limit or 'any number'}"),
                in_flight,
                limit,
                at_limit,
            ),
            at_least(
                "saving", "time per item that full batches would save", share, WORTH_NAMING, "cost curve of warm-up"
            ),
        ),
        advice=advice,
        removal=Change(settings=(f"source.max_in_flight={raised}",)) if at_limit else Change(speedups={view.name: 4.0}),
    )


def _is_at_limit(facts: Facts) -> bool:
    """Return whether as many jobs are in flight as may be; False where that was not measured, or there is no bound."""
    limit, in_flight = facts.plan.source.max_in_flight, facts.machine.get("run.in_flight")
    return limit is not None and in_flight is not None and in_flight >= _AT_LIMIT * limit


def _compute_taken_share(view: StageView) -> float | None:
    """Return the share of the time that the device is at work or waits for a batch to fill, rather than for any item."""
    utilization, throughput = view.account.utilization, view.account.throughput
    if utilization is None or throughput is None:
        return None
    batches_per_second = throughput / mean_batch(view) / view.workers
    return min(1.0, utilization + _reason(view, "max_wait") * view.plan.max_wait_seconds * batches_per_second)


def _underfill_share(facts: Facts, view: StageView, largest: int, taken: float) -> float | None:
    """Return the share of the device's time per item that full batches would save, waiting for company included."""
    cost = facts.replay.costs.get(view.name)
    if cost is None or cost.largest < largest or not view.account.throughput:
        return None
    now = taken / view.account.throughput * (view.workers if not facts.document.is_emulated else 1)
    return max(0.0, 1 - per_item(cost, largest) / now)


def _delay(facts: Facts, view: StageView) -> Iterator[Proposal]:
    longest = view.plan.max_wait_seconds
    waited, latency = view.account.queue_wait.mean, facts.document.latency.mean
    utilization = view.account.utilization
    by_wait = _reason(view, "max_wait")
    if longest <= 0 or not waited or not latency or by_wait < _MOST or utilization is None or utilization > _BUSY:
        return
    if _is_at_limit(facts):
        return  # company would come and is not let in
    # Who waits longer than that waits for the device, not for company.
    for_company = min(waited, longest)
    of_longest, of_latency = waited / longest, for_company / latency
    if of_longest < _OF_MAX_WAIT or of_latency < _OF_LATENCY:
        return
    shorter = (f"{view.name}.max_wait_seconds=0",)
    yield Proposal(
        verdict=VerdictClass.BATCH_DELAY,
        stage=view.name,
        says=(
            f"items wait {format_duration(for_company)} of their {format_duration(latency)} for company that does not come: "
            f"the device may wait {format_duration(longest)} and is at work {utilization:.0%} of the time"
        ),
        rule=(
            f"at least {_MOST:.0%} of the batches leave because the wait is over, items wait at least {_OF_MAX_WAIT:.0%} of "
            f"it and {_OF_LATENCY:.0%} of their latency, the device is at work at most {_BUSY:.0%}, "
            "and more jobs may be in flight"
        ),
        resources=("arrivals", *view.resources),
        share=of_latency,
        evidence=(
            at_least("max_wait", "share of the batches that left because the wait was over", by_wait, _MOST),
            at_least("waited", "queue wait over the longest wait for company", of_longest, _OF_MAX_WAIT),
            at_least("of_latency", "wait for company over the latency", of_latency, _OF_LATENCY),
            line("utilization", f"{view.name} at work {utilization:.0%}", utilization, _BUSY, utilization <= _BUSY),
        ),
        advice=(Advice(says="launch an idle device at once: a batch still grows while it is busy", settings=shorter),),
        removal=Change(settings=shorter),
        is_latency=True,
    )


def _launch(facts: Facts, view: StageView) -> Iterator[Proposal]:
    cost, size = facts.replay.costs.get(view.name), mean_batch(view)
    if cost is None or len(cost.sizes) < 2:
        return
    start, slope = cost.line()
    fixed = start / (start + slope * size) if start > 0 else 0.0
    full = _reason(view, "full") if _largest(view) > 1 else 1.0
    best = sweet_spot(cost)
    share = 1 - per_item(cost, best) / per_item(cost, size)
    if not _is_warm_up_like_run(facts, view, size):
        return
    if best <= size or fixed < _FIXED or full < _MOST or share < WORTH_NAMING:
        return
    settings = (f"{view.name}.batch={best}",)
    yield Proposal(
        verdict=VerdictClass.LAUNCH,
        stage=view.name,
        says=(
            f"of a call's {format_duration(start + slope * size)} at batch {size:.3g}, {format_duration(max(0.0, start))} do "
            "not depend on how many items it has: launching, the framework, and reading the weights"
        ),
        rule=(
            f"at least {_FIXED:.0%} of a call is fixed (a of a + b n, fitted to warm-up), batches are full, and larger ones "
            f"save at least {WORTH_NAMING:.0%} per item"
        ),
        # Launching is done with the GIL: where that is scarce, and this stage has it most, larger batches need less of it.
        resources=(f"batch:{view.name}", *view.resources, *(("gil",) if facts.gil_holder is view else ())),
        share=share,
        evidence=(
            at_least("fixed", "share of a call that does not depend on the batch", fixed, _FIXED, "cost a + b n"),
            at_least("full", "share of the batches that were as large as they may be", full, _MOST),
            at_least(
                "saving", f"time per item that batches of {best} save", share, WORTH_NAMING, "cost curve of warm-up"
            ),
            busy_line(view),
        ),
        advice=(Advice(says=f"batches of up to {best}", settings=settings),),
        removal=Change(settings=settings),
    )


def _is_warm_up_like_run(facts: Facts, view: StageView, size: float) -> bool:
    """Return whether a call cost at warm-up about what it did in the run; else first touches were measured, not sizes."""
    curve = view.account.batches.cost_curve if view.account.batches else {}
    if not curve:
        return True
    warm = float(np.interp(size, sorted(curve), [curve[one] for one in sorted(curve)]))
    own = float(np.nanmean(facts.own_seconds(view)))
    return own / _SAME_COST <= warm <= own * _SAME_COST


def _sync(facts: Facts, view: StageView) -> Iterator[Proposal]:
    profile = facts.evidence.profiling
    device = profile.device_seconds.get(view.name) if profile else None
    if device is None or view.service <= 0 or facts.document.is_emulated:
        return
    own = device / view.service
    if own >= _OWN_CLOCK or (view.blocked_share or 0.0) < WORTH_NAMING:
        return
    yield Proposal(
        verdict=VerdictClass.SYNC,
        stage=view.name,
        says=(
            f"a call takes {format_duration(view.service)}, of which the device computes {format_duration(device)} by its own "
            "clock: the worker waits for it after each step, and the device for the worker"
        ),
        rule=f"the device's own clock shows less than {_OWN_CLOCK:.0%} of the call, and the worker is blocked in it",
        resources=view.resources,
        share=1 - own,
        evidence=(
            line("device_clock", f"device at work in {own:.0%} of the call", own, _OWN_CLOCK, own < _OWN_CLOCK),
            at_least(
                "blocked",
                f"share of {view.name}'s service that the worker is blocked",
                view.blocked_share,
                WORTH_NAMING,
            ),
        ),
        advice=(
            Advice(
                says="do not fetch results (.cpu(), .item()) within a call; once for a batch, at its end",
                change=Change(speedups={view.name: 1 / max(0.05, own)}),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )
