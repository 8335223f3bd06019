"""The arguments of `headrace optimize`, group by group as `--help` shows them."""

from __future__ import annotations

import argparse

from headrace.cli.metric_argument import add_metric_argument
from headrace.cli.pipeline_arguments import points, positive, seconds, sizes
from headrace.cli.search_worth import add_goal_arguments
from headrace.cli.techniques_argument import ListTechniques
from headrace.cli.whatif import add_ledger_argument


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare them all."""
    parser.add_argument(
        "model", metavar="MODEL",
        help="the model file, or MODULE:ATTRIBUTE of a recipe; with --explain a variant, MODEL[@ENGINE[,KEY=VALUE]...]",
    )  # fmt: skip
    _add_data(parser.add_argument_group("data, apart from one another"))
    _add_goal(parser.add_argument_group("what is asked for"))
    _add_tried(parser.add_argument_group("what to try"))
    _add_pipeline(parser.add_argument_group("the whole pipeline"))
    _add_output(parser.add_argument_group("what is written"))
    _add_look(parser.add_argument_group("look only, and stop"))


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data", metavar="FILE-or-FOLDER", help="calibration data, an .npz or .npy file, or a folder of images"
    )
    group.add_argument(
        "--golden", metavar="FILE-or-FOLDER", help="an .npz file with inputs and labels, or a folder, which decides"
    )


def _add_goal(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-drop", type=points, default=0.005, metavar="DROP",
        help="largest acceptable drop of the share of right answers: 0.5pt, 0.5%% or 0.005 (default 0.5pt)",
    )  # fmt: skip
    group.add_argument(
        "--max-slice-drop", type=points, default=0.05, metavar="DROP",
        help="the same within a part of the golden set, such as a class (default 5pt)",
    )  # fmt: skip
    add_metric_argument(group)
    group.add_argument(
        "--robustness", action="store_true", help="also ask spoiled images: blur, noise, JPEG, light, rotation, grey"
    )
    group.add_argument(
        "--for", choices=("throughput", "latency", "size", "cost"), default="throughput", dest="objective",
        help="what to make better (default throughput); cost: less CPU time for an item, at no lower rate",
    )  # fmt: skip
    group.add_argument(
        "--price",
        metavar="PRICE",
        help="of this machine, such as 0.75/h: what attempts cost, and images for one unit of it",
    )
    add_goal_arguments(group)


def _add_tried(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch", type=positive, metavar="N", help="items of the calls that are timed (default: 1 for latency, else 8)"
    )
    group.add_argument("--threads", type=positive, metavar="N", help="threads of a call (default: the Plan's, else 1)")
    group.add_argument(
        "--no-layout", action="store_true", help="do not look for workers, threads and batch of the fastest"
    )
    group.add_argument(
        "--input-sizes", type=sizes, default=(), metavar="SIZES",
        help="smaller inputs to try, of the shorter side: 160,128; made by the pipeline where it prepares the sets",
    )  # fmt: skip
    group.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="FILE",
        help="another model to try, of the same inputs; may be repeated",
    )
    group.add_argument(
        "--target", choices=("here", "x86-vnni", "x86", "tensorrt"), default="here",
        help="what int8 is written for (default: this machine)",
    )  # fmt: skip
    group.add_argument(
        "--budget", type=seconds, metavar="TIME",
        help="begin no new candidate and no training after it, from the start of the command: 10m",
    )  # fmt: skip
    group.add_argument(
        "--again", action="store_true", help="repeat attempts that are in the ledger; it keeps both outcomes"
    )


def _add_pipeline(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pipeline", metavar="MODULE:ATTRIBUTE", help="decodes and preprocesses folders, as it does its own items"
    )
    group.add_argument(
        "--run", metavar="RUN", dest="run_folder", help="a profiled run; says whether the model is worth it"
    )
    group.add_argument(
        "--source", metavar="SOURCE",
        help="with --pipeline: a folder, a glob, or a .txt of URLs or paths on which the pipeline is measured with what was "
        "found",
    )  # fmt: skip
    group.add_argument(
        "--anyway",
        action="store_true",
        help="go on although --run says that it gains nothing or that the goals are met, or the measured pipeline does",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--plan", metavar="FILE", help="the Plan in use, which -o changes (default: an empty one)")
    group.add_argument("--report", metavar="FILE", help="write a page with accuracy against speed, and every reason")
    group.add_argument("-o", "--output", metavar="FILE", help="write a Plan that uses the recommended variant")
    group.add_argument("--force", action="store_true", help="replace FILE")
    add_ledger_argument(group)
    group.add_argument(
        "--json", action="store_true",
        help="print JSON (schema headrace.optimization/1, headrace.census/1 or headrace.portability/1)",
    )  # fmt: skip


def _add_look(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--techniques", action=ListTechniques, help="list what can be tried, what it needs and gains, and stop"
    )
    group.add_argument("--explain", action="store_true", help="show what the engine makes of a variant, and stop")
    group.add_argument(
        "--against", metavar="MODEL", help="with --explain: the variant that each layer's numbers are held against"
    )
    group.add_argument("--portability", action="store_true", help="say what would fail on which engine, and stop")
