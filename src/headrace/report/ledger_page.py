"""The page of a ledger: what was tried over time, accuracy against speed of all of it, and what was decided."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence

from headrace.report.charts import Chart, axis, plot
from headrace.report.frame import framed
from headrace.report.markup import DASH, note, table, tag
from headrace.report.numbers import digits, seconds, size
from headrace.report.section import Section
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import Attempt
from headrace.runs.run_folder import headrace_version

_COLORS = {"accept": "var(--c3)", "inconclusive": "var(--muted)", "reject": "var(--c6)"}
_LEGEND = {"accepted": _COLORS["accept"], "not decided": _COLORS["inconclusive"], "rejected": _COLORS["reject"]}


def render_ledger(name: str, attempts: Sequence[Attempt], decisions: Sequence[Decision]) -> str:
    """Return the page of a ledger as an HTML document.

    Args:
        name: Of the ledger.
        attempts: The newest first.
        decisions: The newest first.
    """
    accepted = sum(attempt.verdict == "accept" for attempt in attempts)
    overview = tag(
        "header",
        tag("p", "headrace · ledger ", tag("b", name), class_="kicker"),
        tag("h1", f"{len(attempts):,} attempts, {accepted:,} accepted, {len(decisions):,} decisions"),
        tag("p", _cost(attempts)),
    )
    sections = [*_pictures(attempts), _history(attempts), _decided(decisions)]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    return framed(name, overview, [section for section in sections if section], footer)


def _cost(attempts: Sequence[Attempt]) -> str:
    took = seconds(sum(attempt.seconds for attempt in attempts))
    priced = [attempt.money for attempt in attempts if attempt.money is not None]
    return f"All of it took {took}" + (f" and, as far as a price was given, cost {sum(priced):.2f}." if priced else ".")


def _pictures(attempts: Sequence[Attempt]) -> list[Section]:
    """Return accuracy against speed for each model as given."""
    of_model: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.speedup is not None and attempt.drop is not None:
            of_model[attempt.model].append(attempt)
    charts = [_picture(number, model, own) for number, (model, own) in enumerate(of_model.items())]
    if not charts:
        return []
    told = note(
        "One picture a model. Up and to the right is better; the model as given is at one time as fast, no points lost."
    )
    parts = [told, *(chart.element() for chart in charts)]
    return [Section(anchor="pareto", title="Accuracy and speed", parts=parts, charts=charts)]


def _picture(number: int, model: str, attempts: Sequence[Attempt]) -> Chart:
    series = []
    for attempt in attempts:
        assert attempt.speedup is not None
        assert attempt.drop is not None
        change = -100 * attempt.drop.mid
        tip = [
            [f"{attempt.id} {_name(attempt)}", attempt.verdict],
            ["times as fast", f"{attempt.speedup.mid:.2f} ({attempt.speedup.low:.2f} to {attempt.speedup.high:.2f})"],
            ["points", f"{change:+.2f}"],
        ]
        series.append(
            {
                "type": "scatter", "symbolSize": 9, "itemStyle": {"color": _COLORS[attempt.verdict]},
                "data": [{"value": [attempt.speedup.mid, change], "tip": tip}],
            }
        )  # fmt: skip
    return plot(
        f"pareto-{number}", f"Model {model[:16]}", "each attempt as a point, times as fast and points won or lost", series,
        x_axis=axis("times as fast as the model as given", low=0), y_axis=axis(), upright="points won or lost", height=280,
        legend=_LEGEND,
    )  # fmt: skip


def _history(attempts: Sequence[Attempt]) -> Section | None:
    if not attempts:
        return None
    head = ["", "when", "what", "verdict", "why", "times as fast", "points", "size", "took", "money"]
    rows = [
        [
            attempt.id, _when(attempt.created_unix_seconds), _name(attempt),
            f"{attempt.verdict}{f' by {attempt.gate}' if attempt.gate else ''}", attempt.says,
            None if attempt.speedup is None else digits(attempt.speedup.mid),
            None if attempt.drop is None else f"{-100 * attempt.drop.mid:+.2f}", size(attempt.artifact.num_bytes),
            seconds(attempt.seconds), None if attempt.money is None else f"{attempt.money:.2g}",
        ]
        for attempt in attempts
    ]  # fmt: skip
    return Section(
        anchor="history",
        title="What was tried",
        parts=[table(head, rows, text_columns=5, caption="Attempts over time")],
    )


def _decided(decisions: Sequence[Decision]) -> Section | None:
    if not decisions:
        return None
    rows = [
        [f"d{one.number}", _when(one.created_unix_seconds), one.action, one.plan, one.who, one.why] for one in decisions
    ]
    head = ["", "when", "action", "Plan", "who", "why"]
    parts = [table(head, rows, text_columns=6, caption="Which Plan took whose place")]
    return Section(anchor="decisions", title="Decisions", parts=parts)


def _name(attempt: Attempt) -> str:
    return f"{attempt.technique} on {attempt.settings.get('engine', '')}"


def _when(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M")
