"""The page of a search for a cheaper variant: accuracy against speed, what was tried, and why each was accepted or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.report.charts import Chart, axis, plot
from headrace.report.frame import framed
from headrace.report.markup import DASH, Html, bullets, folded, note, sentence, table, tag
from headrace.report.numbers import digits, seconds, size
from headrace.report.section import Section
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.profile import Estimate
from headrace.runs.run_folder import headrace_version

_COLORS = {"accept": "var(--c3)", "inconclusive": "var(--muted)", "reject": "var(--c6)"}
_DIAMONDS = (
    "Diamonds are variants with workers, threads and batch of their own, against the model as given with those of the Plan: "
    "they decide."
)
_BADGES = {"accept": "ok", "inconclusive": "warning", "reject": "failed"}


def render_variants(
    document: OptimizationDocument, decisions: Sequence[Decision] = (), pictures: Mapping[int, str] | None = None
) -> str:
    """Return the page of one search as an HTML document.

    Args:
        document: The search.
        decisions: Of the ledger, the newest first.
        pictures: {item of the golden set: picture as a `data:` address}.
    """
    sections = [
        _picture(document), _attempts(document), _layouts(document), _worst(document, pictures or {}), _gates(document),
        _skipped(document), _decided(decisions),
    ]  # fmt: skip
    footer = (
        f"Made by headrace {headrace_version()} for the model {document.model.sha256[:16]}. "
        f"A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    )
    name = document.baseline.name
    return framed(
        name, _overview(document, name), [section for section in sections if section], footer, pictures=bool(pictures)
    )


def _overview(document: OptimizationDocument, name: str) -> Html:
    has_better = document.recommended is not None
    return tag(
        "header",
        tag("p", "headrace · variants of ", tag("b", name), class_="kicker"),
        tag("h1", "A better variant was found and proved" if has_better else "No better variant was proved"),
        tag("p", document.says),
        tag("p", tag("b", sentence(document.business.says))) if document.business else None,
        bullets(document.warnings) if document.warnings else None,
        tag("p", "interrupted: the same command goes on", class_="note") if document.interrupted else None,
    )


def _picture(document: OptimizationDocument) -> Section | None:
    timed = [attempt for attempt in document.attempts if attempt.speedup is not None]
    if not timed:
        return None
    charts = [_against_accuracy(document, timed), _against_size(document, timed)]
    shown = [chart for chart in charts if chart]
    missing = [attempt for attempt in timed if attempt.drop is None]
    return Section(
        anchor="pareto",
        title="Accuracy, speed, size",
        parts=[
            note("Up and to the right is better. Lines are intervals. The front is what no other variant beats."),
            *([note(_DIAMONDS)] if document.laid_out else []),
            *(chart.element() for chart in shown),
            *([note(f"{len(missing)} more were timed and not asked on the golden set: see the table.")] if missing else []),
        ],
        charts=shown,
    )  # fmt: skip


def _against_accuracy(document: OptimizationDocument, timed: Sequence[Attempt]) -> Chart | None:
    judged = [attempt for attempt in timed if attempt.drop is not None]
    if not judged:
        return None
    series = [_point("as given", Estimate(1.0, 1.0, 1.0), Estimate(0.0, 0.0, 0.0), "var(--before)", False)]
    for attempt in judged:
        assert attempt.speedup is not None
        assert attempt.drop is not None
        change = Estimate(*(-100 * value for value in (attempt.drop.high, attempt.drop.mid, attempt.drop.low)))
        series.append(
            _point(_name(attempt), attempt.speedup, change, _COLORS[attempt.verdict], _is_front(document, attempt))
        )
        series += _interval(attempt.speedup, change, _COLORS[attempt.verdict])
        for layout in _own_layouts(document, attempt):
            assert layout.whole is not None
            name, ratio = f"{_name(attempt)}, {layout.whole.after}", layout.whole.ratio
            series.append({**_point(name, ratio, change, _COLORS[attempt.verdict], False), "symbol": "diamond"})
            series += _interval(ratio, change, _COLORS[attempt.verdict])
    wholes = [layout.whole.ratio.high for layout in document.laid_out if layout.whole is not None]
    most = max([*(attempt.speedup.high for attempt in judged if attempt.speedup), *wholes])
    series.append(_limit(-100 * document.max_drop, most))
    return plot(
        "pareto", "Accuracy against speed", "each variant as a point, times as fast and change of the share of right answers",
        series, x_axis=axis("times as fast as the model as given", low=0), y_axis=axis(),
        upright="points of right answers won or lost", height=320, legend=_legend(),
    )  # fmt: skip


def _against_size(document: OptimizationDocument, timed: Sequence[Attempt]) -> Chart:
    series = [_dot("as given", 1.0, 1.0, "var(--before)", False)]
    whole = document.model.num_bytes
    for attempt in timed:
        assert attempt.speedup is not None
        share = attempt.artifact.num_bytes / whole
        series.append(
            _dot(_name(attempt), attempt.speedup.mid, share, _COLORS[attempt.verdict], _is_front(document, attempt))
        )
    return plot(
        "size", "Size against speed", "each variant as a point, times as fast and bytes over those of the model as given",
        series, x_axis=axis("times as fast as the model as given", low=0), y_axis=axis(low=0),
        upright="size over that of the model as given", height=240, legend=_legend(),
    )  # fmt: skip


def _legend() -> dict[str, str]:
    return {"accepted": _COLORS["accept"], "not decided": _COLORS["inconclusive"], "rejected": _COLORS["reject"]}


def _point(name: str, speedup: Estimate, change: Estimate, color: str, is_front: bool) -> dict[str, Any]:
    tip = [
        [name, ""], ["times as fast", f"{speedup.mid:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"],
        ["points", f"{change.mid:+.2f} ({change.low:+.2f} to {change.high:+.2f})"],
    ]  # fmt: skip
    return _mark(speedup.mid, change.mid, tip, color, is_front)


def _dot(name: str, speedup: float, share: float, color: str, is_front: bool) -> dict[str, Any]:
    tip = [[name, ""], ["times as fast", f"{speedup:.2f}"], ["of the size", f"{share:.0%}"]]
    return _mark(speedup, share, tip, color, is_front)


def _mark(x: float, y: float, tip: list[list[str]], color: str, is_front: bool) -> dict[str, Any]:
    return {
        "type": "scatter", "symbolSize": 13 if is_front else 8, "itemStyle": {"color": color},
        "data": [{"value": [x, y], "tip": tip}],
    }  # fmt: skip


def _interval(x: Estimate, y: Estimate, color: str) -> list[dict[str, Any]]:
    ends = [[[x.low, y.mid], [x.high, y.mid]], [[x.mid, y.low], [x.mid, y.high]]]
    return [
        {"type": "line", "silent": True, "showSymbol": False, "lineStyle": {"color": color, "width": 1}, "data": data}
        for data in ends
    ]


def _limit(points: float, most: float) -> dict[str, Any]:
    return {
        "type": "line", "silent": True, "showSymbol": False, "data": [[0, points], [most, points]],
        "lineStyle": {"color": "var(--c6)", "width": 1, "type": "dashed"},
    }  # fmt: skip


def _attempts(document: OptimizationDocument) -> Section:
    head = ["technique", "engine", "verdict", "times as fast", "interval", "points", "interval", "size", "tried for"]
    rows: list[list[str | None]] = [
        ["(as given)", "onnx", None, "1", None, "0", None, size(document.model.num_bytes), None]
    ]
    rows += [_row(document, attempt) for attempt in document.attempts]
    return Section(
        anchor="tried",
        title="What was tried",
        parts=[
            table(head, rows, text_columns=3, caption="Variants with speed, accuracy and size"),
            note(
                f"Batches of {document.batch}, calls in turn with the model as given. Points are of the share of right answers "
                f"on {document.golden or 'no golden set'}; {100 * document.max_drop:g} may be lost. That set had judged "
                f"{document.golden_uses} attempts when this was written."
            ),
        ],
    )


def _row(document: OptimizationDocument, attempt: Attempt) -> list[str | None]:
    word = {"accept": "accepted", "reject": "rejected", "inconclusive": "not decided"}[attempt.verdict]
    marked = tag(
        "span", f"{word} by {attempt.gate}" if attempt.gate else word, class_=f"badge {_BADGES[attempt.verdict]}"
    )
    chosen = attempt.candidate == document.recommended
    speedup, drop = attempt.speedup, attempt.drop
    return [
        tag("b", f"{attempt.technique} ← use this") if chosen else attempt.technique,
        str(attempt.settings.get("engine", "")),
        marked,
        None if speedup is None else digits(speedup.mid),
        None if speedup is None else f"{digits(speedup.low)} to {digits(speedup.high)}",
        None if drop is None else f"{-100 * drop.mid:+.2f}",
        None if drop is None else f"{-100 * drop.high:+.2f} to {-100 * drop.low:+.2f}",
        size(attempt.artifact.num_bytes),
        seconds(attempt.seconds),
    ]


def _own_layouts(document: OptimizationDocument, attempt: Attempt) -> list[Attempt]:
    return [one for one in document.laid_out if one.of == attempt.candidate and one.whole is not None]


def _layouts(document: OptimizationDocument) -> Section | None:
    """Return the layouts of each variant that was laid out, the chosen one's first."""
    if document.layout is None:
        return None
    names = {attempt.candidate: _name(attempt) for attempt in document.attempts}
    others = [one for one in document.laid_out if one.of != document.layout.of]
    parts = []
    for layout in (document.layout, *others):
        whole = layout.whole
        came_to = None
        if whole is not None:
            ratio = whole.ratio
            came_to = (
                f"Together {digits(ratio.mid)} times ({digits(ratio.low)} to {digits(ratio.high)}) the items per second of the "
                f"model as given at {whole.before}."
            )
        parts += [tag("h3", names.get(layout.of, "the model as given")), _layout_table(layout), note(layout.says, ".")]
        parts += [note(came_to)] if came_to else []
    return Section(
        anchor="layout",
        title="Workers, threads and batch",
        parts=[*parts, note("The model alone: the other stages of a pipeline use the same cores.")],
    )


