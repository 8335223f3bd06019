"""The page of a ledger: what was tried over time, accuracy against speed of all of it, and what was decided."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import decode_document
from headrace.base.formatting import pluralize
from headrace.base.plan import DEFAULT_ENGINE
from headrace.base.units import format_time
from headrace.report.charts import Chart, axis, plot
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, note, table, tag
from headrace.report.numbers import digits, seconds, show_value, size
from headrace.report.section import Section
from headrace.report.variants.naming import COLORS, GIVEN, badge, legend_of
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
    sections = [*_pictures(attempts), _history(attempts), _show_decisions(decisions)]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    return make_page(name, overview, [section for section in sections if section], footer)


def _cost(attempts: Sequence[Attempt]) -> str:
    took = show_value(sum(attempt.seconds for attempt in attempts), "seconds")
    priced = [attempt.money for attempt in attempts if attempt.money is not None]
    return f"All of it took {took}" + (f" and, as far as a price was given, cost {sum(priced):.2f}." if priced else ".")


@dataclasses.dataclass(frozen=True, slots=True)
class _Race:
    """What attempts were held against, and how: only those of one race are fast or slow by the same measure."""

    model: str
    """sha256 of the model as it was given."""
    against: bytes
    """The `[model]` table of the Plan in use, as JSON; of the model as given nothing in it."""
    threads: object
    """Of the model as given."""
    batch: int
    hardware: str

    @classmethod
    def of(cls, attempt: Attempt) -> _Race:
        """Return that of an attempt."""
        against = attempt.asked.against if attempt.asked else {}
        return cls(
            attempt.model, msgspec.json.encode(against, order="sorted"),
            None if against else attempt.validation.a.variant.get("threads"), attempt.validation.batch, attempt.hardware,
        )  # fmt: skip

    def in_use(self) -> Mapping[str, Any]:
        """Return the `[model]` table of the Plan in use; empty: the model as given."""
        return decode_document(self.against, dict[str, Any])

    def says(self, machine: str) -> str:
        """Return it in words.

        Args:
            machine: In words; empty: known by its fingerprint alone.
        """
        used = self.in_use()
        name = (
            f"{Path(str(used['artifact'])).name} on {used.get('engine', DEFAULT_ENGINE)}"
            if used
            else "the model as given"
        )
        settings = {
            "threads": used.get("threads", self.threads), "input_side": used.get("input_side"), **used.get("options", {}),
        }  # fmt: skip
        told = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
        place = machine or (f"machine {self.hardware}" if self.hardware else "a machine that is not told")
        return f"held against {name}{f' ({told})' if told else ''}, {pluralize(self.batch, 'item')} a call, on {place}"


def _pictures(attempts: Sequence[Attempt]) -> list[Section]:
    """Return accuracy against speed, one picture for each thing that attempts were held against."""
    races: dict[_Race, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.speedup is not None and attempt.drop is not None:
            races[_Race.of(attempt)].append(attempt)
    if not races:
        return []
    told = note(
        "Up and to the right is better. Speeds are over what was in use at the time, so attempts share a picture only where "
        "that, the items of a call and the machine were the same; points are won or lost against the model as given. 0 is what "
        "was in use, drawn where its own points are known; other numbers are those of the history. What was accepted has a "
        "ring; a triangle is further down than the picture goes."
    )
    parts: list[Html] = [told]
    charts = []
    for number, (race, own) in enumerate(races.items()):
        machine = next((one.asked.machine for one in own if one.asked and one.asked.machine), "")
        charts.append(_picture(number, race, own, _change_in_use(race, attempts)))
        parts += [charts[-1].element(), note(f"{pluralize(len(own), 'attempt')}, {race.says(machine)}")]
    return [Section(anchor="pareto", title="Accuracy and speed", parts=parts, charts=charts)]


def _change_in_use(race: _Race, attempts: Sequence[Attempt]) -> float | None:
    """Return the points of what was in use against the model as given; None if no attempt tells them."""
    used = race.in_use()
    if not used:
        return 0.0
    same = (
        -100 * one.drop.mid
        for one in attempts
        if one.drop is not None and (one.model, one.artifact.sha256) == (race.model, used.get("sha256"))
        and all(one.settings.get(key) == used.get(key) for key in ("engine", "options", "input_side"))
    )  # fmt: skip
    return next(same, None)


def _picture(number: int, race: _Race, attempts: Sequence[Attempt], change_in_use: float | None) -> Chart:
    floor = floor_of(attempts, max(one.asked.max_drop if one.asked else _MAX_DROP for one in attempts))
    series = []
    if change_in_use is not None:
        series.append(mark("0", 1.0, change_in_use, [["in use", ""]], GIVEN, False))
    for attempt in reversed(attempts):  # the newest on top
        assert attempt.speedup is not None
        assert attempt.drop is not None
        change = -100 * attempt.drop.mid
        tip = [
            [f"{attempt.id} {attempt.name}", attempt.verdict],
            ["times as fast", f"{attempt.speedup:.2f}"],
            ["points", f"{change:+z.2f}"],
        ]
        accepted = attempt.verdict == "accept"
        point = mark(attempt.id, attempt.speedup.mid, change, tip, COLORS[attempt.verdict], accepted)
        series.append(point if floor is None or change >= floor else below(point, floor))
    file = Path(attempts[-1].validation.a.name.partition("@")[0]).name
    legend = legend_of("in use")
    if change_in_use is None:
        del legend["in use"]
    return plot(
        f"pareto-{number}", f"{file} ({race.model[:8]})", "each attempt as a point, times as fast and points won or lost",
        series,
        x_axis=axis("times as fast as what was in use", low=0), y_axis=axis(low=floor),
        upright="points won or lost", height=280, legend=legend,
    )  # fmt: skip


def _history(attempts: Sequence[Attempt]) -> Section | None:
    if not attempts:
        return None
    head = ["", "when", "what", "verdict", "why", "times as fast", "points", "size", "took", "money"]
    rows = [
        [
            attempt.id, format_time(attempt.created_unix_seconds), attempt.name, badge(attempt.verdict, attempt.gate),
            attempt.says,
            None if attempt.speedup is None else digits(attempt.speedup.mid),
            None if attempt.drop is None else f"{-100 * attempt.drop.mid:+z.2f}", size(attempt.artifact.num_bytes),
            seconds(attempt.seconds), None if attempt.money is None else f"{attempt.money:.2g}",
        ]
        for attempt in attempts
    ]  # fmt: skip
    return Section(
        anchor="history",
        title="What was tried",
        parts=[table(head, rows, text_columns=5, caption="Attempts over time")],
    )


def _show_decisions(decisions: Sequence[Decision]) -> Section | None:
    if not decisions:
        return None
    rows = [
        [f"d{one.number}", format_time(one.created_unix_seconds), one.action, one.plan, one.who, one.why]
        for one in decisions
    ]
    head = ["", "when", "action", "Plan", "who", "why"]
    parts = [table(head, rows, text_columns=6, caption="Which Plan took whose place")]
    return Section(anchor="decisions", title="Decisions", parts=parts)
