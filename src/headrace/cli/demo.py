"""See what headrace does, on real photographs, in about a minute; or hear a story of a slow pipeline.

    headrace demo                 one pipeline under five Plans
    headrace demo --list          the stories
    headrace demo nms             tells one, by running it

Starts a local image server with a stated network delay, an SQLite queue with some hundreds of real crops, and a callback
receiver; then runs one pipeline under five Plans: sequential, threaded I/O, overlapped, batched, decode at scale. The
model is the small one that ships with headrace. Only the network delay is simulated. Each run is profiled and diagnosed;
report.html shows what each step gained, what limits the last one, and where its time went. pipeline.py, beside it, is the same
pipeline for other commands.

A story is a pipeline that was slow, what people believed of it, and what it was. Its program is copied into the folder and
profiled; `diagnose` names the cause, `whatif` predicts what each proposal would bring, and `compare` measures those that were
tried. Each command is shown, and can be typed again in the folder; the end says where.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal import open_console, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.demo.ladder import Ladder
    from headrace.demo.page import Diagnoses
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.formats.profile import ProfileDocument

#: The page.
REPORT = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("story", nargs="?", metavar="STORY", help="a story to tell, in place of the ladder")
    parser.add_argument("--list", action="store_true", help="list the stories")
    parser.add_argument("-o", "--output", metavar="DIR", help="where to write; default headrace-demo/TIME")
    parser.add_argument(
        "--count", type=int, default=240, metavar="N", help="images per rung, at least 30 (default 240)"
    )
    parser.add_argument("--delay", default="80ms", help="the image server's delay (default 80ms)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.demo/1)")


def run(args: argparse.Namespace) -> int:
    """List the stories, tell one, or run the ladder and print what each step bought."""
    if args.list:
        return _list_stories(args)
    if args.story:
        return _tell(args)
    return _climb(args)


def _list_stories(args: argparse.Namespace) -> int:
    from headrace.base.formatting import wrap_lines
    from headrace.cli import EXIT_DONE
    from headrace.demo.stories import find_folders, read_story

    stories = {name: read_story(folder) for name, folder in find_folders().items()}
    if args.json:
        listed = {name: {"title": story.title, "believed": story.believed} for name, story in stories.items()}
        write_json({"schema": "headrace.stories/1", "stories": listed})
        return EXIT_DONE
    for name, story in stories.items():
        write("\n".join([name, *wrap_lines([f"  {story.title}", f"  believed: {story.believed}"])]))
    write("\nTell one: headrace demo STORY")
    return EXIT_DONE


def _tell(args: argparse.Namespace) -> int:
    from headrace.cli import EXIT_DONE
    from headrace.demo.stories import copy_story, find_folder
    from headrace.demo.telling import tell

    source = find_folder(args.story)
    folder = _make_folder(args.output or f"headrace-demo/{args.story}-{time.strftime('%Y%m%d-%H%M%S')}")
    copy_story(source, folder)
    tell(folder, _write_at_once)
    again = "each command can be typed again there, with --force where it would replace what it wrote"
    speaker("demo")(f"the program, its Plans and its runs: {folder}; {again}")
    return EXIT_DONE


def _write_at_once(line: str) -> None:
    write(line)
    sys.stdout.flush()  # a story takes a minute, and is read while it goes on


def _make_folder(path: str) -> Path:
    from headrace.base.errors import SettingsError
    from headrace.base.settings import check

    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise SettingsError(f"--output {folder} cannot be written: {error.strerror}; name another with -o") from error
    check(is_empty, "--output", str(folder), "a new or empty folder")
    return folder


def _climb(args: argparse.Namespace) -> int:
    from headrace.base.errors import SettingsError
    from headrace.base.settings import check
    from headrace.base.units import parse_duration
    from headrace.cli import EXIT_DONE
    from headrace.cli.report import diagnose_run
    from headrace.demo.ladder import climb

    check(args.count >= 30, "--count", args.count, "a whole number >= 30: fewer images tell nothing about rates")
    try:
        delay_seconds = parse_duration(args.delay)
    except ValueError as error:
        raise SettingsError(f"--delay: {error}") from None
    folder = _make_folder(args.output or f"headrace-demo/{time.strftime('%Y%m%d-%H%M%S')}")
    ladder = climb(
        folder,
        count=args.count,
        delay_seconds=delay_seconds,
        watch=_watch,
        progress=speaker("demo"),
    )
    analyses = _analyse(ladder)
    diagnoses = {name: diagnose_run(analysis) for name, analysis in analyses.items()}
    document = as_dict(ladder, diagnoses, folder, delay_seconds)
    _write(folder, document)
    if (last := analyses.get(ladder.rungs[-1].name)) is not None:
        _write_report(folder, ladder, diagnoses, last.profile, delay_seconds)
    if args.json:
        write_json(document)
    else:
        _print_table(ladder, diagnoses, folder, delay_seconds)
    return EXIT_DONE


def _watch(name: str, total: int) -> Any:
    from headrace.cli.live import LiveView

    return lambda run: LiveView(run.summary, run.statistics, total)


def _analyse(ladder: Ladder) -> dict[str, Analysis]:
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.reader import read_run

    folders = {rung.name: rung.result.run_folder for rung in ladder.rungs}
    return {name: Analysis(read_run(folder)) for name, folder in folders.items() if folder is not None}


def as_dict(ladder: Ladder, diagnoses: Diagnoses, folder: Path, delay_seconds: float) -> dict[str, Any]:
    """Return the ladder as `headrace demo --json` prints it (schema `headrace.demo/1`)."""
    from headrace.demo.page import name_limit

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
                "limited_by": name_limit(diagnoses.get(rung.name)),
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


def _write_report(
    folder: Path, ladder: Ladder, diagnoses: Diagnoses, profile: ProfileDocument, delay_seconds: float
) -> None:
    from headrace.demo.page import render_demo

    page = render_demo(ladder, diagnoses, profile, folder, delay_seconds)
    (folder / REPORT).write_text(page, encoding="utf-8")


def _print_table(ladder: Ladder, diagnoses: Diagnoses, folder: Path, delay_seconds: float) -> None:
    from rich import box
    from rich.bar import Bar
    from rich.table import Table

    from headrace.demo.ladder import describe
    from headrace.demo.page import name_limit, suggest_commands

    best = max(rung.rate_per_second for rung in ladder.rungs)
    table = Table(title="One pipeline, five Plans", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Plan", no_wrap=True)
    table.add_column("images/s", justify="right")
    for heading in ("", "against before", "what limits it"):
        table.add_column(heading)
    for rung in ladder.rungs:
        bar = Bar(best, 0, rung.rate_per_second, width=12)
        limit = name_limit(diagnoses.get(rung.name)) or "-"
        table.add_row(rung.name, f"{rung.rate_per_second:.1f}", bar, ladder.verdict(rung), limit)
    console = open_console()
    console.print()
    console.print(table)
    for line in describe(ladder, delay_seconds):
        console.print(line)
    console.print(f"Written: {folder} (ladder.json, pipeline.py, plans/, runs/, images/)")
    console.print(f"\nThe page: {folder / REPORT}\nWhat to type next:", soft_wrap=True)
    for what, command in suggest_commands(folder).items():
        console.print(f"  {what}:\n    {command}", soft_wrap=True)
