"""The page of a ledger: what was tried over time, accuracy against speed of all of it, and what was decided."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from headrace.report.charts import Chart, axis, plot
from headrace.report.frame import framed
from headrace.report.markup import DASH, note, table, tag
from headrace.report.numbers import digits, seconds, size, written
from headrace.report.section import Section
from headrace.report.variants.naming import COLORS, GIVEN, badge, legend_of, name_of
from headrace.report.variants.pareto import below, floor_of, mark
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import Attempt
from headrace.runs.run_folder import headrace_version

#: Of attempts that did not keep what they were asked.
_MAX_DROP = 0.005


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
    took = written(sum(attempt.seconds for attempt in attempts), "seconds")
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
        "One picture a model. Up and to the right is better; 0 is what was in use, the model as given unless a Plan named "
        "another variant; other numbers are those of the history. What was accepted has a ring; a triangle is further down "
        "than the picture goes. Each was held against what was in use in minutes of its own, points against the model as given."
    )
    parts = [told, *(chart.element() for chart in charts)]
    return [Section(anchor="pareto", title="Accuracy and speed", parts=parts, charts=charts)]


def _picture(number: int, model: str, attempts: Sequence[Attempt]) -> Chart:
    floor = floor_of(attempts, max(one.asked.max_drop if one.asked else _MAX_DROP for one in attempts))
    series = [mark("0", 1.0, 0.0, [["in use", ""]], GIVEN, False)]
    for attempt in reversed(attempts):  # the newest on top
        assert attempt.speedup is not None
        assert attempt.drop is not None
        change = -100 * attempt.drop.mid
        tip = [
            [f"{attempt.id} {name_of(attempt)}", attempt.verdict],
            ["times as fast", f"{attempt.speedup.mid:.2f} ({attempt.speedup.low:.2f} to {attempt.speedup.high:.2f})"],
            ["points", f"{change:+.2f}"],
        ]
        accepted = attempt.verdict == "accept"
        point = mark(attempt.id, attempt.speedup.mid, change, tip, COLORS[attempt.verdict], accepted)
        series.append(point if floor is None or change >= floor else below(point, floor))
    file = Path(attempts[-1].validation.a.name.partition("@")[0]).name
    return plot(
        f"pareto-{number}", f"{file} ({model[:8]})", "each attempt as a point, times as fast and points won or lost", series,
        x_axis=axis("times as fast as what was in use", low=0), y_axis=axis(low=floor),
        upright="points won or lost", height=280, legend=legend_of("in use"),
    )  # fmt: skip


def _history(attempts: Sequence[Attempt]) -> Section | None:
    if not attempts:
        return None
    head = ["", "when", "what", "verdict", "why", "times as fast", "points", "size", "took", "money"]
    rows = [
        [
            attempt.id, _when(attempt.created_unix_seconds), name_of(attempt), badge(attempt.verdict, attempt.gate),
            attempt.says,
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


def _when(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M")
