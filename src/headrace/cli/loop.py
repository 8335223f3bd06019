"""Make a pipeline faster unattended: profile, diagnose, tune or optimize, validate; every try in the ledger.

    headrace loop jobs:pipeline --source photos/ --goal throughput=100/s --budget 30m --dry-run     what it would do
    headrace loop jobs:pipeline --source photos/ --goal throughput=100/s --budget 30m -o runs/faster
    headrace loop jobs:pipeline --plan today.toml --goal p99=80ms --goal throughput=20/s
    headrace loop jobs:pipeline --source photos/ --data train/ --golden held_out/       variants of the model, too

It profiles the pipeline, says what limits it, and takes the step that is predicted to gain most: `tune` for settings of the
Plan, `optimize` for a cheaper variant of the model. Only what was measured to be better is kept. It ends when the goals are
met, when nothing is predicted to gain 3 % any more (--least-gain), or when the budget is used up; then the last Plan is
measured against the first.

Without --golden nothing is changed that could change answers: the model stays, and `decode.scale` too. With a golden folder a
Plan that decodes otherwise is taken if the pipeline gives the same answers on it, and --data allows variants of the model.
Results are dropped unless --deliver is given. Your own Plan file is not touched.

-o DIR holds it all: loop.json, before.toml, plan.toml, and the run folders. Each step names the command that does the same by
hand. Ctrl-C and SIGKILL lose the step at work; the same command goes on with it.

Exit status: 0 the goals are met, or without goals it is done; 1 they are not met, or jobs fail; 2 misuse; 3 a step failed; 4
whether they are met is not known, or the budget did not suffice for a step; 130 interrupted.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISSING, EXIT_NEGATIVE
from headrace.cli.pipeline_arguments import add_plan_arguments, open_plan, points, seconds, stdout_kept
from headrace.cli.terminal import speaker, write, write_json
from headrace.cli.whatif import add_ledger_argument

if TYPE_CHECKING:
    from headrace.loop.folder import LoopFolder
    from headrace.loop.goals import Goals
    from headrace.runs.formats.loop import LoopAsked, LoopDocument

_say = speaker("loop")

EXIT_INCONCLUSIVE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help="the Pipeline; a file works too: jobs.py:pipeline")
    add_plan_arguments(parser)
    parser.add_argument(
        "--source", help="a folder, a glob, or a .txt of URLs or paths, instead of the pipeline's source"
    )
    asked = parser.add_argument_group("what is asked for")
    asked.add_argument(
        "--goal", action="append", default=[], metavar="GOAL",
        help="throughput=30/s, p99=80ms, or cost=1.5/M with --price; may be repeated; without one: as much as can be gained",
    )  # fmt: skip
    asked.add_argument("--price", metavar="PRICE", help="of this machine, such as 0.75/h; for a goal of cost")
    asked.add_argument("--budget", type=seconds, metavar="TIME", help="begin nothing that does not fit: 30m")
    asked.add_argument(
        "--least-gain", type=points, default=0.03, metavar="SHARE",
        help="do not try what is predicted to gain less (default 3%%)",
    )  # fmt: skip
    model = parser.add_argument_group("variants of the model, and Plans that decode otherwise")
    model.add_argument("--golden", metavar="FILE-or-FOLDER", help="decides on accuracy, as of `headrace optimize`")
    model.add_argument("--data", metavar="FILE-or-FOLDER", help="calibration data for int8, apart from --golden")
    model.add_argument(
        "--max-drop", type=points, default=0.005, metavar="DROP",
        help="largest acceptable drop of the share of right answers: 0.5pt, 0.5%% or 0.005 (default 0.5pt)",
    )  # fmt: skip
    model.add_argument("--model", metavar="FILE", help="the model's file (default: the one that the module names)")
    work = parser.add_argument_group("how")
    work.add_argument("-o", "--output", metavar="DIR", help="the loop's folder (default runs/loop-NAME)")
    work.add_argument("--force", action="store_true", help="begin again in a folder that holds a loop")
    work.add_argument("--dry-run", action="store_true", help="say what would be done and how long it takes, and stop")
    work.add_argument("--deliver", action="store_true", help="deliver the results of every run; else they are dropped")
    work.add_argument(
        "--seconds", type=seconds, default=1.0, metavar="TIME", help="length of a measured block (default 1s)"
    )
    add_ledger_argument(work)
    work.add_argument("--json", action="store_true", help="print JSON (schema headrace.loop/1)")


def run(args: argparse.Namespace) -> int:
    """Run the loop, and print what came of it."""
    from headrace.cli.loop_steps import LoopSteps
    from headrace.cli.loop_text import as_text, describe_dry_run
    from headrace.loop.runner import Watched, run_loop

    goals = _goals(args)
    with stdout_kept(args.json):
        plan_text, asked = _ask(args, goals)
        folder = _folder(args)
        if args.dry_run:
            known = None if args.force else folder.resume(asked, budget_seconds=args.budget)
            _check_new(args, folder, known)
            write(describe_dry_run(asked, known, args.budget, folder), end="")
            return EXIT_DONE
        document = _begin(args, folder, asked, plan_text)
        _say(_promise(asked))
        document = run_loop(folder, document, LoopSteps(folder, goals, _say), Watched(say=_say))
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document), end="")
    return _status(document)


def _goals(args: argparse.Namespace) -> Goals:
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_price
    from headrace.base.settings import check
    from headrace.loop.goals import parse_goals

    check(0 < args.least_gain < 10, "--least-gain", args.least_gain, "a share above 0, such as 3%")
    try:
        price = None if args.price is None else parse_price(args.price)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return parse_goals(args.goal, price)


def _ask(args: argparse.Namespace, goals: Goals) -> tuple[str, LoopAsked]:
    """Return the first Plan's text and what is asked; raises SettingsError for what cannot be, before anything runs."""
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import load_pipeline
    from headrace.cli.pipeline_arguments import items_source, list_allowed_networks
    from headrace.loop.folder import plan_sha256
    from headrace.runs.formats.loop import LoopAsked

    pipeline, plan = load_pipeline(args.pipeline), open_plan(args)
    if next(items_source(args.source, pipeline).entries(), None) is None:
        raise SettingsError("the source has no items to measure with; name another with --source")
    if args.data and not args.golden:
        raise SettingsError("--data is for variants of the model, on which --golden decides; give both")
    for option, path in (("--golden", args.golden), ("--data", args.data)):
        if path and not Path(path).exists():
            raise SettingsError(f"{option} {path} does not exist; expected a folder or an .npz file")
        if path and Path(path).is_dir():
            _check_images(option, path)
    is_as_written = args.plan and not args.settings and not list_allowed_networks(args)
    text = Path(args.plan).read_text(encoding="utf-8") if is_as_written else plan.as_toml()
    return text, LoopAsked(
        pipeline=args.pipeline, source=args.source or "", goals=tuple(args.goal), rate=goals.rate, slo=goals.slo_text,
        least_gain=args.least_gain, model=_model(args, pipeline) if args.golden else "", data=args.data or "",
        golden=args.golden or "", max_drop=args.max_drop, deliver=args.deliver, block_seconds=args.seconds,
        plan_sha256=plan_sha256(text),
    )  # fmt: skip


