"""Accuracy, size and memory against speed, with what no other variant beats, and what nobody can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.report.charts import Chart, axis, plot
from headrace.report.markup import Html, bullets, note, sentence, tag
from headrace.report.section import Section
from headrace.report.variants.naming import (
    COLORS,
    GIVEN,
    find_used_bytes,
    find_used_drop,
    is_front,
    key,
    legend_of,
    number_of,
    ties,
    whole_of,
)
from headrace.runs.formats.optimization import ON_THE_FRONT, Attempt, OptimizationDocument
from headrace.runs.formats.profile import Estimate

_SAME = Estimate(1.0, 1.0, 1.0)
#: A drop so many times the allowed one stands at the edge: drawn to scale it would press all others into one line.
_MOST_DROPS = 4.0


def pareto_section(document: OptimizationDocument) -> Section | None:
    """Return the pictures of a search; None if nothing was timed."""
    timed = [attempt for attempt in document.attempts if attempt.speedup is not None]
    if not timed:
        return None
    drawn = (_against_accuracy(document, timed), _against_size(document, timed), _against_memory(document, timed))
    charts = [chart for chart in drawn if chart]
    missing = sum(attempt.drop is None for attempt in timed)
    return Section(
        anchor="pareto",
        title="Accuracy, speed, size, memory",
        parts=[
            note(
                f"Up and to the right is better; 0 is {document.incumbent}, other numbers are those of ",
                tag("a", "the table", href="#tried"),
                f". {sentence(ON_THE_FRONT)}",
            ),
            key(_shapes(document)),
            *(chart.element() for chart in charts),
            *_explain_ties(document),
            *([note(f"{missing} more were timed and not asked on the golden set: see the table.")] if missing else []),
        ],
        charts=charts,
    )


def _shapes(document: OptimizationDocument) -> list[tuple[str, str]]:
    shapes = [("ring", "on the front"), ("dot", "timed call by call")]
    if document.laid_out:
        shapes.append(("diamond", "with workers, threads and batch of its own: these decide"))
    if document.recommended:
        shapes.append(("band", "as fast as the one to use, as far as anybody can tell"))
    return [*shapes, ("dashes", "the largest drop that is allowed"), ("triangle", "further down than the picture goes")]


def _explain_ties(document: OptimizationDocument) -> list[Html]:
    equals = ties(document)
    said = [
        f"{number_of(document, one)} {one.name} is as fast as the one to use, as far as anybody can tell: of such the one "
        "that changes least is taken"
        for one in equals
    ]
    return [bullets(said)] if said else []


def _against_accuracy(document: OptimizationDocument, timed: Sequence[Attempt]) -> Chart | None:
    judged = [attempt for attempt in timed if attempt.drop is not None]
    if not judged:
        return None
    floor, given_ringed = floor_of(judged, document.max_drop), "baseline" in document.front
    lost = find_used_drop(document)
    kept = lost.scaled(-100)
    series = [_point(0, document.incumbent_mark, _SAME, kept, GIVEN, given_ringed, floor)]
    for attempt in judged:
        assert attempt.speedup is not None
        assert attempt.drop is not None
        change = attempt.drop.scaled(-100)
        number, color, name = number_of(document, attempt), COLORS[attempt.verdict], attempt.name
        ringed, whole = is_front(document, attempt), whole_of(document, attempt)
        series += _interval(attempt.speedup, change, color)
        series.append(_point(number, name, attempt.speedup, change, color, ringed, floor))
        if whole is not None:
            series += _interval(whole, change, color)
            diamond = _point(number, f"{name}, its own layout", whole, change, color, ringed, floor)
            series.append({**diamond, "symbol": "diamond", "symbolSize": 24})
    most = max(_furthest(document, attempt) for attempt in judged)
    series.append(_limit(-100 * document.max_drop, 1.04 * most))
    series[0] = {**series[0], "markArea": _band(document)}
    return plot(
        "pareto", "Accuracy against speed", "each variant as a point, times as fast and change of the share of right answers",
        series, x_axis=axis(f"times as fast as {document.incumbent}", low=0), y_axis=axis(low=floor),
        upright="points of right answers won or lost", height=340, legend=legend_of(document.incumbent_mark),
    )  # fmt: skip


def _furthest(document: OptimizationDocument, attempt: Attempt) -> float:
    return max(one.high for one in (_SAME, attempt.speedup, whole_of(document, attempt)) if one is not None)


def floor_of(judged: Sequence[Attempt], max_drop: float) -> float | None:
    """Return where the upright axis begins, in points, so that a failure does not press all others into one line.

    Args:
        judged: Attempts whose drop is known.
        max_drop: That is allowed, of right answers.

    Returns:
        None: as the values need.
    """
    kept = [-100 * one.drop.high for one in judged if one.drop is not None and one.verdict != "reject"]
    lowest = min([-100 * _MOST_DROPS * max_drop, *kept])
    return lowest if any(one.drop is not None and -100 * one.drop.mid < lowest for one in judged) else None


def _against_size(document: OptimizationDocument, timed: Sequence[Attempt]) -> Chart:
    shares = {one.candidate: one.artifact.num_bytes / find_used_bytes(document) for one in timed}
    upright = f"bytes of the file over those of {document.incumbent}"
    return _against("size", "Size against speed", document, timed, shares, upright)


def _against_memory(document: OptimizationDocument, timed: Sequence[Attempt]) -> Chart | None:
    whole = document.baseline.memory_bytes
    known = {one.candidate: one.validation.b.memory_bytes for one in timed}
    shares = {name: num / whole for name, num in known.items() if num is not None and whole}
    upright = f"peak of a process of its own over that of {document.incumbent}"
    return _against("memory", "Memory against speed", document, timed, shares, upright) if shares else None


def _against(
    name: str,
    title: str,
    document: OptimizationDocument,
    timed: Sequence[Attempt],
    shares: Mapping[str, float],
    upright: str,
) -> Chart:
    """Return what variants need over what is in use does, against speed; shares: {candidate: that ratio}."""
    series = [_dot(0, document.incumbent_mark, 1.0, 1.0, GIVEN, "baseline" in document.front)]
    for attempt in timed:
        if attempt.candidate in shares and attempt.speedup is not None:
            number, color, ringed = number_of(document, attempt), COLORS[attempt.verdict], is_front(document, attempt)
            series.append(_dot(number, attempt.name, attempt.speedup.mid, shares[attempt.candidate], color, ringed))
    return plot(
        name, title, f"each variant as a point, times as fast and {upright}", series,
        x_axis=axis(f"times as fast as {document.incumbent}", low=0), y_axis=axis(low=0), upright=upright, height=220,
        legend=legend_of(document.incumbent_mark),
    )  # fmt: skip


def _point(
    number: int, name: str, speedup: Estimate, change: Estimate, color: str, ringed: bool, floor: float | None
) -> dict[str, Any]:
    tip = [
        [f"{number} {name}", ""], ["times as fast", f"{speedup:.2f}"],
        ["points", f"{change:+z.2f}"],
    ]  # fmt: skip
    point = mark(str(number), speedup.mid, change.mid, tip, color, ringed)
    return point if floor is None or change.mid >= floor else below(point, floor)


def below(point: dict[str, Any], floor: float) -> dict[str, Any]:
    """Return a point that is further down than the picture goes as a triangle at its edge."""
    data = [{**one, "value": [one["value"][0], floor]} for one in point["data"]]
    shape = {"symbol": "triangle", "symbolRotate": 180, "symbolSize": 24, "symbolOffset": [0, -12]}
    label = {**point["label"], "offset": [0, -5]}  # where the triangle is wide
    return {**point, **shape, "label": label, "data": data}


def _dot(number: int, name: str, speedup: float, share: float, color: str, ringed: bool) -> dict[str, Any]:
    tip = [[f"{number} {name}", ""], ["times as fast", f"{speedup:.2f}"], ["of what is in use", f"{share:.0%}"]]
    return mark(str(number), speedup, share, tip, color, ringed)


def mark(label: str, x: float, y: float, tip: list[list[str]], color: str, ringed: bool) -> dict[str, Any]:
    """Return a point with its number in it.

    Args:
        label: Short: it stands within the point.
        x: Where.
        y: Where.
        tip: What the pointer shows.
        color: Of the point.
        ringed: Whether it has a ring around it.
    """
    ring = {"borderColor": "var(--text)", "borderWidth": 2.5} if ringed else {"borderColor": "var(--card)"}
    return {
        "type": "scatter", "symbolSize": 19, "itemStyle": {"color": color, "opacity": 1, "borderWidth": 1, **ring},
        "z": 4 if ringed else 3,
        "label": {"show": True, "formatter": label, "position": "inside", "color": "var(--card)", "fontSize": 11,
                  "fontWeight": "bold"},
        "data": [{"value": [x, y], "tip": tip}],
    }  # fmt: skip


def _interval(x: Estimate, y: Estimate, color: str) -> list[dict[str, Any]]:
    ends = [[[x.low, y.mid], [x.high, y.mid]], [[x.mid, y.low], [x.mid, y.high]]]
    return [
        {"type": "line", "silent": True, "showSymbol": False, "lineStyle": {"color": color, "width": 1.5}, "data": data}
        for data in ends
    ]


def _limit(points: float, most: float) -> dict[str, Any]:
    return {
        "type": "line", "silent": True, "showSymbol": False, "data": [[0, points], [most, points]],
        "lineStyle": {"color": "var(--failed)", "width": 1.5, "type": "dashed"},
    }  # fmt: skip


def _band(document: OptimizationDocument) -> dict[str, Any] | None:
    """Return the interval of the recommended variant's speed as a band."""
    chosen = next((one for one in document.attempts if one.candidate == document.recommended), None)
    speed = None if chosen is None else whole_of(document, chosen) or chosen.speedup
    if speed is None:
        return None
    return {
        "silent": True, "itemStyle": {"color": "var(--shade)"}, "data": [[{"xAxis": speed.low}, {"xAxis": speed.high}]],
    }  # fmt: skip
