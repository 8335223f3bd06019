"""Which recorded jobs are replayed: those that were recorded whole; and which stages each of them goes through."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import Window

#: Fewest whole jobs that say anything of the others.
FEWEST_JOBS = 12


def find_whole(evidence: Evidence, window: Window) -> Array:
    """Return the roots of jobs with a good span in every stage of their route, in the order of arrival.

    Those whose CPU time was measured in all of them; and of routes with too few of these some others, so that the routes are
    mixed as they were. The meters rest now and then, and jobs that take long are seldom measured from end to end.
    """
    spans = evidence.spans
    first = np.full(len(spans.unit_ids) or 1, np.iinfo(np.int64).max)
    np.minimum.at(first, spans.root, spans.arrived)
    is_measured = spans.is_ok & np.isfinite(spans.cpu)
    measured = [_keep_steady(roots, first, window) for roots in _find_passed(evidence, is_measured)]
    passed = [_keep_steady(roots, first, window) for roots in _find_passed(evidence, spans.is_ok)]
    roots = np.concatenate(_mix_as(passed, measured))
    return np.asarray(roots[np.argsort(first[roots], kind="stable")])


def _find_passed(evidence: Evidence, is_good: Array) -> list[Array]:
    """Return for each route the roots of jobs with such a span in every stage of it; a device's spans need no CPU time."""
    spans, stages = evidence.spans, evidence.stages
    passed = np.zeros((len(stages), len(spans.unit_ids)), bool)
    for number, stage in enumerate(stages):
        rows = np.arange(len(spans))[spans.of(stage.name)]
        rows = rows[spans.is_ok[rows] if stage.kind == "device" else is_good[rows]]
        passed[number, spans.root[rows]] = True
    passed[0] |= _begin_at_second(evidence)
    _pass_the_childless(evidence, passed)
    routes = tuple(dict.fromkeys(stage.route for stage in stages if stage.route)) or ("",)
    on_route = [[at for at, stage in enumerate(stages) if stage.route in ("", route)] for route in routes]
    return [np.flatnonzero(np.logical_and.reduce(passed[numbers])) for numbers in on_route]


def _keep_steady(roots: Array, first: Array, window: Window) -> Array:
    """Return the jobs that came in the steady part; all where these are few, as others were under way when it began."""
    steady = roots[first[roots] / 1e9 >= window.from_seconds - 1e-9]
    return steady if len(steady) >= max(FEWEST_JOBS, len(roots) // 3) else roots


def _mix_as(passed: list[Array], measured: list[Array]) -> list[Array]:
    """Return the measured jobs of each route, and so many others that the routes have the shares of those that passed."""
    times = max(
        (len(ours) / len(whole) for ours, whole in zip(measured, passed, strict=True) if len(whole)), default=0.0
    )
    mixed = []
    for ours, whole in zip(measured, passed, strict=True):
        others = np.setdiff1d(whole, ours)
        missing = min(len(others), round(times * len(whole)) - len(ours))
        mixed.append(np.concatenate([ours, others[np.arange(missing) * len(others) // max(1, missing)]]))
    return mixed


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
