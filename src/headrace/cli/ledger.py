"""Look at what was predicted, write down what came of it, and see how good the predictions are.

    headrace ledger list
    headrace ledger show p12
    headrace ledger show p12 --plan > changed.toml
    headrace ledger measured p12 compare.json
    headrace ledger measured p12 runs/before runs/after
    headrace ledger record --pipeline jobs:pipeline

`measured` takes what `headrace compare -o compare.json` wrote (pairs of blocks, the better way), or two run folders: the one
before and the one with the change. It refuses what was measured before the prediction was written, what ran under another
Plan than the one predicted, and a second measurement. Nothing in the ledger is ever changed or removed.

Exit status: 0 done; 2 misuse, or a measurement that is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE
from headrace.cli.pipeline_arguments import positive
from headrace.cli.whatif import add_ledger_argument

if TYPE_CHECKING:
    from headrace.ledger.ledger import Ledger
    from headrace.runs.formats.ledger import PredictionEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,show,measured,record}")
    listing = actions.add_parser("list", help="predictions, the newest first, with what was measured")
    show = actions.add_parser("show", help="one prediction with all that was said")
    measured = actions.add_parser("measured", help="write down what a predicted change did")
    record = actions.add_parser("record", help="how good the predictions were")
    for action in (show, measured):
        action.add_argument("id", metavar="ID", help="of the prediction, such as p12")
    show.add_argument("--plan", action="store_true", help="print the predicted Plan as TOML, and nothing else")
    measured.add_argument("result", nargs="+", metavar="RESULT", help="a comparison's JSON file, or two run folders")
    for action, default in ((listing, 20), (record, 40)):
        action.add_argument(
            "-n", type=positive, default=default, metavar="N", help=f"at most so many (default {default})"
        )
        action.add_argument("--pipeline", metavar="MODULE:ATTRIBUTE", help="those of one pipeline")
    for action in (listing, show, measured, record):
        add_ledger_argument(action)
        action.add_argument("--json", action="store_true", help="print JSON (schema headrace.ledger/1)")


def run(args: argparse.Namespace) -> int:
    """Carry out the action and print what came of it."""
    from headrace.base.errors import SettingsError
    from headrace.ledger.ledger import Ledger

    if args.action == "show" and args.plan and args.json:
        raise SettingsError("--plan prints TOML and --json JSON; give one of them")
    with Ledger.open(args.ledger, must_exist=True) as ledger:
        _ACTIONS[args.action](ledger, args)
    return EXIT_DONE


def _list(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import listed

    entries = ledger.predictions(last=args.n, pipeline=args.pipeline)
    if args.json:
        _print_json(ledger, entries, args.pipeline)
    else:
        print(listed(entries, ledger.track_record(pipeline=args.pipeline)), end="")


def _show(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.base.plan import Plan
    from headrace.cli.ledger_text import shown

    entry = ledger.prediction(args.id)
    assert entry.document is not None
    if args.plan:
        sys.stdout.write(Plan.from_table(entry.document.plan).as_toml())
    elif args.json:
        _print_json(ledger, [entry], None)
    else:
        print(shown(entry, args.ledger), end="")


def _measured(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import outcome
    from headrace.cli.measured_change import find_measured

    entry = ledger.prediction(args.id)
    found = find_measured(args.result, entry)
    ledger.write_measurement(entry.id, found.ratio, found.how, measured_at=found.began_unix_seconds)
    entry = ledger.prediction(args.id)
    if args.json:
        _print_json(ledger, [entry], None)
    else:
        print(outcome(entry, ledger.track_record()), end="")


def _record(ledger: Ledger, args: argparse.Namespace) -> None:
    from headrace.cli.ledger_text import recorded

    entries = ledger.predictions(last=args.n, pipeline=args.pipeline, measured=True)
    record = ledger.track_record(args.n, pipeline=args.pipeline)
    if args.json:
        _print_json(ledger, entries, args.pipeline, last=args.n)
    else:
        waiting = len(ledger.predictions(pipeline=args.pipeline, measured=False))
        print(recorded(entries, record, waiting), end="")


_ACTIONS = {"list": _list, "show": _show, "measured": _measured, "record": _record}


def _print_json(ledger: Ledger, entries: Sequence[PredictionEntry], pipeline: str | None, *, last: int = 40) -> None:
    import msgspec

    from headrace.runs.formats.ledger import LedgerDocument

    document = LedgerDocument(
        file=str(ledger.path), predictions=tuple(entries), record=ledger.track_record(last, pipeline=pipeline)
    )
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
