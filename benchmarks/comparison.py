"""headrace beside its peers on one workload, interleaved: what `queue_to_callback` and `folder_to_parquet` have in common.

Every peer runs twice, with the usual decode and with the scaled decode that headrace uses. Peers are tuned first (with the
usual decode; the settings serve both, since decoding faster moves no peer's best number of threads by much), and the choice
is remembered, so that a second run starts at once. Then rounds: in each, the machine's speed is taken with the yardstick of
`compute`, and everybody runs once, forwards and backwards in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import corpus, measure, models, ours
from benchmarks.compute import Yardstick
from benchmarks.peers import Bench, Outcome, Settings, different_labels, is_runnable, names

DECODES = ("usual", "scaled")
#: Seconds for tuning one peer. Ray takes seconds to start, and so do its dozen trials; the other two have been the best peers.
TUNING_SECONDS = {"ray": 60.0, "session-threads": 100.0, "whole-processes": 100.0}
DEFAULT_TUNING_SECONDS = 30.0
#: One image at a time waits for the network each time: fewer tell its rate as well.
COUNT_FACTOR = {"sequential": 0.2}
#: Peers that a smoke run leaves out because starting them takes longer than it lasts.
SLOW_TO_START = ("ray", "dataloader")
HEADRACE = "headrace"


def compare(
    make_bench: Callable[..., Bench], plan: str, *, quick: bool, rounds: int, count: int, model: Path | None = None
) -> dict[str, Any]:
    """Run everything and return the benchmark's object.

    Args:
        make_bench: `QueueBench` or `FolderBench`.
        plan: headrace's Plan, a file in `benchmarks/plans`.
        quick: A smoke run: few images, no tuning, no peers that are slow to start.
        rounds: Runs of each contestant.
        count: Images per run.
        model: Of the peers; None: the one with random weights.
    """
    folder = corpus.build(count=count) if quick else corpus.build()
    yardstick = Yardstick(
        [str(path) for path in sorted(folder.glob("*.jpg"))[:: max(1, count // 40)]], model or models.build()
    )
    with ExitStack() as stack:
        benches = {decode: stack.enter_context(make_bench(decode, corpus_folder=folder)) for decode in DECODES}
        settings = _settings(benches["usual"], quick)
        runners = _runners(benches, settings, plan, count)
        costs: list[float] = []
        outcomes = measure.interleave(
            runners, rounds, before_round=lambda _: costs.append(yardstick.seconds_per_image()), on_result=_show
        )
    return {**_figures(outcomes, costs), "settings": settings, "count": count, "rounds": rounds, "quick": quick}


def _settings(bench: Bench, quick: bool) -> dict[str, dict[str, Any] | str]:
    """Return each peer's settings, or why it does not run."""
    chosen: dict[str, dict[str, Any] | str] = {}
    for name in names(bench.workload):
        if not is_runnable(name):
            chosen[name] = "not run: python -m benchmarks.setup_peers installs it"
        elif quick:
            chosen[name] = "left out of the smoke run" if name in SLOW_TO_START else asdict(bench.grid(name)[0])
        else:
            tuned = bench.tune(name, TUNING_SECONDS.get(name, DEFAULT_TUNING_SECONDS))
            _say(f"tuned {name}: {len(tuned.trials)} of {tuned.num_points} points: {tuned.settings}")
            chosen[name] = {**asdict(tuned.settings), "points_tried": len(tuned.trials), "points": tuned.num_points}
    return chosen


def _runners(
    benches: Mapping[str, Bench], settings: Mapping[str, Any], plan: str, count: int
) -> dict[str, Callable[[], Outcome]]:
    runners: dict[str, Callable[[], Outcome]] = {HEADRACE: partial(ours.run, benches["scaled"], plan, count)}
    for name, chosen in settings.items():
        if isinstance(chosen, str):
            continue
        point = Settings(**{key: value for key, value in chosen.items() if not key.startswith("points")})
        items = max(20, int(count * COUNT_FACTOR.get(name, 1)))
        for decode, bench in benches.items():
            runners[f"{name}/{decode}"] = partial(bench.run, name, point, items)
    return runners


