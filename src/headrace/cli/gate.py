"""Fail a build if a change makes a pipeline slower: BASE and NEW in turn, a fixed time, a verdict, a comment.

    headrace gate base::jobs:pipeline new::jobs:pipeline --source photos/ --max-slowdown 5%
    headrace gate jobs:pipeline jobs:pipeline@after.toml --metric cpu
    headrace gate base::jobs.py:pipeline .::jobs.py:pipeline --markdown comment.md --junit gate.xml
    headrace gate runs/before runs/after

BASE and NEW are each a pipeline, [DIR::]MODULE:ATTRIBUTE[@PLAN.toml], where DIR is a checkout: its modules are imported, and
its files are read, in a process of its own. Or both are run folders, where nothing can be run again: then only losses beyond a
tenth can be told, since the machine may have been another speed. Both sides run over the same items; results are dropped.

Blocks of both are run in turn until it is sure whether NEW is slower by more than --max-slowdown, or the time is over. It says
that it ran also when all is well.

Exit status: 0 not slower by more than allowed; 1 slower; 2 misuse; 3 a side cannot run, such as one whose jobs fail, which the
files say too; 4 it cannot be told within the time; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE
from headrace.cli.compare import EXIT_INCONCLUSIVE, share
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import (
    add_allow_argument,
    items_source,
    list_allowed_networks,
    positive,
    seconds,
    stdout_kept,
)
from headrace.cli.terminal import as_json, speaker, write, write_machine_readable

if TYPE_CHECKING:
    from headrace.compare.blocks import Contender
    from headrace.compare.comparison import Question
    from headrace.compare.elsewhere import Elsewhere
    from headrace.runs.formats.comparison import ComparisonDocument
    from headrace.runs.formats.gate import GateDocument, GateVerdict
    from headrace.sources.finite import FiniteSource

_say = speaker("gate")

_STATUS: dict[GateVerdict, int] = {"passed": EXIT_DONE, "failed": EXIT_NEGATIVE, "cannot_tell": EXIT_INCONCLUSIVE}
_FILES = ("output", "markdown", "junit")


class Side(NamedTuple):
    """What BASE or NEW names."""

    name: str
    folder: str
    target: str
    plan: str
    """Path of a Plan, from the folder; empty: the defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("base", metavar="BASE", help="[DIR::]MODULE:ATTRIBUTE[@PLAN.toml], or a run folder")
    parser.add_argument("new", metavar="NEW", help="the change, named in the same way")
    parser.add_argument("--plan", metavar="FILE", help="the Plan of both, where they name none")
    parser.add_argument("--source", help="a folder, a glob, or a .txt of URLs or paths, instead of the pipelines' own")
    add_allow_argument(parser)
    parser.add_argument(
        "--metric", choices=("throughput", "latency", "cpu"), default="throughput", help="what must not get worse"
    )
    parser.add_argument(
        "--max-slowdown", type=share, default=0.05, metavar="SHARE", help="the largest loss allowed (default 5%%)"
    )
    parser.add_argument(
        "--time-limit", type=seconds, default=300.0, metavar="TIME", help="begin no pair after it (default 5min)"
    )
    parser.add_argument(
        "--blocks", type=positive, default=12, metavar="N", help="pairs before the first look (default 12)"
    )
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="TIME", help="length of a block (default 1s)")
    parser.add_argument("--markdown", metavar="FILE", help="write a summary for a comment")
    parser.add_argument("--junit", metavar="FILE", help="write the verdict as a JUnit test")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.gate/1)")
    parser.add_argument("--force", action="store_true", help="replace these files")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.gate/1)")


def run(args: argparse.Namespace) -> int:
    """Compare, and say whether the change may pass."""
    from headrace.base.errors import HeadraceError, Interrupted
    from headrace.cli.gate_text import as_junit, as_markdown, as_text, error_as_junit, error_as_markdown
    from headrace.compare.comparison import METRICS, Question

    for option in _FILES:
        check_output(getattr(args, option), force=args.force, option="-o" if option == "output" else f"--{option}")
    began = time.monotonic()
    question = Question(metric=METRICS[args.metric], budget=args.max_slowdown)
    try:
        with stdout_kept(args.json):
            comparison = _compare(args, question)
    except Interrupted:
        raise
    except HeadraceError as error:  # a build shows the files, not what is printed
        report = error_as_junit(args.base, args.new, str(error), time.monotonic() - began)
        _write_files((args.markdown, error_as_markdown(str(error))), (args.junit, report))
        raise
    document = _judge(comparison, args.max_slowdown, time.monotonic() - began)
    encoded = as_json(document, indented=True)
    _write_files((args.output, encoded), (args.markdown, as_markdown(document)), (args.junit, as_junit(document)))
    if args.json:
        write_machine_readable(encoded)
    else:
        write(as_text(document), end="")
    return EXIT_INTERRUPTED if comparison.interrupted else _STATUS[document.verdict]


