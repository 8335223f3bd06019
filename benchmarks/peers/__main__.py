"""Runs and checks all peers of a workload: ``python -m benchmarks.peers --workload queue --quick``.

``--quick`` takes the first settings of each grid; otherwise every peer is tuned first (minutes each, remembered).
Prints a table; ends with code 1 if a peer failed, lost or doubled an answer, or labelled an image differently.
"""

import argparse
import sys
from functools import partial

from benchmarks import measure
from benchmarks.peers import EmulatedBench, FolderBench, Outcome, QueueBench, different_labels, is_runnable, names
from benchmarks.peers.bench import NOT_INSTALLED, Bench


def main() -> int:
    arguments = _parse()
    bench = _bench(arguments)
    with bench:
        chosen = arguments.peer or names(arguments.workload)
        settings = {}
        for name in (name for name in chosen if is_runnable(name)):
            settings[name] = bench.grid(name)[0] if arguments.quick else _tune(bench, name, arguments)
        runners = {name: partial(bench.run, name, point, arguments.count) for name, point in settings.items() if point}
        outcomes = measure.interleave(runners, arguments.rounds, on_result=_show)
        print(f"\n{arguments.workload}, decode {arguments.decode}, {arguments.count} items, {measure.machine()}\n")
        print("| peer | settings | items/s | steady | CPU ms/item | foreign cores |\n|---|---|---|---|---|---|")
        for name in chosen:
            print(_row(bench, name, outcomes.get(name, [])))
    return _check([outcome for some in outcomes.values() for outcome in some])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=("queue", "folder", "emulated"), default="queue")
    parser.add_argument("--decode", choices=("usual", "scaled"), default="usual")
    parser.add_argument("--peer", action="append", help="only this one; repeatable")
    parser.add_argument("--count", type=int, help="items per run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="first settings of each grid, untuned")
    parser.add_argument("--retune", action="store_true", help="tune again what the cache knows")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tuning per peer")
    arguments = parser.parse_args()
    arguments.count = arguments.count or (10_000 if arguments.workload == "emulated" else 400)
    return arguments


def _bench(arguments: argparse.Namespace) -> Bench:
    if arguments.workload == "emulated":
        return EmulatedBench()
    return {"queue": QueueBench, "folder": FolderBench}[arguments.workload](arguments.decode)


def _tune(bench: Bench, name: str, arguments: argparse.Namespace) -> object:
    tuned = bench.tune(name, arguments.budget, arguments.retune)
    tried = f"{len(tuned.trials)} of {tuned.num_points} points"
    print(f"tuned {name}: {tuned.settings} ({tried}, {tuned.seconds:.0f} s)", file=sys.stderr)
    return tuned.settings


def _show(name: str, number: int, outcome: Outcome) -> None:
    result = outcome.error or f"{outcome.rate:.1f}/s, foreign {outcome.foreign_cores:.2f} cores"
    print(f"round {number}, {name}: {result}", file=sys.stderr, flush=True)


def _row(bench: Bench, name: str, outcomes: list[Outcome]) -> str:
    good = [outcome for outcome in outcomes if not outcome.error]
    if not good:
        return f"| {name} | {outcomes[0].error if outcomes else NOT_INSTALLED} | | | | |"
    steady = [outcome.steady_rate for outcome in good if outcome.steady_rate]
    cells = (
        f"{name}: {bench.title(name)}",
        str(good[0].settings),
        f"{measure.spread(outcome.rate for outcome in good):.1f}",
        f"{measure.spread(steady):.1f}" if steady else "",
        f"{measure.spread(outcome.cpu_seconds_per_item * 1e3 for outcome in good):.2f}",
        f"{max(outcome.foreign_cores for outcome in good):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _check(outcomes: list[Outcome]) -> int:
    """Print what is wrong with the answers; return the exit code."""
    wrong = [f"{outcome.peer}: {outcome.error}" for outcome in outcomes if outcome.error]
    good = [outcome for outcome in outcomes if not outcome.error]
    wrong += [
        f"{outcome.peer}: {len(differing)} labels differ from {good[0].peer}: {differing[:5]}"
        for outcome in good[1:]
        if (differing := different_labels(good[0], outcome))
    ]
    num_labels = len(set(good[0].labels.values())) if good else 0
    same = f"; all peers gave the same labels, of which {num_labels} different ones" if num_labels else ""
    print("\n" + ("\n".join(wrong) or f"every item answered exactly once{same}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
