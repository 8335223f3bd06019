"""List predictions, attempts and decisions, record what was measured, and roll back a decision.

    headrace ledger list
    headrace ledger list --events
    headrace ledger show p12
    headrace ledger show a7
    headrace ledger show d1
    headrace ledger show e3
    headrace ledger why-not int8
    headrace ledger rollback plan.toml
    headrace ledger replay a7
    headrace ledger render > CHANGES.md
    headrace ledger render --html models.html
    headrace ledger export --mlflow http://localhost:5000
    headrace ledger show p12 --plan > changed.toml
    headrace ledger measured p12 compare.json
    headrace ledger measured p12 runs/before runs/after
    headrace ledger record --pipeline jobs:pipeline

The first letter of an id is its kind: p12 is a prediction (the effect of a change, by `whatif`, `tune` or `optimize`), a7 an
attempt (a variant of a model that `optimize` tried), d1 a decision (a Plan that replaced another one, or a rollback), e3 an
event (a technique that was not tried, a golden set used by `validate`, a replay, a pipeline that was measured with an
attempt's variant). `measured` and `record` work on predictions, `why-not`, `replay`, `render` and `export` on attempts,
`rollback` on decisions.

`measured` takes a file of `headrace compare -o compare.json` (pairs of blocks, the better way), or two run folders: the one
before and the one with the change. It refuses a measurement that is older than the prediction, one of another Plan than the
predicted one, and a second one. Nothing in the ledger is ever changed or removed.

`rollback` restores the Plan's file as it was before the newest decision that is in force, and records this; a second rollback
goes one step further back.

`replay` judges the very file of an attempt again, on the same data with the same settings, says whether it comes out the same
within its intervals, and what is otherwise than it was: machine, versions.

Exit status: 0 done; 1 a replay came out otherwise; 2 misuse, or a measurement that is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import pluralize
from headrace.cli import EXIT_DONE
from headrace.cli.pipeline_arguments import positive
from headrace.cli.terminal import speaker, write, write_json, write_machine_readable
from headrace.cli.whatif import add_ledger_argument

#: A replay that came out otherwise.
EXIT_OTHERWISE = 1

if TYPE_CHECKING:
    from headrace.ledger.ledger import Ledger
    from headrace.runs.formats.decisions import Decision
    from headrace.runs.formats.events import Event
    from headrace.runs.formats.ledger import PredictionEntry, Replayed
    from headrace.runs.formats.optimization import Attempt

_say = speaker("ledger")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="{list,show,why-not,replay,rollback,render,export,measured,record}"
    )
    listing = actions.add_parser("list", help="predictions, attempts, decisions and events, the newest first")
    show = actions.add_parser("show", help="one prediction, attempt, decision or event with all that was said")
    why_not = actions.add_parser(
        "why-not", help="what came of a technique, or why it was not tried, and what would change it"
    )
    replay = actions.add_parser("replay", help="judge an attempt again, as it was judged")
    rollback = actions.add_parser("rollback", help="put back the Plan that a decision replaced")
    render = actions.add_parser("render", help="what was tried and decided, as Markdown or as a page")
    export = actions.add_parser("export", help="write attempts to MLflow")
    measured = actions.add_parser("measured", help="write down what a predicted change did")
    record = actions.add_parser("record", help="how good the predictions were")
    show.add_argument("id", metavar="ID", help="of a prediction, an attempt, a decision or an event: p12, a7, d1, e3")
    replay.add_argument("id", metavar="ID", help="of the attempt, such as a7")
    render.add_argument("--html", metavar="FILE", help="write a page: accuracy against speed, history, decisions")
    render.add_argument("--force", action="store_true", help="replace FILE")
    export.add_argument(
        "--mlflow", required=True, metavar="URI", help="of a tracking server, or a folder as file:///path"
    )
    measured.add_argument("id", metavar="ID", help="of the prediction, such as p12")
    why_not.add_argument("technique", metavar="TECHNIQUE", help="such as int8; the first letters are enough")
    rollback.add_argument("plan", metavar="PLAN", help="the Plan's file")
    rollback.add_argument("--why", default="", metavar="TEXT", help="the reason, to be written down")
    rollback.add_argument("--force", action="store_true", help="even if the file was changed since")
    show.add_argument("--plan", action="store_true", help="print the predicted Plan as TOML, and nothing else")
    measured.add_argument("result", nargs="+", metavar="RESULT", help="a comparison's JSON file, or two run folders")
    listing.add_argument(
        "--events", action="store_true", help="also techniques not tried, validations, replays, pipelines, run-offs"
    )
    for action, default in ((listing, 20), (record, 40)):
        action.add_argument(
            "-n", type=positive, default=default, metavar="N", help=f"show N at most (default {default})"
        )
        action.add_argument("--pipeline", metavar="MODULE:ATTRIBUTE", help="only of this pipeline")
    for action in (listing, show, why_not, replay, rollback, render, export, measured, record):
        add_ledger_argument(action)
        if action not in (render, export):
            action.add_argument("--json", action="store_true", help="print JSON (schema headrace.ledger/1)")


def run(args: argparse.Namespace) -> int:
    """Carry out the action and print what came of it."""
    from headrace.base.errors import SettingsError
    from headrace.ledger.ledger import Ledger

    if args.action == "show" and args.plan and args.json:
        raise SettingsError("--plan prints TOML and --json JSON; give one of them")
    with Ledger.open(args.ledger, must_exist=True) as ledger:
        return _ACTIONS[args.action](ledger, args) or EXIT_DONE


def _list(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import attempts_listed, decisions_listed, events_counted, events_listed, listed

    entries = ledger.predictions(last=args.n, pipeline=args.pipeline)
    attempts, decisions = ledger.attempts.attempts(last=args.n), ledger.attempts.decisions(last=args.n)
    events = ledger.events.events(last=args.n) if args.events else []
    if args.pipeline:
        attempts, decisions = _find_attempts_of_pipeline(ledger, args.pipeline, args.n)
        events = _find_events(ledger, attempts, args.n) if args.events else []
    if args.json:
        _print_json(ledger, entries, args.pipeline, attempts=attempts, decisions=decisions, events=events)
        return
    parts = [listed(entries, ledger.track_record(pipeline=args.pipeline))] if entries or not attempts else []
    parts += [attempts_listed(attempts)] if attempts else []
    parts += [decisions_listed(decisions)] if decisions else []
    parts += [events_listed(events)] if events else []
    counts = ledger.events.count()
    parts += [events_counted(counts, len(events), args.ledger)] if len(events) < sum(counts.values()) else []
    write("\n".join(parts), end="")


def _find_events(ledger: Ledger, attempts: Sequence[Attempt], most: int) -> list[Event]:
    """Return the events about these attempts; what is about none of them may be of any pipeline."""
    ids = {one.id for one in attempts}
    return [event for event in ledger.events.events() if event.attempt in ids][:most]


def _find_attempts_of_pipeline(ledger: Ledger, pipeline: str, most: int) -> tuple[list[Attempt], list[Decision]]:
    """Return the attempts whose sets a pipeline prepared, and the decisions that rest on one of them; tell what is left out."""
    known, decided = ledger.attempts.attempts(), ledger.attempts.decisions()
    attempts = [one for one in known if one.asked is not None and one.asked.pipeline == pipeline]
    numbers = {one.id for one in attempts}
    decisions = [one for one in decided if f"a{one.attempt}" in numbers]
    left = len(known) - len(attempts), len(decided) - len(decisions)
    if any(left):
        _say(f"not of {pipeline}, and so not shown: {pluralize(left[0], 'attempt')}, {pluralize(left[1], 'decision')}")
    return attempts[:most], decisions[:most]


def _show(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.base.errors import SettingsError
    from headrace.base.plan import Plan
    from headrace.cli.ledger_text import shown

    other = {"a": _show_attempt, "d": _show_decision, "e": _show_event}.get(args.id[:1])
    if other is not None:
        other(ledger, args)
        return
    entry = ledger.prediction(args.id)
    assert entry.document is not None
    if args.plan:
        if entry.document.unit == "step":
            raise SettingsError(f"{entry.id} is of a training, which has no Plan; its change is {entry.says}")
        write_machine_readable(Plan.from_record(entry.document.plan).as_toml())
    elif args.json:
        _print_json(ledger, [entry], None)
    else:
        write(shown(entry, args.ledger), end="")


def _show_attempt(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import attempt_shown

    attempt = ledger.attempts.attempt(args.id)
    events = ledger.events.events(attempt=attempt.id)
    if args.plan:
        from headrace.base.plan import Plan

        write_machine_readable(Plan.from_table({"model": attempt.settings}).as_toml())
    elif args.json:
        _print_json(ledger, [], None, attempts=[attempt], events=events)
    else:
        write(attempt_shown(attempt, events), end="")


def _show_decision(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import decision_shown

    decision = ledger.attempts.decision(args.id)
    if args.plan:
        write_machine_readable(decision.after or "")
    elif args.json:
        _print_json(ledger, [], None, decisions=[decision])
    else:
        write(decision_shown(decision), end="")


def _show_event(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.base.errors import LedgerError
    from headrace.cli.ledger_text import event_told

    event = next((one for one in ledger.events.events() if one.id == args.id), None)
    if event is None or args.plan:
        why = "an event has no Plan" if event else f"the ledger {ledger.path} has no event {args.id}"
        raise LedgerError(f"{why}; `headrace ledger list --events` shows those that there are")
    if args.json:
        _print_json(ledger, [], None, events=[event])
    else:
        write(event_told(event), end="")


def _replay(ledger: Ledger, args: argparse.Namespace) -> int:
    from headrace.base.formatting import wrap_lines
    from headrace.cli.golden_argument import read_items
    from headrace.cli.metric_argument import find_metric
    from headrace.ledger.ledger import hardware_fingerprint
    from headrace.optimize.replay_attempt import as_event, replay_attempt
    from headrace.runs.hardware import find_hardware
    from headrace.validate.variant_spec import parse_variant

    attempt, hardware = ledger.attempts.attempt(args.id), hardware_fingerprint(find_hardware())
    spec = parse_variant(attempt.validation.a.name)
    found = replay_attempt(
        attempt,
        store=ledger.path.parent / "artifacts",
        read=lambda path, pipeline, labelled: read_items(path or None, pipeline or None, spec, _say, labelled=labelled),
        metric=find_metric,
        hardware=hardware,
    )
    event = ledger.events.write(as_event(attempt, found, hardware))
    if args.json:
        _print_json(ledger, [], None, attempts=[attempt], events=[event], replayed=found)
    else:
        write("\n".join(wrap_lines([found.says])))
    return EXIT_DONE if found.is_same else EXIT_OTHERWISE


def _export(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.ledger.mlflow_export import EXPERIMENT, export_attempts

    number = export_attempts(ledger.attempts.attempts(), args.mlflow, ledger=str(ledger.path.resolve()))
    write(f"{pluralize(number, 'new attempt')} written to the experiment {EXPERIMENT} of {args.mlflow}")


def _print_why_not(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.base.errors import LedgerError
    from headrace.cli.ledger_text import why_not_told

    attempts = ledger.attempts.attempts(technique=args.technique)
    skips = ledger.events.events("skip", technique=args.technique)
    if not attempts and not skips:
        known = {one.technique for one in ledger.attempts.attempts()}
        known |= {one.technique for one in ledger.events.events("skip")}
        raise LedgerError(
            f"the ledger {ledger.path} knows no technique {args.technique!r}, neither tried nor left out; it knows "
            f"{', '.join(sorted(known)) or 'none yet: headrace optimize tries them'}"
        )
    if args.json:
        _print_json(ledger, [], None, attempts=attempts, events=skips)
    else:
        write(why_not_told(attempts, skips), end="")


def _rollback(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import decision_told

    decision = ledger.attempts.rollback(Path(args.plan), why=args.why, force=args.force)
    if args.json:
        _print_json(ledger, [], None, decisions=[decision])
    else:
        write(decision_told(decision), end="")


def _render(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import rendered

    if args.html:
        from headrace.cli.output_file import check_output, write_output
        from headrace.report.ledger_page import render_ledger

        check_output(args.html, force=args.force, option="--html")
        page = render_ledger(str(ledger.path), ledger.attempts.attempts(), ledger.attempts.decisions())
        write_output(Path(args.html), page, option="--html")
        return
    write(rendered(ledger.attempts.attempts(), ledger.attempts.decisions()), end="")


def _record_measured(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import outcome
    from headrace.cli.measured_change import find_measured

    entry = ledger.prediction(args.id)
    found = find_measured(args.result, entry)
    ledger.write_measurement(entry.id, found.ratio, found.how, measured_at=found.began_unix_seconds)
    entry = ledger.prediction(args.id)
    if args.json:
        _print_json(ledger, [entry], None)
    else:
        write(outcome(entry, ledger.track_record()), end="")


def _record(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import recorded

    entries = ledger.predictions(last=args.n, pipeline=args.pipeline, measured=True)
    record = ledger.track_record(args.n, pipeline=args.pipeline)
    if args.json:
        _print_json(ledger, entries, args.pipeline, last=args.n)
    else:
        waiting = len(ledger.predictions(pipeline=args.pipeline, measured=False))
        write(recorded(entries, record, waiting), end="")


_ACTIONS: dict[str, Callable[[Ledger, argparse.Namespace], int | None]] = {
    "list": _list, "show": _show, "why-not": _print_why_not, "replay": _replay, "rollback": _rollback, "render": _render,
    "export": _export, "measured": _record_measured, "record": _record,
}  # fmt: skip


def _print_json(
    ledger: Ledger,
    entries: Sequence[PredictionEntry],
    pipeline: str | None,
    *,
    last: int = 40,
    attempts: Sequence[Attempt] = (),
    decisions: Sequence[Decision] = (),
    events: Sequence[Event] = (),
    replayed: Replayed | None = None,
) -> None:

    from headrace.runs.formats.ledger import LedgerDocument

    document = LedgerDocument(
        file=str(ledger.path),
        predictions=tuple(entries),
        record=ledger.track_record(last, pipeline=pipeline),
        attempts=tuple(attempts),
        decisions=tuple(decisions),
        events=tuple(events),
        replayed=replayed,
    )
    write_json(document, indented=True)
