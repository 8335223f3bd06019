"""The analysis of one run in one record."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.diagnose.accounting import stage_accounts
from headrace.diagnose.blocked_split import count_samples
from headrace.diagnose.caches import find_keepable
from headrace.diagnose.cpu_account import cpu_account, why_no_account
from headrace.diagnose.environment import environment
from headrace.diagnose.estimates import PERCENTS, distribution
from headrace.diagnose.evidence import Evidence, collect, hot_spots
from headrace.diagnose.listing import warn_of_listing
from headrace.diagnose.memory_growth import memory_growth
from headrace.diagnose.overhead import overhead_estimate
from headrace.diagnose.plan_accounts import plan_accounts
from headrace.diagnose.runtime_cost import runtime_cost
from headrace.diagnose.series import all_series
from headrace.diagnose.slow_item import slow_item
from headrace.diagnose.steady_state import Completions, completions, find_window
from headrace.diagnose.streams import stream_accounts
from headrace.diagnose.trust import all_checks, distrust, list_unchecked
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats.profile import Distribution, ProfileDocument, Quantile, StageAccount, Window
from headrace.runs.fused import explain_fused
from headrace.runs.reader import Run

_NOTHING = "nothing was measured: there is no record of an item that went through a stage"


def profile_document(run: Run) -> ProfileDocument:
    """Return where the time of a run went, and whether that can be believed.

    Any run folder gives a document, also that of a run that was killed, failed or measured nothing: what is missing is None,
    and `not_measured`, a check or `problems` says why.

    Args:
        run: As `headrace.runs.reader.read_run` returns it.
    """
    return document_of(collect(run))


def document_of(evidence: Evidence) -> ProfileDocument:
    """Return the document of a run whose evidence is at hand; see `profile_document`."""
    run, info, profile = evidence.run, evidence.info, evidence.profiling
    done = completions(evidence)
    window = find_window(done, evidence)
    stages = stage_accounts(evidence, window, count_samples(evidence.spans, evidence.states, window))
    latency = latency_distribution(evidence, window)
    cpu = cpu_account(evidence)
    demand = {stage.name: stage.cpu_demand for stage in stages if stage.cpu_demand is not None}
    overhead = overhead_estimate(profile, demand)
    growth = memory_growth(evidence, done, window)
    delivered = completions(evidence, delivered=True)
    throughput = _throughput(evidence, delivered, window)
    checks = all_checks(evidence, window, latency, cpu, overhead, stages, throughput)
    doubts, not_checked = distrust(checks) + (() if len(evidence.spans) else (_NOTHING,)), list_unchecked(checks)
    plans = plan_accounts(evidence)
    shares = {one.plan_id: one.share for one in plans} or _only_plan(evidence)
    plan_id = next(iter(shares), next(iter(info.plans), ""))
    not_measured = _not_measured(evidence, stages, throughput)
    if cpu is None:
        not_measured.setdefault("cpu", why_no_account(evidence))
    if isinstance(growth, str):
        not_measured.setdefault("memory_growth", growth)
    return ProfileDocument(
        run=run.path.resolve().name,
        headrace_version=info.headrace_version,
        status=info.status,
        pipeline=info.pipeline,
        options=tuple(info.options),
        served=info.served,
        plan_id=plan_id,
        plan=info.plans.get(plan_id, {}),
        plan_shares=shares if plans else {},
        plan_accounts=plans,
        started_unix_seconds=info.started_unix_seconds,
        elapsed_seconds=evidence.elapsed_seconds,
        is_emulated=bool(emulated_engines(info.variants)),
        trusted=not doubts and not not_checked,
        distrust=doubts,
        unchecked=not_checked,
        counters=msgspec.to_builtins(info.counters),
        window=window,
        throughput=throughput,
        latency=latency,
        stages=stages,
        cpu=cpu,
        runtime=runtime_cost(evidence, cpu),
        series=all_series(evidence, delivered),
        not_measured=not_measured,
        memory_growth=None if isinstance(growth, str) else growth,
        slow_item=slow_item(evidence, window, latency),
        checks=checks,
        environment=environment(evidence, window),
        overhead=overhead,
        layers=evidence.layers,
        isolation=evidence.isolation,
        experiment=evidence.experiment,
        keepable=find_keepable(evidence, stages),
        unit=info.unit,
        streams=stream_accounts(info),
        hot_spots=hot_spots(run.path),
        versions=info.versions,
        hardware=decode_document(encode_document(info.hardware), dict[str, Any]),
        fused=tuple(explain_fused(info, by_plan=False)),
        variants=tuple(info.variants),
        warnings=(*info.warnings, *warn_of_listing(info.counters.notes, evidence.elapsed_seconds)),
        problems=evidence.problems,
    )


def latency_distribution(evidence: Evidence, window: Window) -> Distribution:
    """Return the latencies of the jobs delivered in the window; without spans those of the whole run, from `run.json`."""
    jobs = evidence.jobs
    ended = jobs.ended / 1e9
    inside = jobs.is_delivered & (ended >= window.from_seconds) & (ended <= window.to_seconds)
    values, weights = jobs.latency_seconds()[inside], jobs.weight[inside]
    known: dict[str, Any] = evidence.summary.get("latency_seconds") or {}
    if len(values) or not known:
        return distribution(values, weights, histogram=True)
    return Distribution(
        num_samples=int(known["num_samples"]),
        mean=known["mean"],
        minimum=None,
        maximum=None,
        percentiles=tuple(
            Quantile(percent, known[f"p{percent}"], known["num_needed"][f"p{percent}"]) for percent in PERCENTS
        ),
    )


def _throughput(evidence: Evidence, delivered: Completions, window: Window) -> float | None:
    """Return jobs delivered per second, from the end of the warm-up or the first arrival to the last outcome.

    A run too short to have its warm-up found counts from the first arrival: what piled up while a model warmed up is settled in
    a burst, and the rate of a burst is none that the pipeline has.
    """
    if window.from_seconds > 0:
        return delivered.rate(window.from_seconds, window.to_seconds)
    done = evidence.info.counters.delivered if evidence.info.summary is not None else delivered.total
    return done / evidence.elapsed_seconds if done > 1 and evidence.elapsed_seconds > 0 else None


def _only_plan(evidence: Evidence) -> dict[str, float]:
    column = evidence.spans.table["plan_id"]
    return {str(column[0].as_py()): 1.0} if len(column) else {}


def _not_measured(evidence: Evidence, stages: tuple[StageAccount, ...], throughput: float | None) -> dict[str, str]:
    profile = evidence.profiling
    found = dict(profile.not_measured) if profile else {}
    if throughput is None:
        found.setdefault("throughput", "fewer than two jobs were delivered")
    why = evidence.why_no_profile if profile is None else "the profiler wrote none"
    if not evidence.gauges:
        found.setdefault("resources", why)
    if evidence.states is None:
        found.setdefault("thread states", why)
    if not any(stage.cpu is not None for stage in stages):
        found.setdefault("CPU time of stages", why)
    elif all(stage.run_delay is None for stage in stages):
        found.setdefault("run-queue delay", "this kernel does not tell it in /proc/self/task/TID/schedstat")
    if not len(evidence.spans):
        found.setdefault("spans", "there are none: nothing was done, or they could not be written or read")
    return found
