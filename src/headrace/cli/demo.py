"""See what headrace does, on real photographs, in about a minute.

Starts a local image server with a stated network delay, an SQLite queue with some hundreds of real crops, and a callback
receiver; then runs one pipeline under five Plans: sequential, threaded I/O, overlapped, batched, decode at scale. The
model is the small one that ships with headrace. Only the network delay is simulated. Each run is profiled; report.html shows
where the time of the last one went.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal import open_console, speaker, write_json

if TYPE_CHECKING:
    from headrace.demo.ladder import Ladder

#: The page that shows the last rung.
REPORT = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", metavar="DIR", help="where to write; default headrace-demo/TIME")
    parser.add_argument(
        "--count", type=int, default=240, metavar="N", help="images per rung, at least 20 (default 240)"
    )
    parser.add_argument("--delay", default="80ms", help="the image server's delay (default 80ms)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.demo/1)")


def run(args: argparse.Namespace) -> int:
    """Run the ladder and print what each step bought."""
    from headrace.base.errors import SettingsError
    from headrace.base.settings import check
    from headrace.base.units import parse_duration
    from headrace.cli import EXIT_DONE
    from headrace.demo.ladder import climb

    check(args.count >= 20, "--count", args.count, "a whole number >= 20: fewer images tell nothing about rates")
    try:
        delay_seconds = parse_duration(args.delay)
    except ValueError as error:
        raise SettingsError(f"--delay: {error}") from None
    folder = Path(args.output or f"headrace-demo/{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise SettingsError(f"--output {folder} cannot be written: {error.strerror}; name another with -o") from error
    check(is_empty, "--output", str(folder), "a new or empty folder")
    ladder = climb(
        folder,
        count=args.count,
        delay_seconds=delay_seconds,
        view=_view,
        progress=speaker("demo"),
    )
    document = as_dict(ladder, folder, delay_seconds)
    _write(folder, document)
    _write_report(folder, ladder)
    if args.json:
        _print_json(document)
    else:
        _print_table(ladder, folder, delay_seconds)
    return EXIT_DONE


def _view(name: str, total: int) -> Any:
    from headrace.cli.live import LiveView

    return lambda summary, stages: LiveView(summary, stages, total)


def as_dict(ladder: Ladder, folder: Path, delay_seconds: float) -> dict[str, Any]:
    """Return the ladder as `headrace demo --json` prints it (schema `headrace.demo/1`)."""
    return {
        "schema": "headrace.demo/1",
        "folder": str(folder),
        "report": str(folder / REPORT),
        "num_images": len(ladder.truth),
        "simulated": {"network_delay_seconds": delay_seconds},
        "num_agreeing": ladder.num_agreeing,
        "rungs": [
            {
                "name": rung.name,
                "rate_per_second": rung.rate_per_second,
                "verdict": ladder.verdict(rung),
                "num_right": ladder.num_right(rung),
                "plan_id": rung.result.plan_id,
                "run_folder": str(rung.result.run_folder),
                "counters": {
                    name: getattr(rung.result.counters, name)
                    for name in ("received", "delivered", "rejected", "dead_lettered", "retried", "returned", "lost")
                },
            }
            for rung in ladder.rungs
        ],
    }


def _write(folder: Path, document: dict[str, Any]) -> None:
    import json

    (folder / "ladder.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _write_report(folder: Path, ladder: Ladder) -> None:
    """Draw the last rung: the others can be drawn from their run folders."""
    from headrace.diagnose import profile_document
    from headrace.report.page import render_report
    from headrace.runs.reader import read_run

    run_folder = ladder.rungs[-1].result.run_folder
    if run_folder is not None:
        page = render_report(profile_document(read_run(run_folder)), folder=str(run_folder.relative_to(folder)))
        (folder / REPORT).write_text(page, encoding="utf-8")


def _print_json(document: dict[str, Any]) -> None:

    write_json(document)


def _print_table(ladder: Ladder, folder: Path, delay_seconds: float) -> None:
    from rich.bar import Bar
    from rich.table import Table

    from headrace.base.units import format_duration
    from headrace.demo.ladder import describe_machine

    best = max(rung.rate_per_second for rung in ladder.rungs)
    table = Table(title="One pipeline, five Plans", title_justify="left")
    for heading, justify in (
        ("Plan", "left"),
        ("images/s", "right"),
        ("", "left"),
        ("against the step before", "left"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for rung in ladder.rungs:
        bar = Bar(best, 0, rung.rate_per_second, width=24)
        table.add_row(rung.name, f"{rung.rate_per_second:.1f}", bar, ladder.verdict(rung))
    console = open_console()
    console.print()
    console.print(table)
    first, last = ladder.rungs[0], ladder.rungs[-1]
    total = len(ladder.truth)
    console.print(
        f"before {first.rate_per_second:.1f}/s, after {last.rate_per_second:.1f}/s: "
        f"x{last.rate_per_second / first.rate_per_second:.1f}, on {describe_machine()}, in one pass each."
    )
    console.print(
        f"Answers: all five runs agree on {ladder.num_agreeing} of {total} images; right: {ladder.num_right(first)} before, "
        f"{ladder.num_right(last)} after."
    )
    console.print(
        f"Simulated: only the network delay, {format_duration(delay_seconds)} per image. Photographs, queue, HTTP, decoding, "
        "model and callbacks are real."
    )
    console.print(f"Written: {folder} (ladder.json, plans/, runs/, images/)")
    console.print(
        f"Where the time went: open {folder / REPORT}; the other runs: headrace report {folder / 'runs' / 'NAME'}"
    )
