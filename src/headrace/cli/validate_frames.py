"""`headrace validate --frames`: what it costs to look at fewer frames of labelled clips."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import LedgerError, SettingsError
from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration
from headrace.cli import EXIT_DONE
from headrace.cli.output_file import check_output, write_output
from headrace.cli.terminal import as_json, say, write, write_machine_readable

if TYPE_CHECKING:
    from headrace.runs.formats.skipping import SkippingDocument, SkippingResult

_COLUMNS = ("frames", "smoothed", "work", "right", "drop, points", "false flips/min", "told after", "p90", "never", "")
_STATUS = {"passed": EXIT_DONE, "rejected": 1, "inconclusive": 4}


def add_frames_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("frames of clips instead of variants of a model")
    group.add_argument("--frames", metavar="FILE", help="the JSON Lines of a run that answered every frame of clips")
    group.add_argument("--labels", metavar="FILE", help="CSV of what is true: stream,from,to,label, times in seconds")
    group.add_argument(
        "--every", metavar="N[,N...]", default="2,3,5", help="frames of which one is worked on (default 2,3,5)"
    )
    group.add_argument(
        "--smooth", metavar="SECONDS[,...]", help="also try answers smoothed with these half-lives; results hold scores"
    )
    group.add_argument("--event", metavar="LABEL", help="also count how often this label is found, missed and made up")


def validate_frames(args: argparse.Namespace) -> int:
    """Try the ways that the arguments name, and print what they cost."""
    from headrace.validate.skipping import compare_ways, parse_ways, verdict_of

    if not args.labels:
        raise SettingsError("--frames needs --labels FILE: what is true of the clips")
    check_output(args.output, force=args.force)
    document = compare_ways(
        args.frames, args.labels, parse_ways(args.every, args.smooth), max_drop=args.max_drop, event=args.event
    )
    verdict = verdict_of(document)
    _record(args, document)
    encoded = as_json(document, indented=True)
    if args.output:
        write_output(Path(args.output), encoded)
    if args.json:
        write_machine_readable(encoded)
    else:
        write(as_text(document), end="")
    return _STATUS[verdict]


def as_text(document: SkippingDocument) -> str:
    """Return what each way costs, as a table."""
    known = f"{document.labelled_frames:,} of {document.frames:,} frames have a label"
    head = f"{document.labels}: {pluralize(document.streams, 'stream')}, {known}"
    rows: list[tuple[str, ...]] = [_COLUMNS]
    rows += [_row(one) for one in (document.reference, *document.tried)]
    lines = [head, "", *align_columns(rows), ""]
    for one in (document.reference, *document.tried):
        if one.events is not None:
            found = f"{one.events.found} of {one.events.total} found, {one.events.false} made up"
            lines.append(f"{one.events.label}, every {one.every}, smoothed {_smoothed(one)}: {found}")
    return "\n".join([*lines, *wrap_lines([document.says, *(f"warning: {text}" for text in document.warnings)])]) + "\n"


def _row(one: SkippingResult) -> tuple[str, ...]:
    drop = "-"
    if one.drop is not None and one.drop_low is not None and one.drop_high is not None:
        drop = f"{100 * one.drop:+z.2f} ({100 * one.drop_low:+z.2f} to {100 * one.drop_high:+z.2f})"
    return (
        f"every {one.every}",
        _smoothed(one),
        f"{one.work:.0%}",
        f"{one.right:.1%}",
        drop,
        f"{one.flips_per_minute:.1f}",
        format_duration(one.delay_seconds),
        format_duration(one.delay_p90_seconds),
        f"{one.never_told} of {one.changes}",
        one.outcome or "as it is",
    )


def _smoothed(one: SkippingResult) -> str:
    return "-" if one.smooth_seconds is None else f"{one.smooth_seconds:g} s"


def _record(args: argparse.Namespace, document: SkippingDocument) -> None:
    """Write an event for each way into the ledger, where there is one."""
    from headrace.ledger.ledger import Ledger, ledger_path
    from headrace.runs.formats.events import Event
    from headrace.runs.formats.profile import Estimate

    path = ledger_path(args.ledger)
    if args.ledger is None and not path.exists():
        return
    try:
        with Ledger(path) as ledger:
            for one in document.tried:
                technique = f"every={one.every}" + (f",smooth={one.smooth_seconds:g}" if one.smooth_seconds else "")
                assert one.drop is not None
                assert one.drop_low is not None
                assert one.drop_high is not None
                ledger.events.write(
                    Event(
                        kind="validation",
                        technique=technique,
                        verdict=one.outcome or "",
                        golden_sha256=document.labels_sha256,
                        drop=Estimate(one.drop_low, one.drop, one.drop_high),
                        says=f"{document.results} by {document.labels}: {one.work:.0%} of the work, {one.right:.1%} of the "
                        f"frames right, {document.reference.right:.1%} with every one{f'; {one.why}' if one.why else ''}",
                    )
                )
    except LedgerError as error:
        if args.ledger is not None:
            raise
        say(f"not written to the ledger: {error}")