def _check_images(option: str, folder: str) -> None:
    """Minutes are not spent before it is seen that nothing can be judged by it."""
    from headrace.base.errors import HeadraceError, SettingsError
    from headrace.cli.loading import parse_source
    from headrace.sources.finite import FiniteSource

    source = parse_source(folder, drain=True)
    assert isinstance(source, FiniteSource)
    try:
        next(source.entries(), None)
    except HeadraceError as error:
        raise SettingsError(f"{option} {folder}: {error}") from None


def _model(args: argparse.Namespace, pipeline: object) -> str:
    """Return the model's file; empty if the pipeline runs none that is known."""
    from headrace.base.errors import SettingsError
    from headrace.cli.module_argument import stage_of_model

    if args.model:
        return str(args.model)
    try:
        return stage_of_model(pipeline, None).defaults().model  # type: ignore[arg-type]
    except SettingsError as error:
        _say(f"variants of the model are not tried: {error}")
        return ""


def _folder(args: argparse.Namespace) -> LoopFolder:
    from headrace.loop.folder import LoopFolder

    name = re.sub(r"[^A-Za-z0-9_-]+", "-", args.pipeline.removesuffix(":pipeline").removesuffix(".py")).strip("-")
    return LoopFolder(Path(args.output or f"runs/loop-{name or 'pipeline'}"))


def _begin(args: argparse.Namespace, folder: LoopFolder, asked: LoopAsked, plan_text: str) -> LoopDocument:
    from headrace.ledger.ledger import Ledger

    known = None if args.force else folder.resume(asked, budget_seconds=args.budget)
    with Ledger.open(args.ledger) as ledger:  # first: what could not be written down would be measured in vain
        path = str(ledger.path)
    if known is None:
        return folder.begin(asked, plan_text, budget_seconds=args.budget, ledger=path)
    _say(f"going on with the loop in {folder.path} after step {len(known.steps)}")
    return known


def _check_new(args: argparse.Namespace, folder: LoopFolder, known: LoopDocument | None) -> None:
    if known is None and not args.force and folder.path.exists():
        _say(f"{folder.path} is there, and empty")


def _promise(asked: LoopAsked) -> str:
    if not asked.golden:
        return "without --golden nothing is changed that could change answers: the model and decode.scale stay"
    return f"answers are judged by {asked.golden}: at most {100 * asked.max_drop:g} points fewer may be right"


def _status(document: LoopDocument) -> int:
    if document.stopped == "interrupted":
        return EXIT_INTERRUPTED
    if document.stopped == "failed":
        return EXIT_MISSING
    if document.stopped == "jobs fail":
        return EXIT_NEGATIVE
    if not document.asked.goals:
        return EXIT_DONE if document.steps else EXIT_INCONCLUSIVE
    return {True: EXIT_DONE, False: EXIT_NEGATIVE, None: EXIT_INCONCLUSIVE}[document.is_met]
