"""The ledger for a terminal: predicted beside measured."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, pluralize, quote_arg, wrap_lines
from headrace.base.plan import DEFAULT_ENGINE
from headrace.base.toml import parse_toml
from headrace.base.units import format_number, format_time
from headrace.cli.whatif_text import Shown, how_to_prove, ratio_text, what_was_said
from headrace.ledger.remedies import would_change

if TYPE_CHECKING:
    from headrace.runs.formats.decisions import Decision
    from headrace.runs.formats.events import Event, EventKind
    from headrace.runs.formats.ledger import PredictionEntry
    from headrace.runs.formats.optimization import Attempt
    from headrace.runs.formats.prediction import TrackRecord

_COLUMNS = ("id", "when", "predicted", "measured", "error", "change")


def listed(entries: Sequence[PredictionEntry], record: TrackRecord) -> str:
    """Return predictions as a table, and how good the measured ones were."""
    if not entries:
        return "no prediction\n"
    rows = [_COLUMNS, *(_row(entry) for entry in entries)]
    return "\n".join([*_table(rows), "", *wrap_lines([record.says])]) + "\n"


def shown(entry: PredictionEntry, ledger_option: str | None) -> str:
    """Return one prediction with all that was said, and what came of it or how to find out.

    Args:
        entry: With its document.
        ledger_option: The ledger's file as the user gave it, for the commands to type.
    """
    assert entry.document is not None
    head = f"{entry.id}, written {format_time(entry.created_unix_seconds)} by headrace {entry.headrace_version}"
    below = wrap_lines([_came_of(entry)])
    if entry.measured is None:
        # The ledger knows the run's name, not where it is.
        below += how_to_prove(entry.document, Shown(run_folder="RUN", ledger=None, ledger_option=ledger_option))
    return "\n".join([head, "", what_was_said(entry.document), "", *below]) + "\n"


def attempts_listed(attempts: Sequence[Attempt]) -> str:
    """Return attempts as a table."""
    rows = [("id", "when", "technique", "engine", "expected", "times as fast", "drop, points", "verdict")]
    for attempt in attempts:
        speed = "-" if attempt.speedup is None else f"{attempt.speedup.mid:.2f}"
        drop = "-" if attempt.drop is None else f"{100 * attempt.drop.mid:+z.2f}"
        engine, when = str(attempt.settings.get("engine", "")), format_time(attempt.created_unix_seconds)
        expected = attempt.expected_range or "-"
        rows.append((attempt.id, when, _technique(attempt), engine, expected, speed, drop, attempt.outcome))
    return "\n".join(_table(rows)) + "\n"


def why_not_told(attempts: Sequence[Attempt], skips: Sequence[Event]) -> str:
    """Return what came of a technique each time, why it was not tried, and what would change it.

    Args:
        attempts: Of the technique.
        skips: When it was not tried, the newest first; the same reason is told once.
    """
    lines: list[str] = [attempts_listed(attempts)] if attempts else []
    for attempt in attempts:
        lines += [*wrap_lines([f"{attempt.id}: {attempt.says}"]), *_otherwise(would_change(attempt))]
    newest = {(skip.technique, skip.says): skip for skip in reversed(skips)}
    for skip in sorted(newest.values(), key=lambda one: -one.created_unix_seconds):
        head = f"{skip.id}, {format_time(skip.created_unix_seconds)}: {skip.technique} was not tried: {skip.says}"
        lines += [*wrap_lines([head]), *_otherwise(skip.would_change)]
    return "\n".join(lines) + "\n"


def events_listed(events: Sequence[Event]) -> str:
    """Return events as lines; the same reason for the same technique not to be tried is told once, with all its ids."""
    same: dict[tuple[str, ...], list[Event]] = {}
    for event in events:
        told = (event.kind, event.technique, event.says, "" if event.kind == "skip" else event.id)
        same.setdefault(told, []).append(event)
    lines = []
    for group in same.values():
        ids = ", ".join(event.id for event in group)
        lines += wrap_lines(
            [f"{ids}, {format_time(group[0].created_unix_seconds)}: {_head(group[0])}: {group[0].says}"]
        )
    return "\n".join(lines) + "\n"


def events_counted(counts: Mapping[EventKind, int], num_shown: int, ledger_option: str | None) -> str:
    """Return how many events there are, and how to see them.

    Args:
        counts: Of each kind.
        num_shown: That are listed already.
        ledger_option: The ledger's file as the user gave it, for the command to type.
    """
    num = sum(counts.values())
    told = ", ".join(pluralize(number, kind) for kind, number in counts.items())
    ledger = f" --ledger {quote_arg(ledger_option)}" if ledger_option else ""
    more = f" -n {num}" if num_shown else ""
    shown = f"{num_shown:,} of " if num_shown else ""
    return f"{shown}{pluralize(num, 'event')} ({told}): headrace ledger list --events{more}{ledger}\n"


def _head(event: Event) -> str:
    about = " of ".join(part for part in (event.technique, event.attempt) if part)
    return f"{event.kind}{f' of {about}' if about else ''}{f', {event.verdict}' if event.verdict else ''}"


def event_told(event: Event) -> str:
    """Return one event in words."""
    head = f"{event.id}, written {format_time(event.created_unix_seconds)}: {_head(event)}"
    golden = [f"golden data: sha256 {event.golden_sha256[:16]}"] if event.golden_sha256 else []
    predicted = [f"predicted by {event.prediction}"] if event.prediction else []
    lines = [head, "", *wrap_lines([event.says]), *_otherwise(event.would_change), *predicted, *golden]
    return "\n".join(lines) + "\n"


def _otherwise(what: str) -> list[str]:
    return [f"  {line}" for line in wrap_lines([f"what would change it: {what}"])] if what else []


def attempt_shown(attempt: Attempt, events: Sequence[Event] = ()) -> str:
    """Return one attempt with its gates, what it was judged by, what happened to it since, and how to get it again.

    Args:
        attempt: Of the ledger.
        events: About it, the newest first.
    """
    lines = [
        f"{attempt.id}, written {format_time(attempt.created_unix_seconds)}: {attempt.technique}, {attempt.verdict}", "",
        f"why it was tried: {attempt.hypothesis}", *_expectation(attempt),
        f"what came of it: {attempt.says}",
    ]  # fmt: skip
    lines += [f"{gate.name}: {gate.outcome}: {gate.says}" for gate in attempt.validation.gates]
    made = attempt.artifact.made
    lines += [f"file: {attempt.artifact.file}" + (f" ({made})" if made else "")]
    cost = "" if attempt.money is None else f", which cost {attempt.money:.2g}"
    lines += [f"took {attempt.seconds:.1f} s{cost}", *_judged_by(attempt)]
    for event in events:
        prediction = f" (predicted by {event.prediction})" if event.prediction else ""
        lines += [f"{event.kind} {event.id}, {format_time(event.created_unix_seconds)}: {event.says}{prediction}"]
    again = f"headrace validate {quote_arg(attempt.validation.a.name)} {quote_arg(attempt.candidate)}"
    if attempt.asked is not None:
        again = f"headrace ledger replay {attempt.id}"
    return "\n".join([*wrap_lines(lines), f"again: {again}"]) + "\n"


def _expectation(attempt: Attempt) -> list[str]:
    """Return what it was expected to gain, beside what it gained."""
    expected, speed = attempt.predicted, attempt.speedup
    if expected is None:
        return []
    said = f"expected: {attempt.expected_range} times as fast by itself, as measured on {expected.source}"
    if expected.whole_low is not None and expected.whole_high is not None:
        said += (
            f"; {expected.whole_low:.2f} to {expected.whole_high:.2f} times the throughput of the pipeline, simulated from "
            f"{expected.run}"
        )
    if speed is not None:
        place = "below" if speed.high < expected.low else "above" if speed.low > expected.high else "within"
        said += f"; measured by itself {speed:.2f}, {place} what was expected"
    return [said]


def _judged_by(attempt: Attempt) -> list[str]:
    """Return machine, versions, sets and settings in words."""
    asked = attempt.asked
    if asked is None:
        return [f"machine: {attempt.hardware or 'not told'}"]
    sets = {"calibration": (asked.data, asked.data_sha256), "golden": (asked.golden, asked.golden_sha256)}
    drop = f"a drop of {100 * asked.max_drop:g} points of {asked.metric} allowed"
    wrongly = f", wrongly accepted at most {asked.alpha:.2%}" if asked.alpha else ""
    spoiled = ", spoiled images too" if asked.robustness else ""
    options = {**attempt.settings, **attempt.settings.get("options", {}), **attempt.stages}
    return [
        f"machine: {asked.machine or 'told by its fingerprint alone'} ({attempt.hardware})",
        f"versions: {', '.join(f'{name} {version}' for name, version in sorted(asked.versions.items())) or 'not told'}",
        *(f"{name} data: {path} (sha256 {sha256[:16]})" for name, (path, sha256) in sets.items() if sha256),
        *([f"prepared by: {asked.pipeline}"] if asked.pipeline else []),
        f"settings: {', '.join(f'{key} {value}' for key, value in options.items() if key not in ('artifact', 'options'))}",
        f"asked: {drop}{wrongly}{spoiled}, batch {attempt.validation.batch}",
    ]


def decisions_listed(decisions: Sequence[Decision]) -> str:
    """Return decisions as lines."""
    return "".join(decision_told(decision) for decision in decisions)


def decision_told(decision: Decision) -> str:
    """Return one decision in words."""
    proof = "" if decision.attempt is None else f" (a{decision.attempt})"
    done = "now holds" if decision.action == "accept" else "is back at"
    what = "is gone" if decision.after is None else f"{done} {_model_of(decision.after)}"
    head = (
        f"d{decision.number}, {format_time(decision.created_unix_seconds)}, {decision.who}: {decision.action}{proof}: "
    )
    return "\n".join(wrap_lines([f"{head}{decision.plan} {what}: {decision.why}"])) + "\n"


def decision_shown(decision: Decision) -> str:
    """Return one decision with what it changed in the Plan's file, line by line."""
    before, after = ((text or "").splitlines() for text in (decision.before, decision.after))
    changes = list(difflib.unified_diff(before, after, "before", "after", lineterm=""))
    back = [f"take it back: headrace ledger rollback {quote_arg(decision.plan)}"] if decision.action == "accept" else []
    return decision_told(decision) + "\n".join(["", *(changes or ["nothing was changed"]), "", *back]).rstrip() + "\n"