def _figures(outcomes: Mapping[str, Sequence[Outcome]], costs: Sequence[float]) -> dict[str, Any]:
    failed = {name: outcome.error for name, some in outcomes.items() for outcome in some if outcome.error}
    if HEADRACE in failed:
        raise RuntimeError(f"headrace: {failed[HEADRACE]}")
    rates = {name: [outcome.rate for outcome in some] for name, some in outcomes.items() if name not in failed}
    medians = {name: measure.spread(some).median for name, some in rates.items()}
    our_rates = rates[HEADRACE]
    efficiency = [rate * cost / measure.usable_cores() for rate, cost in zip(our_rates, costs, strict=True)]
    figures: dict[str, Any] = {
        "headrace": medians[HEADRACE],
        "peers": {name: rate for name, rate in medians.items() if name != HEADRACE},
        "failed": failed,
        "cpu_efficiency": measure.spread(efficiency).median,
        "compute_ms_per_image": measure.spread(costs).median * 1e3,
        "headrace_cpu_ms_per_image": measure.spread(o.cpu_seconds_per_item for o in outcomes[HEADRACE]).median * 1e3,
        "foreign_cores": max(outcome.foreign_cores for some in outcomes.values() for outcome in some),
        "different_labels": _different(outcomes, failed),
        "rounds_of": rates,
        "spreads": {
            "rates": {name: [min(some), max(some)] for name, some in rates.items()},
            "cpu_efficiency": [min(efficiency), max(efficiency)],
        },
    }
    for key, decode in (("ratio_same_decode", "scaled"), ("ratio_usual_decode", "usual")):
        best = max((name for name in medians if name.endswith(f"/{decode}")), key=medians.__getitem__)
        ratio = measure.paired_ratios(our_rates, rates[best])
        figures[key] = ratio.median
        figures["spreads"][key] = [ratio.low, ratio.high]
        figures[f"best_peer_{decode}"] = best
    return figures


def _different(outcomes: Mapping[str, Sequence[Outcome]], failed: Mapping[str, Any]) -> dict[str, int]:
    """Return how many labels of each contestant differ from headrace's (the usual decode sees other pixels)."""
    reference = outcomes[HEADRACE][0]
    return {name: len(different_labels(some[0], reference)) for name, some in outcomes.items() if name not in failed}


def _show(name: str, number: int, outcome: Outcome) -> None:
    _say(
        f"round {number}, {name}: {outcome.error or f'{outcome.rate:.1f}/s, foreign {outcome.foreign_cores:.2f} cores'}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def as_text(title: str, result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    spreads = result["spreads"]
    lines = [
        f"# {title}",
        "",
        f"{result['count']} images per run, {result['rounds']} interleaved rounds; images per second, median [range].",
        "",
        "| contestant | images/s | range | labels that differ from headrace's | settings |",
        "|---|---|---|---|---|",
        _row("headrace", result["headrace"], spreads, result, ""),
    ]
    for name, rate in sorted(result["peers"].items(), key=lambda pair: -pair[1]):
        lines.append(_row(name, rate, spreads, result, _readable(result["settings"][name.partition("/")[0]])))
    lines += [f"| {name} | {why} | | | |" for name, why in result["settings"].items() if isinstance(why, str)]
    lines += [f"| {name} | failed: {why} | | | |" for name, why in result["failed"].items()]
    lines += [
        "",
        _ratio("same", result, "scaled"),
        _ratio("usual", result, "usual"),
        f"- cpu_efficiency: {result['cpu_efficiency']:.3f} {_span(spreads['cpu_efficiency'])}, the rate over cores / c;",
        "  c is the CPU time that decode, resize, normalise and model need per image alone on one thread, taken just before",
        f"  each round: {result['compute_ms_per_image']:.2f} ms",
        f"- CPU per image of headrace's process: {result['headrace_cpu_ms_per_image']:.2f} ms",
        f"- Most that other programs took during a run: {result['foreign_cores']:.2f} cores",
    ]
    return "\n".join(lines)


def _ratio(which: str, result: Mapping[str, Any], decode: str) -> str:
    key = f"ratio_{which}_decode"
    span = _span(result["spreads"][key])
    return (
        f"- against the best peer with the {which} decode ({result[f'best_peer_{decode}']}): x{result[key]:.2f} {span}"
    )


def _row(name: str, rate: float, spreads: Mapping[str, Any], result: Mapping[str, Any], settings: str) -> str:
    low, high = spreads["rates"][name]
    differ = result["different_labels"].get(name, "")
    return f"| {name} | {rate:.1f} | {low:.1f}-{high:.1f} | {differ} | {settings} |"


def _readable(settings: Mapping[str, Any] | str) -> str:
    if isinstance(settings, str):
        return settings
    default = asdict(Settings())
    return " ".join(
        f"{key}={value}" for key, value in settings.items() if default.get(key) != value and key != "decode"
    )


def _span(pair: Sequence[float]) -> str:
    return f"[{pair[0]:.2f}-{pair[1]:.2f}]"


def main(theme: str, title: str, run: Callable[..., dict[str, Any]], description: str) -> int:
    """Run one comparison from the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{theme}", description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke run, under 50 s; the claim is the full run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    parser.add_argument("--rounds", type=int, help="interleaved rounds, default 4; even numbers balance drift")
    parser.add_argument("--count", type=int, help="images per run, default 400")
    arguments = parser.parse_args()
    result = run(
        quick=arguments.quick,
        rounds=arguments.rounds or (1 if arguments.quick else 4),
        count=arguments.count or (60 if arguments.quick else 400),
    )
    print(json.dumps(result) if arguments.json else as_text(title, result))
    if arguments.write:
        _say(f"written: {measure.write_result(theme, as_text(title, result), result)}")
    return 0