def _layout_table(layout: Attempt) -> Html:
    rows = [
        [
            f"{one.workers} x {one.threads}{' ← taken' if one.chosen else ''}", str(one.batch), digits(one.items_per_second),
            None if one.ratio is None else digits(one.ratio.mid),
            None if one.ratio is None else f"{digits(one.ratio.low)} to {digits(one.ratio.high)}", one.against or None,
        ]
        for one in layout.layouts
    ]  # fmt: skip
    head = ["workers x threads", "batch", "items per second", "times", "interval", "held against"]
    return table(head, rows, text_columns=1, caption="Layouts in the order in which they were timed")


def _worst(document: OptimizationDocument, pictures: Mapping[int, str]) -> Section | None:
    """Return the items that each variant lost, with what the model as given answered."""
    parts = []
    for attempt in document.attempts:
        if attempt.validation.worst:
            rows = [
                [
                    _picture_of(pictures, item.item), item.file or str(item.item), item.label or None, item.a or None,
                    item.b or None, f"{item.loss:.2g}",
                ]
                for item in attempt.validation.worst
            ]  # fmt: skip
            head = ["", "item", "right", "as given", "this variant", "lost"]
            shown = folded(
                f"{attempt.id} {_name(attempt)}: {attempt.verdict}",
                table(head, rows, text_columns=5, caption="Items lost"),
            )
            parts.append(shown)
    if not parts:
        return None
    about = note("Items of the golden set for which a variant did worse than the model as given, the worst first.")
    return Section(anchor="worst", title="Items that lost most", parts=[about, *parts])


