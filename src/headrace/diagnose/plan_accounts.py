"""What each of several Plans did in a run: the arms of a canary, or before and after `--follow` took up another model."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.estimates import compute_weighted_mean, distribution
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import PlanAccount, PlanStage


def plan_accounts(evidence: Evidence) -> tuple[PlanAccount, ...]:
    """Return an account of each Plan that answered something, the one with most spans first; () where it was one alone.

    A job is the Plan's under which it passed its last stage. The whole run counts: a canary begins when it is warm.
    """
    spans, jobs = evidence.spans, evidence.jobs
    column = spans.table["plan_id"].combine_chunks()
    plan = column.indices.to_numpy()[spans.row] if len(spans) else np.zeros(0, np.int32)
    counts = np.bincount(plan, minlength=len(column.dictionary))
    if np.count_nonzero(counts) < 2:
        return ()
    last = np.argsort(spans.put, kind="stable")
    plan_of = np.full(len(spans.unit_ids), -1)
    plan_of[spans.root[last]] = plan[last]
    job_plan, latency = plan_of[jobs.root], jobs.latency_seconds()
    found = []
    for number in np.argsort(-counts, kind="stable"):
        if not counts[number]:
            continue
        good, bad = (job_plan == number) & jobs.is_delivered, (job_plan == number) & ~jobs.is_delivered
        found.append(
            PlanAccount(
                plan_id=str(column.dictionary[int(number)]),
                share=float(counts[number] / len(spans)),
                delivered=int(jobs.weight[good].sum()),
                failed=int(jobs.weight[bad].sum()),
                latency=distribution(latency[good], jobs.weight[good]),
                stages=_stages(evidence, plan == number),
            )
        )
    return tuple(found)


def _stages(evidence: Evidence, is_own: Array) -> dict[str, PlanStage]:
    spans, found = evidence.spans, {}
    for name in spans.stage_names:
        own = spans.of(name)
        rows = np.flatnonzero(is_own[own]) + own.start
        service = (spans.ended[rows] - spans.started[rows]) / spans.batch_size[rows] / 1e9
        mean = compute_weighted_mean(service, spans.weight[rows])
        if mean is not None:
            # Each item of a batch of n has a row, so the mean batch is that over 1 / n of each.
            batches = float((spans.weight[rows] / spans.batch_size[rows]).sum())
            found[name] = PlanStage(service=mean, mean_batch=float(spans.weight[rows].sum()) / batches)
    return found
