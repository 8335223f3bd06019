"""Experiments on a pipeline: the arguments, and the pipeline of a run that was recorded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.pipeline_arguments import add_pipeline_arguments, open_pipeline, seconds, stdout_kept
from headrace.cli.terminal import say

if TYPE_CHECKING:
    from headrace.runs.run_folder import RunInfo

USUAL_SECONDS = 60.0


def add_experiment_arguments(parser: argparse.ArgumentParser, name: str, says: str, budget: str) -> None:
    """Declare the option that asks for an experiment, how long it may last, and whether its results are delivered."""
    parser.add_argument(name, action="store_true", help=says)
    parser.add_argument(
        budget,
        type=seconds,
        default=USUAL_SECONDS,
        metavar="TIME",
        help="how long the experiment may last (default 60s); it ends earlier once all is decided",
    )
    parser.add_argument(
        "--deliver", action="store_true", help="of a folder or list: deliver the results of the experiment too"
    )


def experiment_again(folder: str, *, budget_seconds: float, deliver: bool, for_document: bool) -> None:
    """Experiment on the pipeline of a recorded run, and write what came of it into the run's folder.

    Args:
        folder: Of the run.
        budget_seconds: The longest time, > 0.
        deliver: Deliver the results of a folder or list too.
        for_document: Whether stdout is for one JSON document.

    Raises:
        SettingsError: If nobody knows how the run was started.
        HeadraceError: If its pipeline cannot be opened or run.
    """
    from headrace.profiler.experiment.running import add_experiment
    from headrace.runs.reader import read_run

    arguments = _arguments_of(read_run(folder).info)
    with stdout_kept(for_document):
        pipeline, plan = open_pipeline(arguments)
        add_experiment(
            pipeline,
            plan,
            Path(folder),
            lambda text: say(f"headrace: {text}"),
            budget_seconds=budget_seconds,
            deliver=deliver,
        )


def _arguments_of(recorded: RunInfo) -> argparse.Namespace:
    """Return the arguments with which a run was started, without a limit of its jobs."""
    from headrace.base.errors import SettingsError
    from headrace.runs.rerun_command import again, is_address

    if not is_address(recorded.pipeline):
        raise SettingsError(
            f"the run is of {recorded.pipeline!r}, which was started from code: nobody can start it again by its name. Use "
            "headrace profile MODULE:ATTRIBUTE --experiment"
        )
    if recorded.served:
        raise SettingsError(
            "the run is of a service, whose requests cannot be made again; experiment on its pipeline over a folder: "
            f"headrace profile {recorded.pipeline} --source PATH --experiment"
        )
    parser = argparse.ArgumentParser()
    add_pipeline_arguments(parser)
    arguments, _ = parser.parse_known_args(again(recorded))
    return arguments