def _write_files(*files: tuple[str | None, str]) -> None:
    for file, text in files:
        if file:
            write_output(Path(file), text, option=f"the file {file}")


def _judge(comparison: ComparisonDocument, max_slowdown: float, took: float) -> GateDocument:
    from headrace.cli.gate_text import describe
    from headrace.runs.formats.gate import GateDocument

    verdict: GateVerdict = "cannot_tell"
    if comparison.budget_met is not None:
        verdict = "passed" if comparison.budget_met else "failed"
    return GateDocument(
        verdict=verdict,
        max_slowdown=max_slowdown,
        seconds=took,
        says=describe(verdict, comparison, max_slowdown),
        comparison=comparison,
    )


def _compare(args: argparse.Namespace, question: Question) -> ComparisonDocument:
    from headrace.base.errors import SettingsError
    from headrace.compare.comparison import compare_pipelines, compare_runs
    from headrace.compare.contenders import Blocks
    from headrace.compare.elsewhere import ItemsElsewhere
    from headrace.runs.file_names import RUN_JSON
    from headrace.runs.member_folders import find_members
    from headrace.runs.whole_run import read_whole

    are_folders = [Path(text).is_dir() for text in (args.base, args.new)]
    for text in (text for text, is_folder in zip((args.base, args.new), are_folders, strict=True) if is_folder):
        if not (Path(text) / RUN_JSON).exists() and not find_members(Path(text)):
            raise SettingsError(
                f"{text} has no run.json: it is no run folder. Of a checkout, name the pipeline too: {text}::MODULE:ATTRIBUTE"
            )
    if all(are_folders):
        return compare_runs(read_whole(args.base), read_whole(args.new), question=question)
    if any(are_folders):
        raise SettingsError("one of BASE and NEW is a run folder; expected two run folders or two pipelines")
    blocks = Blocks(pairs=args.blocks, seconds=args.seconds, until_sure=True, time_limit_seconds=args.time_limit)
    allowed = list_allowed_networks(args)
    with contextlib.ExitStack() as opened:
        a, b = (
            opened.enter_context(_open_elsewhere(parse_side(text, args.plan), _absolute(args.source), allowed))
            for text in (args.base, args.new)
        )
        _say(f"BASE is {a.pipeline_name} of {args.base}, NEW is {b.pipeline_name} of {args.new}; results are dropped")
        items = ItemsElsewhere(a, b)

        def say(line: str) -> None:
            items.check_same()
            _say(line)

        document = compare_pipelines(a, b, items, question=question, blocks=blocks, say=say)
        items.check_same()
    return document


def parse_side(text: str, plan: str | None) -> Side:
    """Return what a user named.

    Args:
        text: `[DIR::]MODULE:ATTRIBUTE[@PLAN.toml]`.
        plan: Of both, where they name none, from the working folder.

    Raises:
        SettingsError: If it is not that.
    """
    from headrace.base.errors import SettingsError

    folder, separator, rest = text.partition("::")
    folder, rest = (folder, rest) if separator else (".", text)
    target, at, own = rest.partition("@")
    if not target or (":" not in target and not target.endswith(".py")) or (at and not own) or not folder:
        raise SettingsError(
            f"{text!r} is no run folder here and no pipeline; expected [DIR::]MODULE:ATTRIBUTE[@PLAN.toml]"
        )
    if not Path(folder).is_dir():
        raise SettingsError(f"{text!r}: there is no folder {folder}; expected a checkout with the pipeline's module")
    return Side(text, str(Path(folder).resolve()), target, own or (os.path.abspath(plan) if plan else ""))


def _absolute(source: str | None) -> str | None:
    """Return a source that means the same from another folder."""
    return source if not source or "://" in source else os.path.abspath(source)


def _open_elsewhere(side: Side, source: str | None, allowed: list[str]) -> Elsewhere:
    from headrace.compare.elsewhere import Elsewhere

    return Elsewhere(side.name, Path(side.folder), functools.partial(open_side, side, source, tuple(allowed)))


def open_side(side: Side, source: str | None, allowed: tuple[str, ...]) -> tuple[Contender, FiniteSource]:
    """Return what one side runs; called in its folder and in a process of its own."""
    from headrace.base.plan import Plan
    from headrace.cli.loading import load_pipeline
    from headrace.compare.blocks import Contender

    pipeline = load_pipeline(side.target)
    plan = (Plan.load(side.plan) if side.plan else Plan()).allowing(allowed)
    contender = Contender(name=side.name, pipeline=pipeline, plan=plan)
    return contender, items_source(source, pipeline)
