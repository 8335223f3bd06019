"""Draws the board: the answers first, then runs over time, incidents, the ledger, and all that was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.formatting import pluralize
from headrace.base.units import format_time
from headrace.monitor.board.answers import Answer, answer_all, runs_of
from headrace.monitor.board.finding import Found
from headrace.monitor.board.links import Links
from headrace.monitor.board.reading import name_for_people
from headrace.monitor.board.records import Advice, Record, RunRow
from headrace.report.charts import PALETTE, Chart, axis, plot, vertical_marks
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, fold, join, note, sentence, table, tag
from headrace.report.numbers import count, moment, rate, seconds, show_value
from headrace.report.section import Section
from headrace.runs.run_folder import headrace_version

#: Rows of a table; more are folded away.
_MOST_ROWS = 12
_BADGES = {"runs": "warning", "finished": "ok", "interrupted": "plain", "failed": "failed", "killed": "failed"}
_MOODS = {"good": "ok", "bad": "found", "calm": "open"}


def render_board(
    name: str, found: Found, advice: Mapping[str, Advice | None], now: float, *, script: Html | None = None
) -> str:
    """Return the board as an HTML document.

    Args:
        name: Of what was looked through.
        found: What there is.
        advice: {id of a run: what to do next}.
        now: Unix time.
        script: Keeps the page new where it is served; None: it is a file, and links to nothing.
    """
    records, links = found.records, Links(is_served=script is not None)
    answers = answer_all(records, advice, now, links)
    sections = [
        _runs(records, links),
        _incidents(records, links),
        _comparisons(records),
        _ledgers(records, links),
        _others(records, links),
        _not_shown(found),
        _words(),
    ]
    footer = (
        f"Made by headrace {headrace_version()} at {format_time(now)}. A dash ({DASH}) means not measured, never zero."
    )
    drawn = [section for section in sections if section]
    return make_page(f"Board of {name}", _overview(name, records, answers), drawn, footer, script=script)


def _overview(name: str, records: Sequence[Record], answers: Sequence[Answer]) -> Html:
    return tag(
        "header",
        tag("p", "headrace · board of ", tag("b", name), class_="kicker"),
        tag("h1", _headline(records, answers)),
        tag(
            "div",
            *(
                tag(
                    "div",
                    tag("p", answer.question, class_="verdict"),
                    tag("ul", *(tag("li", line) for line in answer.lines)),
                    class_=f"finding {_MOODS[answer.mood]}",
                )
                for answer in answers
            ),
            class_="answers",
        ),
    )


def _headline(records: Sequence[Record], answers: Sequence[Answer]) -> str:
    runs = runs_of(records)
    going = sum(run.state == "runs" for _, run in runs)
    broke = next(answer for answer in answers if answer.question.startswith("What broke"))
    said = f"{pluralize(len(runs), 'run')}, {going or 'none'} of them at work now"
    return f"{said}; nothing broke this week" if broke.mood == "good" else f"{said}; look at what broke"


def _runs(records: Sequence[Record], links: Links) -> Section | None:
    runs = runs_of(records)
    if not runs:
        return Section(
            anchor="runs",
            title="Runs",
            parts=[
                note(
                    "No run folder was found. Commands write one with -o: headrace profile jobs.py:pipeline -o runs/first"
                )
            ],
        )
    charts = _charts(records)
    head = ["run", "pipeline", "Plan", "state", "began", "delivered", "failed", "throughput", "p50", "p99"]
    rows = [_run_row(record, run, links) for record, run in runs]
    listed = _folded(head, rows, "Runs, the newest first", text_columns=5)
    if links.is_served:
        button = tag("p", tag("button", "Compare the two that are ticked", type="submit"))
        listed = tag("form", button, listed, action="/compare", method="get")
    explained = note(
        "One dot for each run. " if charts else None,
        "Tick two runs to compare what they recorded." if links.is_served else None,
    )
    grid = tag("div", *(chart.element() for chart in charts), class_="grid")
    return Section(anchor="runs", title="Runs", parts=[explained, grid, listed], charts=charts)


def _run_row(record: Record, run: RunRow, links: Links) -> list[str | None]:
    tick = tag("input", type="checkbox", name="run", value=record.id, aria_label=f"compare {record.name}")
    name = join([tick if links.is_served else None, " ", links.to(record, record.name)])
    delivered = tag("span", f"{run.delivered:,}", data_live=record.id) if run.state == "runs" else count(run.delivered)
    return [
        name,
        join([run.pipeline or DASH, tag("small", " emulated") if run.is_emulated else None]),
        tag("code", run.plan_id or DASH),
        tag("span", run.state, class_=f"badge {_BADGES[run.state]}"),
        moment(run.began),
        delivered,
        count(run.failed),
        rate(run.throughput),
        seconds(run.latency_p50),
        seconds(run.latency_p99),
    ]


def _charts(records: Sequence[Record]) -> list[Chart]:
    """Return throughput and latency over the days, with decisions and incidents marked."""
    runs = [(record, run) for record, run in runs_of(records) if run.throughput and not run.is_worker]
    if len({run.began for _, run in runs}) < 2:  # one dot shows nothing that the table does not
        return []
    newest = max(run.began for _, run in runs)
    unit, length = _time_unit(newest - min(run.began for _, run in runs))
    marks = [(record.at, "incident") for record in records if record.incident is not None and record.at <= newest]
    for record in records:
        decisions = record.ledger.decisions if record.ledger is not None else ()
        marks += [(one.created_unix_seconds, f"d{one.number}") for one in decisions]
    time_axis = _TimeAxis(newest, unit, length, [((at - newest) / length, label) for at, label in marks])
    charts = [_over_time("throughput", "Throughput", "items/s", runs, time_axis, lambda run: run.throughput)]
    if len({run.began for _, run in runs if run.latency_p99 is not None}) > 1:  # short runs have too few jobs
        charts.append(_over_time("latency", "Latency, p99", "seconds", runs, time_axis, lambda run: run.latency_p99))
    return charts


def _time_unit(span_seconds: float) -> tuple[str, float]:
    """Return the unit in which people count so much time, and its seconds."""
    units = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0}
    return next(((name, length) for name, length in units.items() if span_seconds > 2 * length), ("seconds", 1.0))


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    newest: float
    unit: str
    length: float
    marks: Sequence[tuple[float, str]]


def _over_time(
    name: str,
    title: str,
    unit: str,
    runs: Sequence[tuple[Record, RunRow]],
    time: _TimeAxis,
    value: Callable[[RunRow], float | None],
) -> Chart:
    pipelines = list(dict.fromkeys(run.pipeline for _, run in runs))
    legend = {pipeline or "(no name)": PALETTE[index % len(PALETTE)] for index, pipeline in enumerate(pipelines)}
    series: list[dict[str, Any]] = []
    for pipeline in pipelines:
        dots = [
            {
                "value": [(run.began - time.newest) / time.length, value(run)],
                "tip": _tip(record, run, show_value(value(run), unit)),
            }
            for record, run in runs
            if run.pipeline == pipeline and value(run) is not None
        ]
        color = legend[pipeline or "(no name)"]
        series.append({"type": "scatter", "symbolSize": 9, "itemStyle": {"color": color}, "data": dots})
    if time.marks:
        series[0]["markLine"] = vertical_marks(time.marks)
    return plot(
        f"board-{name}", title, f"{title.lower()} of each run", series,
        x_axis=axis(f"{time.unit} before the newest run", high=0.0), y_axis=axis(low=0.0), upright=unit, legend=legend,
    )  # fmt: skip


def _tip(record: Record, run: RunRow, shown: str | None) -> list[list[str]]:
    return [[record.name, shown or DASH], ["began", format_time(run.began)], ["Plan", run.plan_id]]


def _incidents(records: Sequence[Record], links: Links) -> Section | None:
    rows = [
        [
            links.to(record, record.name),
            record.incident.pipeline,
            moment(record.at),
            record.incident.trigger.says,
            record.incident.says,
            record.incident.changes[0].to_do if record.incident.changes else None,
        ]
        for record in records
        if record.incident is not None
    ]
    if not rows:
        return None
    head = ["incident", "pipeline", "when", "noticed by", "what happened", "what to do"]
    return Section(anchor="incidents", title="Incidents", parts=[_folded(head, rows, "Incidents", text_columns=6)])


def _comparisons(records: Sequence[Record]) -> Section | None:
    rows = [
        [
            record.name, one.a.name, one.b.name, moment(record.at),
            tag("span", _VERDICTS[one.verdict], class_=f"badge {_VERDICT_BADGES[one.verdict]}"),
            join(part for line in one.says for part in (sentence(line), " ")),
        ]
        for record in records
        if (one := record.comparison) is not None
    ]  # fmt: skip
    if not rows:
        return None
    head = ["file", "A", "B", "when", "verdict on B", "what it says"]
    shown = _folded(head, rows, "Comparisons, the newest first", text_columns=6)
    return Section(anchor="comparisons", title="Comparisons", parts=[shown])


_VERDICTS = {
    "better": "better", "worse": "worse", "no_difference": "no difference", "underpowered": "cannot tell",
}  # fmt: skip
_VERDICT_BADGES = {"better": "ok", "worse": "failed", "no_difference": "plain", "underpowered": "warning"}


def _ledgers(records: Sequence[Record], links: Links) -> Section | None:
    parts = []
    for record in records:
        if record.ledger is None:
            continue
        decided = [
            [
                f"d{one.number}",
                moment(one.created_unix_seconds),
                one.action,
                name_for_people(Path(one.plan)),
                one.who,
                one.why,
            ]
            for one in record.ledger.decisions
        ]
        tried = [
            [
                one.id,
                moment(one.created_unix_seconds),
                one.technique,
                one.verdict,
                one.says,
                None if one.speedup is None else f"x{one.speedup.mid:.2f}",
            ]
            for one in record.ledger.attempts
        ]
        parts.append(tag("h3", links.to(record, record.name)))
        if decided:
            parts.append(
                _folded(["decision", "when", "what", "Plan", "by", "why"], decided, "Decisions", text_columns=6)
            )
        if tried:
            parts.append(
                _folded(["attempt", "when", "technique", "verdict", "says", "speed"], tried, "Attempts", text_columns=6)
            )
        if not decided and not tried:
            held = pluralize(len(record.ledger.predictions), "prediction")
            parts.append(note(f"No attempts and no decisions yet; {held}."))
    return Section(anchor="ledger", title="Tried and decided", parts=parts) if parts else None


def _others(records: Sequence[Record], links: Links) -> Section | None:
    rows = []
    for record in records:
        if any((record.run, record.incident, record.ledger, record.comparison, record.trouble)):
            continue
        listed = "; ".join(f"{what}: {value}" for what, value in record.facts.items())
        facts = record.facts.get("says", listed)  # a sentence, where there is one
        typed = tag("code", record.command) if record.command else None
        says = join([facts, "" if facts.endswith(".") else ".", " " if typed else None, typed])
        rows.append([record.kind, links.to(record, record.name), moment(record.at), says])
    if not rows:
        return None
    return Section(
        anchor="others",
        title="Drift, reviews, loops, canaries, history",
        parts=[_folded(["kind", "name", "changed", "what it says"], rows, "Other folders", text_columns=4)],
    )


def _not_shown(found: Found) -> Section | None:
    troubles = [f"{record.kind} {record.name}: {record.trouble}" for record in found.records if record.trouble]
    lines = [*troubles, *found.passed_over]
    return Section(anchor="not-shown", title="Not shown", parts=[bullets(lines)]) if lines else None


_WORDS = {
    "pipeline": "what is done with each item: where items come from, the stages, where results go.",
    "run": "one time that a pipeline was started, until it ended.",
    "Plan": "how a pipeline is run: how many workers a stage has, how many items in a batch, which variant of the model. "
    "Each Plan has an id; two runs with the same id were run alike.",
    "throughput": "items that were done in a second.",
    "p50, p99": "half of the items took no longer than p50, 99 of 100 no longer than p99.",
    "incident": "something went wrong, or slow, and a recording of the minutes before was kept.",
    "ledger": "the book of what was tried to make a pipeline better: predicted, measured, accepted or taken back.",
    "drift": "images or answers are no longer what they were when somebody last looked.",
    "review": "people look at a sample of the answers; from that follows how many of all are right.",
    "interval": "what stands in brackets: the true value lies in it with 95 % confidence.",
    "emulated device": "the model's device was simulated: times are settings, not measurements.",
}


def _words() -> Section:
    listed = tag("ul", *(tag("li", tag("b", word), f": {meaning}") for word, meaning in _WORDS.items()))
    return Section(anchor="words", title="What the words mean", parts=[fold("Show them", listed)])


def _folded(head: Sequence[str], rows: Sequence[Sequence[str | None]], caption: str, *, text_columns: int) -> Html:
    """Return a table whose later rows open on a click."""
    first = table(head, rows[:_MOST_ROWS], text_columns=text_columns, caption=caption)
    # What is text alone is read, not compared: on a phone its cells stand below one another.
    kind = "stacked" if text_columns == len(head) else None
    if len(rows) <= _MOST_ROWS:
        return tag("div", first, class_=kind)
    rest = table(head, rows[_MOST_ROWS:], text_columns=text_columns, caption=f"{caption}, continued")
    return tag("div", first, fold(f"{len(rows) - _MOST_ROWS:,} more", rest), class_=kind)
