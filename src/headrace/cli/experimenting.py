"""The arguments of commands that experiment on a pipeline."""

from __future__ import annotations

import argparse

from headrace.cli.pipeline_arguments import seconds

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
