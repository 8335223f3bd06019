"""Runs a pipeline with a fault, profiled: `python -m benchmarks.faults F8 --shape decode_heavy --dose 2 -o RUN`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.fault import Fault
from benchmarks.faults.measuring import Cost, measure_cost, run_case
from benchmarks.faults.shapes import SHAPES
from headrace.base.errors import HeadraceError

_EPILOG = """\
examples:
  python -m benchmarks.faults                                       list the faults
  python -m benchmarks.faults F8 --dose 2 -o runs/f8                run one, profiled
  python -m benchmarks.faults F8 --dose 2 --fixed -o runs/f8-fixed  the same with the right remedy
  python -m benchmarks.faults F8 --dose 2 --cost                    what it costs, against the healthy shape

Then: headrace diagnose runs/f8
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return _list() if given.fault is None else _run(given)
    except (HeadraceError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="Run a pipeline with a fault in it, to see what the fault looks like in a run folder.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fault", nargs="?", metavar="FAULT", help="such as F8; without, the faults are listed")
    parser.add_argument(
        "--shape", choices=list(SHAPES), help="pipeline to inject it into (default: the first it applies to)"
    )
    parser.add_argument("--dose", type=float, default=2.0, help="how strong, 1 or more (default: 2)")
    parser.add_argument("--fixed", action="store_true", help="the faulty pipeline with the right remedy applied")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long jobs are given out (default: 4)")
    parser.add_argument("-o", "--output", metavar="RUN", type=Path, help="run folder to write")
    parser.add_argument("--force", action="store_true", help="replace an earlier run in that folder")
    parser.add_argument(
        "--cost", action="store_true", help="run healthy and faulty in turn and compare their throughput"
    )
    parser.add_argument("--pairs", type=int, default=3, help="runs of each for --cost (default: 3)")
    return parser


def _list() -> int:
    for fault in FAULTS.values():
        print(f"{fault.id:<4} {fault.title}")
        if fault.inject is None:
            print(f"     not run here: needs {fault.needs}")
        else:
            print(f"     dose: {fault.dose}")
            print(f"     shapes: {', '.join(fault.applies_to)}{'' if fault.fix is None else '; --fixed has a remedy'}")
    return 0


def _run(given: argparse.Namespace) -> int:
    fault = _fault(given.fault)
    shape = given.shape or next(iter(fault.applies_to), next(iter(SHAPES)))
    if not given.seconds > 0 or given.pairs < 1:
        raise ValueError(
            f"--seconds is {given.seconds:g} and --pairs {given.pairs}; expected more than 0, and 1 or more"
        )
    if given.output is None and not given.cost:
        raise ValueError("there is nothing to do; name a run folder with -o RUN, or ask for --cost")
    healthy = replace(SHAPES[shape](), seconds=given.seconds)
    case = fault.applied(healthy, given.dose)
    if given.fixed:
        if fault.fix is None:
            raise ValueError(f"{fault.id} has no remedy but taking the cause away; run it without --fixed")
        case = fault.fix(case)
    if given.cost:
        print(_told(measure_cost(healthy, case, pairs=given.pairs, say=lambda line: print(line, file=sys.stderr))))
    if given.output is not None:
        print(run_case(case, given.output, force=given.force))
    return 0


def _fault(name: str) -> Fault:
    try:
        return FAULTS[name.upper()]
    except KeyError:
        raise ValueError(f"there is no fault {name!r}; expected {', '.join(FAULTS)}") from None


def _told(cost: Cost) -> str:
    interval = "" if cost.interval is None else f" (95 %: {cost.interval[0]:.3f} to {cost.interval[1]:.3f})"
    return f"throughput x{cost.ratio:.3f}{interval} of the healthy pipeline"


if __name__ == "__main__":
    sys.exit(main())
