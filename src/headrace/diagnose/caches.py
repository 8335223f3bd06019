"""What the caches of a run did, and which stage's results would be worth their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.diagnose.cache_costs import ENTRY_BYTES, hit_seconds
from headrace.diagnose.evidence import Evidence, StageFacts
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import CacheAccount, Keepable, StageAccount

#: Less than this saves nothing that one would see.
_LEAST_SAVED = 100e-6


def cache_account(evidence: Evidence, stage: StageFacts) -> CacheAccount | None:
    """Return what the cache of a stage's results did; None where the Plan keeps none."""
    notes = evidence.info.counters.notes
    kinds = ("hits", "misses", "kept", "full", "waits", "unversioned", "unfit")
    counts = {kind: int(notes.get(f"{stage.name}.cache_{kind}", 0)) for kind in kinds}
    if not any(counts.values()):
        return None
    up_to = _up_to(evidence.stages, stage)
    own = {mark: _units(evidence, stage.name, mark) for mark in ("hit", "miss")}
    return CacheAccount(
        **counts, hit_seconds=_seconds(evidence, up_to, own["hit"]), miss_seconds=_seconds(evidence, up_to, own["miss"])
    )


def find_keepable(evidence: Evidence, accounts: Sequence[StageAccount]) -> tuple[Keepable, ...]:
    """Return the stages whose results would be worth keeping, if equal items give equal ones."""
    # What stages cost includes what was found in a cache; and a camera sends no frame twice.
    if any(account.cache for account in accounts) or evidence.info.streams:
        return ()
    by_name = {account.name: account for account in accounts}
    jobs = max(1, int(evidence.info.counters.delivered))
    found = []
    for stage in evidence.stages:
        up_to = _up_to(evidence.stages, stage)
        if any(one.role != "map" or one.kind not in ("io", "cpu") or one.executor == "process" for one in up_to):
            continue
        passed = [by_name[one.name] for one in up_to]
        size, times = by_name[stage.name].bytes_out, [one.service.mean for one in passed]
        if not size or None in times:
            continue
        saved = sum(time or 0.0 for time in times) - hit_seconds(size)
        cpu = [one.cpu_demand for one in passed if one.cpu_demand is not None]
        entry = size + ENTRY_BYTES
        if saved >= _LEAST_SAVED:
            found.append(
                Keepable(
                    stage=stage.name,
                    saved_seconds=saved,
                    saved_cpu_seconds=sum(cpu) if len(cpu) == len(passed) else None,
                    item_bytes=size,
                    total_bytes=entry * jobs,
                    seconds_per_gigabyte=saved * 1e9 / entry,
                )
            )
    return tuple(sorted(found, key=lambda one: -one.seconds_per_gigabyte))


def _up_to(stages: Sequence[StageFacts], stage: StageFacts) -> list[StageFacts]:
    """Return a stage and those of its route before it."""
    return [one for one in stages[: stages.index(stage) + 1] if one.route in ("", stage.route)]


def _units(evidence: Evidence, stage: str, mark: str) -> Array:
    """Return the codes of the items with this mark in a stage."""
    spans, rows = evidence.spans, evidence.stage_rows(stage)
    marks = np.asarray(spans.table["cached"].take(spans.row[rows]).to_pylist(), dtype=object)
    return np.asarray(spans.unit[rows][marks == mark])


def _seconds(evidence: Evidence, stages: Sequence[StageFacts], units: Array) -> float | None:
    """Return the mean service of items, added up over stages."""
    if not len(units):
        return None
    spans, total = evidence.spans, 0.0
    for stage in stages:
        rows = np.arange(spans.row.size)[evidence.stage_rows(stage.name)]
        rows = rows[np.isin(spans.unit[rows], units)]
        total += float((spans.ended[rows] - spans.started[rows]) @ spans.weight[rows])
    weights = spans.weight[np.isin(spans.unit, units)]
    return total / 1e9 / (len(units) * float(weights.mean()))
