"""Calls of one stage that cost more than others of their kind: new shapes, and anomalies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.base.units import format_duration
from headrace.diagnose.span_columns import Array
from headrace.diagnose.verdict import trends
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.prediction import Change

#: Shapes from which on first sights are a pattern.
_SHAPES = 3
#: A call this many times the cheap ones of its kind does not come from noise in CPU time.
_TIMES = 3.0
_USUAL_CAUSES = (
    "threads of a library that take cores from one another, work that depends on the content (how many candidates are "
    "sorted), denormal numbers"
)


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages whose calls differ though their inputs look alike."""
    for view in facts.stages:
        yield from _warm_up(facts, view)
        if view.work == "model" and not _is_held_up(facts, view):
            yield from _anomaly(facts, view)


def _is_held_up(facts: Facts, view: StageView) -> bool:
    """Return whether calls differ because something else delays them, so that their own cost is not known."""
    waits = view.waits("gil", "lock") or 0.0
    return facts.do_native_threads_fight or (not facts.is_costed_by_cpu(view) and waits >= WORTH_NAMING)


def _warm_up(facts: Facts, view: StageView) -> Iterator[Proposal]:
    spans = facts.evidence.spans
    shape = _input_shapes(facts, view)
    rows = _calls(facts, view)
    seconds = facts.own_seconds(view, rows)
    shape = shape[rows - facts.evidence.stage_rows(view.name).start]
    found = trends.first_sights(spans.started[rows], seconds, shape, _predict_cost(view, spans.batch_size[rows]))
    if found is None or found.num_kinds < _SHAPES or found.share < WORTH_NAMING or found.times < _TIMES:
        return
    kinds, share = found.num_kinds, found.share
    yield Proposal(
        verdict=VerdictClass.WARMUP,
        stage=view.name,
        says=(
            f"{view.name} met {kinds} shapes of input, and the first item of each took {share:.0%} of all its time more than "
            "those after it: something is compiled or built anew for every shape"
        ),
        rule=(
            f"at least {_SHAPES} shapes, whose first items take {_TIMES:g} times as long as those after them (median), and "
            f"{WORTH_NAMING:.0%} of the stage's time in excess"
        ),
        resources=view.resources,
        share=share,
        evidence=(
            at_least("first_sights", "share of the time in first sights of a shape", share, WORTH_NAMING),
            line("shapes", f"{kinds} shapes", float(kinds), _SHAPES, True),
            line("times", f"a first item takes x{found.times:.1f} of one after it (median)", found.times, _TIMES, True),
        ),
        advice=(
            Advice(
                says="pad or resize inputs to a few fixed shapes, and warm each of them up before the work begins",
                change=Change(speedups={view.name: 1 / (1 - share)}) if share < 1 else None,
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _calls(facts: Facts, view: StageView) -> Array:
    """Return one row for each call of a stage: one of each batch, whose members carry the same times."""
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    rows = np.arange(own.start, own.stop)
    if not (spans.batch_id[own] >= 0).all():
        return rows
    key = spans.process[own].astype(np.int64) << 32 | spans.batch_id[own]
    return np.asarray(rows[np.unique(key, return_index=True)[1]])


def _predict_cost(view: StageView, size: Array) -> Array | None:
    """Return what calls of these sizes cost at warm-up, seconds; None for a stage without a cost curve."""
    curve = view.account.batches.cost_curve if view.account.batches else {}
    if not curve:
        return None
    return np.asarray(np.interp(size, sorted(curve), [curve[one] for one in sorted(curve)]))


def _input_shapes(facts: Facts, view: StageView) -> Array:
    """Return the shape of each item as it came to the stage, that is as the nearest stage before it that knows one left it.

    Returns:
        int32, a code for each of the stage's spans; -1 where no shape is known.
    """
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    for before in reversed(facts.stages[: view.index]):
        rows = facts.evidence.stage_rows(before.name)
        if not (spans.shape[rows] >= 0).any():
            continue
        shape_of = np.full(len(spans.unit_ids), -1, np.int32)
        shape_of[spans.unit[rows]] = spans.shape[rows]
        return np.asarray(shape_of[spans.unit[own]])
    return np.asarray(spans.shape[own])


def _shapes_given(facts: Facts, view: StageView) -> Array:
    """Return the shape of each item as the stage right before left it.

    Returns:
        int32, a code for each of the stage's spans; -1 where that one noted none: lists and tuples have no shape.
    """
    spans, own = facts.evidence.spans, facts.evidence.stage_rows(view.name)
    route = {stage.name: stage.route for stage in facts.evidence.stages}
    before = [one for one in facts.stages[: view.index] if route[one.name] in ("", route[view.name])]
    shape_of = np.full(len(spans.unit_ids), -1, np.int32)
    if before:
        rows = facts.evidence.stage_rows(before[-1].name)
        shape_of[spans.unit[rows]] = spans.shape[rows]
    return np.asarray(shape_of[spans.unit[own]])


def _anomaly(facts: Facts, view: StageView) -> Iterator[Proposal]:
    spans = facts.evidence.spans
    shape = _shapes_given(facts, view)[view.rows - facts.evidence.stage_rows(view.name).start]
    rows, shape = view.rows[shape >= 0], shape[shape >= 0]  # two shapes that nobody noted may be different ones
    seconds = facts.own_seconds(view, rows)
    size = spans.batch_size[rows]
    # The most frequent kind of call: what differs within it is neither size nor shape.
    kinds, index, counts = np.unique(np.stack([size, shape]), axis=1, return_inverse=True, return_counts=True)
    if not kinds.size:
        return
    same = (index.ravel() == int(np.argmax(counts))) & np.isfinite(seconds)
    values = seconds[same]
    if len(values) < trends.FEWEST_ITEMS:
        return
    cheap = float(np.percentile(values, 10))
    dear = float((values >= _TIMES * cheap).mean())
    share = 1 - cheap / float(values.mean()) if values.mean() > 0 else 0.0
    times = float(np.percentile(values, 95)) / cheap if cheap > 0 else 0.0
    excess = float(
        np.maximum(values - _TIMES * cheap, 0).sum() + (_TIMES - 1) * cheap * (values >= _TIMES * cheap).sum()
    )
    of_all = excess / float(values.sum()) if values.sum() > 0 else 0.0
    if cheap <= 0 or times < _TIMES or of_all < WORTH_NAMING:
        return
    yield Proposal(
        verdict=VerdictClass.DEVICE_COMPUTE,
        stage=view.name,
        cause="anomaly",
        says=(
            f"calls with the same batch and shape cost from {format_duration(cheap)} to {times:.1f} times as much; why was not "
            f"measured. Usual causes: {_USUAL_CAUSES}"
        ),
        rule=(
            f"same batch size and shape, yet the dearest twentieth costs at least {_TIMES:g} times the cheapest tenth, and the "
            f"excess is at least {WORTH_NAMING:.0%} of the time"
        ),
        resources=view.resources,
        share=max(of_all, min(share, 0.95)),
        evidence=(
            line("same_kind", f"dearest over cheapest calls of one kind: x{times:.1f}", times, _TIMES, True),
            at_least("excess", "share of the time beyond the cheap calls", of_all, WORTH_NAMING),
            line("dear_calls", f"{dear:.0%} of those calls are dear", dear, None, None),
        ),
        advice=(
            Advice(
                says="run the dear calls alone, with one thread (OPENBLAS_NUM_THREADS=1, model.threads=1); if they are dear "
                "even so, flush denormals to zero (ONNX Runtime: session.set_denormal_as_zero; "
                "torch.set_flush_denormal(True)). Predicted as if all were cheap",
                change=Change(speedups={view.name: 1 / max(0.05, 1 - of_all)}),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )
