"""Whether `headrace tune` finds the best Plan: against an exhaustive grid, with a tenth of its runs.

For each pipeline every Plan of a grid is run once. The tuner gets the same base Plan and the same items, and knows
nothing of the grid. Then the best three of the grid and the tuner's choice are run again in turn, so that a lucky run
does not count: `best_ratio` is the tuner's throughput over that of the best of the three. `runs_share` counts Plans
that were run: for the tuner the base, profiled, the sweep of batch sizes and each Plan that it measured. It runs those
again and again to prove them, so `seconds_share` has the same in wall time.

    python -m benchmarks.tuner [--quick] [--json] [--write]     # some 25 minutes; wants a quiet machine
    python -m benchmarks.tuner --only downloads,python          # these pipelines
    python -m benchmarks.tuner --keep FOLDER                    # what each pipeline gave is kept there; those that are, are
                                                                # not run again, so that it can go on after Ctrl-C
"""

import argparse
import functools
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.tuner_pipelines import CASES, Case, Numbers
from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.plan import Plan, resolve
from headrace.base.units import format_duration
from headrace.compare.blocks import Block, Contender, SameItems, measure_block, quiet
from headrace.compare.comparison import Question
from headrace.ledger.ledger import Ledger
from headrace.pipeline.stage_defaults import stage_defaults
from headrace.pipeline.thread_budget import usable_cores
from headrace.tune.rounds import Effort, JobTimes, Rounds, comes_in_a_burst
from headrace.tune.tuning import Tuned, TuneSettings, tune

#: Pipelines of a smoke run.
QUICK_CASES = ("downloads",)
_GRID_SECONDS, _QUICK_GRID_SECONDS = 1.5, 0.15
_BEST = 3


@functools.cache
def _settings(quick: bool) -> TuneSettings:
    if quick:
        effort = Effort(rounds=7, most_rounds=7, block_seconds=0.05)
        return TuneSettings(plans=1, profile_seconds=0.5, search_seconds=0.7, largest_batch=16, effort=effort)
    return TuneSettings(effort=Effort(block_seconds=0.5))


def contender(case: Case, plan: Plan, name: str) -> Contender:
    """Return a Plan of a case, resolved."""
    pipeline = case.make()
    return Contender(
        name=name,
        pipeline=pipeline,
        plan=resolve(plan, stage_defaults(pipeline, plan), usable_cores()),
    )


def measure_grid(case: Case, quick: bool) -> list[tuple[dict[str, Any], float]]:
    """Run every Plan of the grid once and return (point, items per second), the fastest first."""
    items = SameItems(Numbers())
    points = case.points(thin=True)[::-3] if quick else case.points()
    seconds = _QUICK_GRID_SECONDS if quick else _GRID_SECONDS
    found = []
    began = time.monotonic()
    for number, point in enumerate(points, 1):
        rate = _rate(contender(case, case.plan(point), f"{case.name} {point}"), items, seconds)
        found.append((point, rate))
        if number % 10 == 0 or number == len(points):
            left = (time.monotonic() - began) / number * (len(points) - number)
            _say(f"{case.name}: {number} of {len(points)} Plans of the grid, {format_duration(left)} to go")
    return sorted(found, key=lambda one: -one[1])


def _rate(one: Contender, items: SameItems, seconds: float) -> float:
    """Return the throughput of a block of about so many seconds, 0 if it cannot run."""
    together = max((stage.workers or 1) * (stage.batch or 1) for stage in one.plan.stages.values())

    def run(num_items: int) -> tuple[Block, bool]:
        times = JobTimes()
        block = measure_block(one, items, num_items, observers=[times])
        return block, comes_in_a_burst(block.throughput or 0.0, times.settled_at)

    try:
        block, is_burst = run(max(24, 4 * together))
        wanted = math.ceil((block.throughput or 0.0) * seconds)
        if wanted > items.num_items:
            block, is_burst = run(wanted)
        for _ in range(3 if is_burst else 0):  # as the tuner does
            block, is_burst = run(2 * items.num_items)
            if not is_burst:
                break
    except HeadraceError as error:
        _say(f"{one.name} cannot run: {error}")
        return 0.0
    if block.interrupted:
        raise KeyboardInterrupt
    return block.throughput or 0.0


def run_tuner(case: Case, quick: bool) -> tuple[Tuned, float]:
    """Tune a case from its base and return what came of it, and how long that took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with Ledger.open(path / "ledger.sqlite") as ledger:
            tuned = tune(
                case.make(),
                case.plan(case.base),
                Numbers(),
                settings=_settings(quick),
                runs=path,
                ledger=ledger,
                say=lambda line: _say(f"{case.name}: {line}"),
            )
    return tuned, time.monotonic() - began


def confirm(case: Case, chosen: Plan, best: Sequence[Mapping[str, Any]], quick: bool) -> dict[str, Any]:
    """Run the tuner's choice and the best of the grid in turn and return how they compare."""
    effort = Effort(
        rounds=2 if quick else 10, most_rounds=2 if quick else 10, block_seconds=0.05 if quick else 0.8, halves=False
    )
    ours = contender(case, chosen, "tuner")
    others = [contender(case, case.plan(point), f"grid {number}") for number, point in enumerate(best, 1)]
    others = [one for one in others if one.plan.plan_id != ours.plan.plan_id]
    if not others:
        return {"best_ratio": 1.0, "ratios": [1.0] * len(best)}
    items = SameItems(Numbers())
    rate = _rate(ours, SameItems(Numbers()), effort.block_seconds)
    rounds = Rounds(ours, items, effort, lambda line: _say(f"{case.name}: again: {line}"))
    entrants = rounds.measure(others, [rate] * (1 + len(others)), lambda entrant: False)
    judged = [rounds.judged(entrant, Question()) for entrant in entrants]
    ratios = [1 / one.mid for one in judged if one is not None]
    # A choice that is one of the three is as good as that one.
    return {"best_ratio": min([*ratios, 1.0] if len(others) < len(best) else ratios), "ratios": ratios}


def measure_case(case: Case, quick: bool) -> dict[str, Any]:
    """Run one pipeline's grid, the tuner, and both again."""
    began = time.monotonic()
    tuned, seconds = run_tuner(case, quick)
    _say(f"{case.name}: {' '.join(tuned.document.says[:2])}")
    grid_began = time.monotonic()
    grid = measure_grid(case, quick)
    grid_seconds = time.monotonic() - grid_began
    chosen = tuned.plan or case.plan(case.base)
    best = [point for point, _ in grid[:_BEST]]
    found = {
        "name": case.name,
        "why": case.why,
        **confirm(case, chosen, best, quick),
        "runs_share": tuned.document.num_runs / len(grid),
        "seconds_share": seconds / grid_seconds,
        "runs": tuned.document.num_runs,
        "grid_runs": len(grid),
        "verdict": tuned.document.verdict,
        "predicted": tuned.document.num_predicted,
        "base": dict(case.base),
        "chosen": list(tuned.document.best.settings) if tuned.document.best else [],
        "grid_best": best,
        "grid_best_per_second": [rate for _, rate in grid[:_BEST]],
        "seconds": time.monotonic() - began,
    }
    _say(f"{case.name}: {found['best_ratio']:.3f} of the best, {found['runs_share']:.1%} of the runs")
    return found


def measure_all(quick: bool, only: Sequence[str] = (), keep: Path | None = None) -> dict[str, Any]:
    """Run everything that is not kept in the folder and return the benchmark's object; Ctrl-C ends it with what there is."""
    wanted = only or (QUICK_CASES if quick else [case.name for case in CASES])
    cases = [case for case in CASES if case.name in wanted]
    pipelines: list[dict[str, Any]] = []
    try:
        for case in cases:
            pipelines.append(_kept(keep, case) or measure_case(case, quick))
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                _file(keep, case).write_text(json.dumps(pipelines[-1]))
            _say(f"{len(pipelines)} of {len(cases)} pipelines")
    except (KeyboardInterrupt, Interrupted):
        _say("interrupted; what was measured so far follows")
    return {
        "pipelines": pipelines,
        "min_best_ratio": min((one["best_ratio"] for one in pipelines), default=None),
        "max_runs_share": max((one["runs_share"] for one in pipelines), default=None),
        "quick": quick,
        "interrupted": len(pipelines) < len(cases),
    }


def _file(keep: Path, case: Case) -> Path:
    return keep / f"{case.name.replace(' ', '_')}.json"


def _kept(keep: Path | None, case: Case) -> dict[str, Any] | None:
    if keep is None or not _file(keep, case).is_file():
        return None
    found: dict[str, Any] = json.loads(_file(keep, case).read_text())
    return found


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# What `headrace tune` finds, against an exhaustive grid",
        "",
        "| pipeline | of the best | Plans run | of the grid's | time, of the grid's | changed |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['name']}: {one['why']} | {one['best_ratio']:.3f} | {one['runs']} | {one['runs_share']:.1%} "
        f"| {one['seconds_share']:.0%} | {', '.join(one['chosen']) or 'nothing'} |"
        for one in result["pipelines"]
    ]
    if not result["pipelines"]:
        return "Nothing was measured."
    goals = (
        f"Smallest share of the best: {result['min_best_ratio']:.3f} (goal: 0.97 or more); largest share of the grid's runs: "
        f"{result['max_runs_share']:.1%} (goal: 10 % or less). The best three of each grid were run again in turn with the "
        "tuner's choice. Devices and waiting are emulated; Python and NumPy work is real."
    )
    lines += ["", goals]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line; status 1 when a full run misses a goal."""
    options, sys.argv[1:] = _own_options(sys.argv[1:])
    if unknown := set(options.only) - {case.name for case in CASES}:
        _say(f"--only: no pipeline {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
        return 2
    with quiet():
        result = measure.run_benchmark(
            "tuner",
            f"{__doc__.splitlines()[0]} Of this benchmark alone: --only NAMES, --keep FOLDER.",
            lambda quick: measure_all(quick, options.only, options.keep),
            as_text,
        )
    if result["interrupted"]:
        return 130
    return int(not result["quick"] and (result["min_best_ratio"] < 0.97 or result["max_runs_share"] > 0.10))


def _own_options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options that only this benchmark has, and the rest of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--keep", type=Path)
    return parser.parse_known_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main())
