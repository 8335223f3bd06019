"""Which recorded jobs are replayed: those that were recorded whole; and which stages each of them goes through."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import Window

#: Fewest whole jobs that say anything of the others.
FEWEST_JOBS = 12


def find_whole(evidence: Evidence, window: Window) -> Array:
    """Return the roots of jobs with a good span in every stage of their route, in the order of arrival."""
    spans, stages = evidence.spans, evidence.stages
    count = len(spans.unit_ids)
    passed = np.zeros((len(stages), count), bool)
    for number, stage in enumerate(stages):
        rows = np.arange(len(spans))[spans.of(stage.name)]
        rows = rows[spans.is_ok[rows] & (np.isfinite(spans.cpu[rows]) | (stage.kind == "device"))]
        passed[number, spans.root[rows]] = True
    passed[0] |= _begin_at_second(evidence)
    _pass_the_childless(evidence, passed)
    whole = np.zeros(count, bool)
    for route in {stage.route for stage in stages if stage.route} or {""}:
        whole |= np.logical_and.reduce([passed[at] for at, stage in enumerate(stages) if stage.route in ("", route)])
    first = np.full(count or 1, np.iinfo(np.int64).max)
    np.minimum.at(first, spans.root, spans.arrived)
    roots = np.flatnonzero(whole)
    steady = roots[first[roots] / 1e9 >= window.from_seconds - 1e-9]
    # The jobs that were under way when the steady part began count too where there are few others.
    roots = steady if len(steady) >= max(FEWEST_JOBS, len(roots) // 3) else roots
    return np.asarray(roots[np.argsort(first[roots], kind="stable")])


def _pass_the_childless(evidence: Evidence, passed: Array) -> None:
    """Let jobs that a fan-out cut into nothing pass the stages up to its join."""
    spans = evidence.spans
    is_childless = np.ones(passed.shape[1], bool)
    is_childless[spans.root[spans.is_child]] = False
    among_children = False
    for number, stage in enumerate(evidence.stages):
        among_children &= stage.role != "join"
        if among_children:
            passed[number] |= is_childless
        among_children |= stage.role == "fan_out"


def _begin_at_second(evidence: Evidence) -> Array:
    """Return (units,) bool: which jobs began at the second stage. A worker of the first one runs every stage of its station."""
    spans, stages = evidence.spans, evidence.stages
    begins = np.zeros(len(spans.unit_ids), bool)
    if len(stages) > 1 and stages[1].has_queue:
        begins[spans.root] = True
        begins[spans.root[spans.of(stages[0].name)]] = False
    return begins


def routes_of(evidence: Evidence, jobs: Array) -> tuple[Array, Array]:
    """Return each job's route, and which stages are on each route; see `Demands`."""
    spans, stages = evidence.spans, evidence.stages
    names = tuple(dict.fromkeys(stage.route for stage in stages if stage.route)) or ("",)
    name_of = np.zeros(len(spans.unit_ids), np.int64)
    for stage in stages:
        if stage.route:
            name_of[spans.root[spans.of(stage.name)]] = names.index(stage.route)
    on_route = np.array([[stage.route in ("", name) for stage in stages] for name in names])
    passed = on_route[name_of[jobs]]
    passed[:, 0] &= ~_begin_at_second(evidence)[jobs]
    routes, route = np.unique(passed, axis=0, return_inverse=True)
    return np.asarray(route).reshape(-1), routes
