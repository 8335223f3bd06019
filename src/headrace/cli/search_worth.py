"""Whether a search for a cheaper model is worth its time, by a recorded run: goals that are met, and the model's share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import quote_arg

if TYPE_CHECKING:
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.formats.optimization import Ceiling, OptimizationDocument

Say = Callable[[str], object]


def add_goal_arguments(parser: argparse._ActionsContainer) -> None:
    """Declare `--slo` and `--rate`, as `headrace diagnose` has them."""
    parser.add_argument(
        "--slo", action="append", default=[], metavar="GOAL",
        help="with --run: a latency that must be kept, such as p99=200ms; where it is kept already, nothing is tried",
    )  # fmt: skip
    parser.add_argument("--rate", metavar="RATE", help="with --run: jobs that must be done, such as 100/s; the same")


def check_worth(
    args: argparse.Namespace, analysis: Analysis | None, say: Say
) -> tuple[Ceiling | None, OptimizationDocument | None]:
    """Return what a free model would bring, and the document of a search that is not begun; None where it is.

    Args:
        args: Of `headrace optimize`.
        analysis: Of the run that `--run` names; None without.
        say: Told what the run shows, one line at a time.

    Raises:
        SettingsError: If a goal is none, or there is no run to hold it against.
    """
    from headrace.base.errors import SettingsError
    from headrace.cli.diagnose import find_goals
    from headrace.diagnose.diagnosis import diagnosis_document

    goals = find_goals(args)
    if analysis is None:
        if goals:
            raise SettingsError(
                "--slo and --rate need --run RUN, a run of `headrace profile` that they are held against"
            )
        return None, None
    if goals:
        diagnosis = diagnosis_document(analysis, goals)
        told = [goal.outcome for goal in diagnosis.goals]
        say("; ".join(told))
        if diagnosis.good_enough and not args.anyway:
            is_one = len(diagnosis.goals) == 1
            says = f"{'your goal is' if is_one else 'your goals are'} met: stop here ({'; '.join(told)})"
            return None, _make_unstarted_document(args, "goal", says)
    return _check_ceiling(args, analysis, say)


def _check_ceiling(
    args: argparse.Namespace, analysis: Analysis, say: Say
) -> tuple[Ceiling | None, OptimizationDocument | None]:
    import msgspec

    from headrace.diagnose.replay import CannotReplay
    from headrace.optimize.amdahl import find_amdahl_bound

    try:
        ceiling = find_amdahl_bound(analysis)
    except CannotReplay as error:
        say(f"what a faster model would buy is not known: {error}")
        return None, None
    say(ceiling.says)
    if not ceiling.is_low or args.anyway:
        return ceiling, None
    if args.objective != "throughput":
        say(f"that is of the throughput: the search for {args.objective} goes on")
        return ceiling, None
    if args.input_sizes and args.pipeline:
        say("that is of the model alone, and smaller images are cheaper to decode and scale too: the search goes on")
        return ceiling, None
    document = _make_unstarted_document(args, "ceiling", f"nothing was tried: {ceiling.says}")
    return ceiling, msgspec.structs.replace(document, ceiling=ceiling)


def _make_unstarted_document(args: argparse.Namespace, why: str, says: str) -> OptimizationDocument:
    """Return the document of a search that was not begun."""
    from headrace.engines.model_files import model_files
    from headrace.runs.formats.optimization import Artifact, OptimizationDocument
    from headrace.runs.formats.variants import VariantSide

    file = Path(args.model)
    files = model_files(file) if file.is_file() else None  # a recipe is not converted for this
    return OptimizationDocument(
        baseline=VariantSide(name=args.model, variant={}, open_seconds=0.0),
        model=Artifact(
            sha256=files.sha256() if files else "", file=args.model, num_bytes=files.num_bytes if files else 0
        ),
        objective=args.objective, max_drop=args.max_drop, batch=args.batch or 1, golden="", attempts=(),
        stopped=why,  # type: ignore[arg-type]
        says=f"{says}; --anyway goes on", next_command=f"headrace diagnose {quote_arg(args.run_folder)}",
    )  # fmt: skip