def _technique(attempt: Attempt) -> str:
    """Return its name; of a layout, which and whose."""
    if not attempt.stages:
        return attempt.technique
    whose = attempt.artifact.technique or attempt.settings.get("options", {}).get("precision") or "the model as given"
    return f"{attempt.technique} of {whose}: {attempt.layout_in_words}"


def rendered(attempts: Sequence[Attempt], decisions: Sequence[Decision]) -> str:
    """Return what was tried and decided as Markdown, the newest first."""
    lines = ["# Models: what was tried and what was decided", "", "## Decisions", ""]
    for decision in decisions:
        lines += [f"- {' '.join(decision_told(decision).split())}"]
    lines += ["" if decisions else "None.\n", "## Attempts", ""]
    lines += [
        "| | when | technique | engine | expected | times as fast | drop, points | verdict | why |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for attempt in attempts:
        speed, drop = attempt.speedup, attempt.drop
        cells = [
            attempt.id, format_time(attempt.created_unix_seconds), _technique(attempt), str(attempt.settings.get("engine", "")),
            attempt.expected_range,
            "" if speed is None else f"{speed:.2f}", "" if drop is None else f"{drop.scaled(100):+z.2f}",
            f"{attempt.verdict}{f' by {attempt.gate}' if attempt.gate else ''}", attempt.says.replace("|", "/"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## What they were judged by", ""]
    for judged_by, ids in _by_circumstances(attempts).items():
        lines += [f"- {', '.join(ids)}: {'; '.join(judged_by)}"]
    return "\n".join(lines) + "\n"


def _by_circumstances(attempts: Sequence[Attempt]) -> dict[tuple[str, ...], list[str]]:
    """Return {machine, versions, sets and demands in words: ids}."""
    found: dict[tuple[str, ...], list[str]] = {}
    for attempt in attempts:
        said = (line for line in _judged_by(attempt) if not line.startswith("settings: "))
        found.setdefault(tuple(said), []).append(attempt.id)
    return found


def _model_of(plan_text: str) -> str:
    """Return what a Plan's text says of its models; of the settings file of a training, its values."""
    try:
        plan = parse_toml(plan_text)
        if of_training := [f"{key} = {plan[key]}" for key in ("batch_size", "checkpointed") if key in plan]:
            return f"{', '.join(of_training)} for a training"
        several = plan.get("models", {})
        named = {**({"": plan.get("model", {})} if "model" in plan or not several else {}), **several}
        return ", ".join(
            f"{name and f'{name}: '}{model.get('artifact', 'the model that the module names')} on "
            f"{model.get('engine', DEFAULT_ENGINE)}"
            for name, model in named.items()
        )
    except (ValueError, AttributeError, TypeError):  # a ledger may be somebody else's, and its texts anything
        return "a Plan that cannot be read"


def outcome(entry: PredictionEntry, record: TrackRecord) -> str:
    """Return what came of a prediction, and what that makes of the record."""
    return (
        "\n".join(wrap_lines([f"{entry.id}: {entry.says}", _came_of(entry), f"record of this tool: {record.says}"]))
        + "\n"
    )


def recorded(entries: Sequence[PredictionEntry], record: TrackRecord, num_waiting: int) -> str:
    """Return how good predictions were: the numbers, and the measured ones from the worst on.

    Args:
        entries: Those that were measured.
        record: Of these.
        num_waiting: Predictions that nobody has measured: they are in no number here.
    """
    lines = [record.says]
    if num_waiting:
        lines.append(f"not measured, and so not judged: {pluralize(num_waiting, 'prediction')}")
    if not entries:
        return "\n".join(lines) + "\n"
    lines.append(f"measured within the predicted interval: {record.num_inside} of {record.num}")
    if record.num_with_sign:
        lines.append(
            f"faster or slower told rightly: {record.num_sign_right} of {record.num_with_sign} that changed by more than 5 %"
        )
    worst = sorted(entries, key=lambda entry: -abs(entry.error or 0.0))
    rows = [_COLUMNS, *(_row(entry) for entry in worst)]
    return "\n".join([*wrap_lines(lines), "", *_table(rows)]) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    # The change, which may be long, stands last and to the left.
    before = align_columns([row[:-1] for row in rows], num_left=2)
    width = max(map(len, before))
    return [f"{line:<{width}}  {row[-1]}" for line, row in zip(before, rows, strict=True)]


def _row(entry: PredictionEntry) -> tuple[str, ...]:
    measured = entry.measured
    return (
        entry.id,
        format_time(entry.created_unix_seconds),
        ratio_text(entry.predicted),
        "-" if measured is None else f"x{format_number(measured.ratio.mid)}",
        "-" if entry.error is None else f"{100 * entry.error:+z.1f} %",
        entry.says,
    )


def _came_of(entry: PredictionEntry) -> str:
    if entry.measured is None or entry.error is None:
        return "not measured yet"
    inside = entry.predicted.low <= entry.measured.ratio.mid <= entry.predicted.high
    place = "inside" if inside else "outside"
    when = format_time(entry.measured.measured_unix_seconds)
    return (
        f"measured {ratio_text(entry.measured.ratio)}, predicted {ratio_text(entry.predicted)}: "
        f"error {100 * entry.error:+z.1f} %, {place} the interval ({entry.measured.how}, {when})"
    )
