"""What a lead asks on Monday, answered in words from what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.base.formatting import pluralize
from headrace.base.units import format_time
from headrace.monitor.board.links import Links
from headrace.monitor.board.reading import name_for_people
from headrace.monitor.board.records import Advice, Record, RunRow
from headrace.report.markup import Html, fold, join, sentence, tag
from headrace.runs.formats.incident import IncidentDocument

WEEK_SECONDS = 7 * 86_400.0
#: A change of the throughput below this is none: runs of one Plan differ by as much.
_SAME = 0.05
#: Answers of one kind that are listed.
_MOST = 5
#: Of incidents, what somebody wanted to see: nothing need have been broken.
_ASKED_FOR = frozenset({"asked", "signal"})

Mood = Literal["good", "bad", "calm"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One question with its answer."""

    question: str
    mood: Mood
    lines: Sequence[Html]


def answer_all(
    records: Sequence[Record], advice: Mapping[str, Advice | None], now: float, links: Links
) -> list[Answer]:
    """Return the answers, in the order in which they are asked.

    Args:
        records: The newest first.
        advice: {id of a run: what to do next}, as far as it is known.
        now: Unix time.
        links: Of the page.
    """
    return [
        _what_runs(records),
        _what_changed(records, now, links),
        _what_broke(records, now, links),
        _what_was_decided(records, now, links),
        _what_next(records, advice, links),
    ]


def runs_of(records: Sequence[Record]) -> list[tuple[Record, RunRow]]:
    """Return the runs; those of workers are counted each."""
    return [(record, record.run) for record in records if record.run is not None]


def _what_runs(records: Sequence[Record]) -> Answer:
    going = [(record, run) for record, run in runs_of(records) if run.state == "runs"]
    lines = [
        join(
            [
                tag("b", run.pipeline),
                " since ",
                format_time(run.began),
                ": ",
                tag("span", f"{run.delivered:,} delivered", data_live=record.id),
                _emulated(run),
            ]
        )
        for record, run in going[:_MOST]
    ]
    return Answer("What runs now?", "good" if lines else "calm", lines or [_text("Nothing runs in these folders.")])


def _what_changed(records: Sequence[Record], now: float, links: Links) -> Answer:
    lines: list[Html] = []
    mood: Mood = "calm"
    for pipeline, runs in _by_pipeline(records).items():
        measured = _join_workers(runs)
        if not measured or measured[0][1].began < now - WEEK_SECONDS:
            continue
        newest, run, after = measured[0]
        earlier = next((one for one in measured[1:] if one[1].host == run.host), None)
        if earlier is None:
            lines.append(_text(f"{pipeline}: {after:.3g}/s; there is no earlier run to compare it with"))
            continue
        before, run_before, rate_before = earlier
        ratio = after / rate_before
        word = "as before" if abs(ratio - 1) <= _SAME else f"x{ratio:.2f}"
        mood = "bad" if ratio < 1 - _SAME else "good" if ratio > 1 + _SAME and mood != "bad" else mood
        plan = "" if run.plan_id == run_before.plan_id else ", with another Plan"
        said = f"{pipeline}: {rate_before:.3g}/s, now {after:.3g}/s ({word}{plan}; one run each, which proves little) "
        link = None if run.is_worker or run_before.is_worker else links.compare(before, newest)
        lines.append(join([said, link]))
    return Answer("What changed this week?", mood, lines[:_MOST] or [_text("No run ended this week.")])


def _join_workers(runs: Sequence[tuple[Record, RunRow]]) -> list[tuple[Record, RunRow, float]]:
    """Return the runs that are measured with their throughputs, the newest first; the workers of one folder are one run."""
    teams: dict[Path, list[tuple[Record, RunRow]]] = {}
    for record, run in runs:
        teams.setdefault(record.path.parent if run.is_worker else record.path, []).append((record, run))
    found = []
    for team in teams.values():
        rate = _compute_rate([run for _, run in team])
        if rate:
            found.append((*team[0], rate))
    return found


def _compute_rate(team: Sequence[RunRow]) -> float | None:
    """Return what workers delivered per second together, from the first one's beginning to the last one's end."""
    if len(team) == 1:
        return team[0].throughput
    ends = [run.ended for run in team]
    if None in ends:  # some still run, or were killed
        return None
    seconds = max(end for end in ends if end is not None) - min(run.began for run in team)
    return sum(run.delivered for run in team) / seconds if seconds > 0 else None