def _picture_of(pictures: Mapping[int, str], item: int) -> Html | None:
    return tag("img", src=pictures[item], alt=f"item {item}") if item in pictures else None


def _gates(document: OptimizationDocument) -> Section | None:
    if not document.attempts:
        return None
    parts = []
    for attempt in document.attempts:
        known = " (known from the ledger)" if attempt.is_recalled else ""
        rows = [[gate.name, gate.outcome, gate.says] for gate in attempt.validation.gates]
        made = ", ".join(f"{key} {value}" for key, value in attempt.artifact.parameters.items())
        parts.append(
            folded(
                f"{attempt.id} {_name(attempt)}: {attempt.verdict}{known}",
                note(attempt.hypothesis),
                note(f"File {attempt.artifact.sha256[:16]}", f": {made}" if made else None),
                table(["gate", "outcome", "why"], rows, text_columns=3),
                _layer_errors(attempt),
            )
        )
    return Section(anchor="gates", title="Why", parts=parts)


def _layer_errors(attempt: Attempt) -> Html | None:
    """Return how far each tensor is from that of the model as given."""
    validation = attempt.validation
    if not validation.layers:
        return None
    rows = [
        [
            tag("b", f"{one.name} ← the first") if one.name == validation.diverges_at else one.name, one.operator,
            "NaN" if one.relative_l2 is None else f"{one.relative_l2:.2g}",
            None if one.sqnr_db is None else f"{one.sqnr_db:.1f}",
        ]
        for one in validation.layers
    ]  # fmt: skip
    head = ["tensor, in the order of computation", "made by", "relative L2", "SQNR, dB"]
    return table(head, rows, text_columns=2, caption="How far each layer is from that of the model as given")


def _skipped(document: OptimizationDocument) -> Section | None:
    if not document.skipped:
        return None
    said = bullets(f"{skipped.technique}: {skipped.why}" for skipped in document.skipped)
    return Section(anchor="skipped", title="Not tried", parts=[said])


def _decided(decisions: Sequence[Decision]) -> Section | None:
    if not decisions:
        return None
    rows = [[f"d{one.number}", one.action, one.plan, one.who, one.why] for one in decisions]
    return Section(
        anchor="decisions",
        title="Decisions",
        parts=[
            table(["", "action", "Plan", "who", "why"], rows, text_columns=5, caption="Which Plan took whose place")
        ],
    )


def _name(attempt: Attempt) -> str:
    return f"{attempt.technique} on {attempt.settings.get('engine', '')}"


def _is_front(document: OptimizationDocument, attempt: Attempt) -> bool:
    return attempt.candidate in document.front