def _what_broke(records: Sequence[Record], now: float, links: Links) -> Answer:
    recent = [record for record in records if record.at > now - WEEK_SECONDS]
    lines = [
        join([links.to(record, record.incident.pipeline), f": {_describe_incident(record.incident)}"])
        for record in recent
        if record.incident is not None and record.incident.trigger.kind not in _ASKED_FOR
    ]
    for record in recent:
        lines += [join([links.to(record, record.name), f": {alarm}"]) for alarm in record.alarms]
    watched = {record.path for record in recent if record.kind == "workers" and record.alarms}
    for record, run in runs_of(recent):
        if run.state == "killed" and record.path.parent in watched:
            continue  # by those who watched over it, with the cause
        if run.state in ("failed", "killed"):
            lines.append(join([links.to(record, run.pipeline), f": the run {record.name} {_END[run.state]}"]))
        elif run.is_bad:
            counted = f"{run.delivered:,} delivered, {run.failed:,} failed, {run.retried:,} to be tried again"
            lines.append(join([links.to(record, run.pipeline), f": {counted}"]))
    lines += [_text(f"{record.name} cannot be read: {record.trouble}") for record in recent if record.trouble]
    more = [_text(f"and {len(lines) - _MOST} more below")] if len(lines) > _MOST else []
    return Answer("What broke this week?", "bad" if lines else "good", lines[:_MOST] + more or [_text("Nothing.")])


def _describe_incident(incident: IncidentDocument) -> str:
    """Return what happened; where nothing was found beside it, what was noticed first."""
    return incident.says if incident.changes else f"{sentence(incident.trigger.says)} {incident.says}"


_END = {"failed": "ended with an error", "killed": "was killed: it says that it runs, and its process is gone"}


def _what_was_decided(records: Sequence[Record], now: float, links: Links) -> Answer:
    ledgers = [(record, record.ledger) for record in records if record.ledger is not None]
    lines: list[Html] = []
    for record, ledger in ledgers:
        for decision in ledger.decisions:
            if decision.created_unix_seconds > now - WEEK_SECONDS:
                act = "was accepted" if decision.action == "accept" else "was rolled back"
                said = f": {name_for_people(Path(decision.plan))} {act} by {decision.who}: {decision.why}"
                lines.append(join([links.to(record, f"d{decision.number}"), said]))
        tried = [one for one in ledger.attempts if one.created_unix_seconds > now - WEEK_SECONDS]
        if tried:
            accepted = sum(one.verdict == "accept" for one in tried)
            said = f": {pluralize(len(tried), 'attempt')}, {accepted} of them accepted"
            lines.append(join([links.to(record, record.name), said]))
    compared = [record for record in records if record.comparison is not None and record.at > now - WEEK_SECONDS]
    lines += [join([tag("b", record.name), f": {describe_comparison(record)}"]) for record in compared]
    none = (
        "No ledger was found: headrace tune, optimize and loop keep one, runs/ledger.sqlite unless you say otherwise."
        if not ledgers
        else "Nothing this week."
    )
    return Answer("What was tried and decided?", "calm", lines[:_MOST] or [_text(none)])


def describe_comparison(record: Record) -> str:
    """Return what a comparison that was written to a file came to."""
    found = record.comparison
    assert found is not None
    return f"A is {found.a.name}, B is {found.b.name}. {sentence(found.says[0] if found.says else found.verdict)}"


def _what_next(records: Sequence[Record], advice: Mapping[str, Advice | None], links: Links) -> Answer:
    lines = []
    for pipeline, runs in _by_pipeline(records).items():
        found = next(((record, told) for record, _ in runs if (told := advice.get(record.id)) is not None), None)
        if found is not None:
            lines.append(_show_advice(pipeline, *found, links))
    # People are waited for: a diagnosis can wait.
    waiting = [_ask_for(record, links) for record in records if record.command]
    if links.is_served and not advice and runs_of(records):
        lines = [_text("The newest run of each pipeline is being looked at; what to do appears here.")]
    none = "Profile a pipeline (headrace profile jobs.py:pipeline), and the diagnosis says here what to do."
    return Answer("What should be done next?", "calm", [*waiting[:_MOST], *lines[:_MOST]] or [_text(none)])


def _show_advice(pipeline: str, record: Record, told: Advice, links: Links) -> Html:
    typed = [told.command] if told.command else [f"--set {setting}" for setting in told.settings]
    more = [tag("p", told.why) if told.why else None]
    if links.is_served:
        more.append(tag("p", links.to(record, "The report of this run"), " has the evidence."))
    return join(
        [
            tag("b", pipeline),
            f": {told.says}",
            f" {told.to_do}" if told.to_do else None,
            *(part for text in typed for part in (" ", tag("code", text))),
            fold("Why", *more) if told.why else None,
        ]
    )


def _ask_for(record: Record, links: Links) -> Html:
    says = record.facts.get("says", "")
    return join([tag("b", links.to(record, record.name)), f": {says}. " if says else ": ", tag("code", record.command)])


def _by_pipeline(records: Sequence[Record]) -> dict[str, list[tuple[Record, RunRow]]]:
    grouped: dict[str, list[tuple[Record, RunRow]]] = {}
    for record, run in runs_of(records):
        grouped.setdefault(run.pipeline or "(no name)", []).append((record, run))
    return grouped


def _emulated(run: RunRow) -> Html | None:
    return tag("small", " (emulated device)") if run.is_emulated else None


def _text(text: str) -> Html:
    return join([text])
