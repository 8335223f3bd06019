"""The article's case on an emulated device: five Plans of one Pipeline, and the runtime's own cost at higher speeds.

Where the times come from: GumGum Engineering, "Simple Ways to Save Big in Computer Vision Inference": 222 ms to download
and call back, 63 ms to preprocess, 13.6 ms + 34 ms per image on the device; measured there: 3, 9, 21 and 28 requests per
second. Everything sleeps, nothing computes, so what is left is the runtime.

`efficiency` is the throughput over the device's limit at the Plan's batch size, between the first and the last start of a
batch, so that filling and draining do not count.

    python -m benchmarks.ladder [--quick] [--json] [--write]
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import headrace as hr
from benchmarks import measure, ours
from benchmarks.peers import EmulatedBench
from headrace.stages.module import Module, ProcessStage

IO_SECONDS, PREPROCESS_SECONDS = 0.222, 0.063
LAUNCH_SECONDS, ITEM_SECONDS = 0.0136, 0.034
#: Rung -> items at the original speed: some seconds each.
RUNGS = {"sequential": 15, "threaded": 50, "overlapped": 120, "batch8": 250, "best": 500}
QUICK = {"sequential": 6, "threaded": 24, "overlapped": 60, "batch8": 80, "best": 160}
#: As measured in the article.
ARTICLE = {"sequential": 3.0, "threaded": 9.0, "overlapped": 21.0, "batch8": 28.0}
PEERS = ("threads", "asyncio")


def run_emulated(plan_name: str, speed: float, count: int, settings: Sequence[str] = ()) -> tuple[float, float]:
    """Return items per second and efficiency of one run on emulated stages.

    Args:
        plan_name: `benchmarks/plans/ladder_NAME.toml`.
        speed: 1 for the original times, 100 for a hundredth of them.
        count: Items.
        settings: Replaced in the Plan.
    """
    plan = hr.Plan.load(ours.PLANS / f"ladder_{plan_name}.toml").with_settings(
        [
            f"model.options.launch_seconds={LAUNCH_SECONDS / speed}",
            f"model.options.item_seconds={ITEM_SECONDS / speed}",
            # At the original speed warming up takes longer than the run; an emulated device has nothing to warm up.
            f"run.warm_up={'false' if speed == 1 else 'true'}",
            *settings,
        ]
    )
    stages = [
        hr.emulated("fetch", kind="io", seconds=IO_SECONDS / speed),
        hr.emulated("preprocess", seconds=PREPROCESS_SECONDS / speed),
        ProcessStage("process", ours.Device()),
    ]
    source = ours.Listed([(str(number), b"") for number in range(count)])
    result = hr.run(hr.Pipeline(source, stages=stages), plan)
    if result.counters.delivered != count:
        raise RuntimeError(f"{result.counters.delivered} of {count} items were delivered")
    window = result.summary.efficiency_window("process")
    if window is None:
        raise RuntimeError("a single batch tells nothing: give more items")
    batch = result.plan.stages["process"].batch or 1
    limit = batch / (LAUNCH_SECONDS + ITEM_SECONDS * batch) * speed
    return window.throughput, window.throughput / limit


def runtime_cpu_seconds_per_item(count: int) -> float:
    """Return CPU seconds of the whole process per item when no stage does anything: local bytes in, a list out."""

    class Nothing(Module):
        input = hr.ArrayInput()

        def preprocess(self, value: Any) -> Any:
            return value

        def process(self, batch: Any) -> list[int]:
            return [0] * len(batch)

    source = ours.Listed([(str(number), b"x" * 1000) for number in range(count)])
    pipeline = hr.Pipeline(source, module=Nothing())
    before = resource.getrusage(resource.RUSAGE_SELF)
    hr.run(pipeline, hr.Plan().with_settings(["process.batch=32", "source.receive_batch=64"]))
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / count


def over_http(rounds: int, count: int) -> dict[str, list[float]]:
    """Return items per second at 100 times the speed with real HTTP, round by round, headrace and peers interleaved."""
    with EmulatedBench() as bench:
        runners = {"headrace": partial(ours.run, bench, "ladder.toml", count)}
        for name in PEERS:
            runners[name] = partial(bench.run, name, bench.grid(name)[0], count)
        outcomes = measure.interleave(runners, rounds, on_result=_show)
    for name, some in outcomes.items():
        if errors := [outcome.error for outcome in some if outcome.error]:
            raise RuntimeError(f"{name}: {errors[0]}")
    return {name: [outcome.rate for outcome in some] for name, some in outcomes.items()}


def _show(name: str, number: int, outcome: Any) -> None:
    _say(f"over HTTP, round {number}, {name}: {outcome.error or f'{outcome.rate:.0f}/s'}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    rounds = 1 if quick else 3
    ladder: dict[str, float] = {}
    best_efficiency = 0.0
    for name, count in (QUICK if quick else RUNGS).items():
        ladder[name], efficiency = run_emulated(name, 1, count)
        best_efficiency = efficiency if name == "best" else best_efficiency
        _say(f"{name}: {ladder[name]:.2f}/s, {efficiency:.1%} of the device")
    x10 = [run_emulated("batch8", 10, 400 if quick else 2000, ["fetch.workers=16"])[1] for _ in range(rounds)]
    x100 = [run_emulated("best", 100, 6000 if quick else 12000)[1] for _ in range(rounds)]
    cost = [runtime_cpu_seconds_per_item(20_000) * 1e6 for _ in range(rounds)]
    http = over_http(1 if quick else 4, 3000 if quick else 10_000)
    spreads = {"x10": x10, "x100": x100, "runtime_cpu_us_per_item": cost}
    return {
        "ladder": ladder,
        "efficiency": {"x1": best_efficiency, "x10": measure.spread(x10).median, "x100": measure.spread(x100).median},
        "runtime_cpu_us_per_item": measure.spread(cost).median,
        "spreads": {name: [min(values), max(values)] for name, values in spreads.items()},
        "over_http_x100": {name: measure.spread(rates).median for name, rates in http.items()},
        "over_http_x100_limit": 32 / (LAUNCH_SECONDS + ITEM_SECONDS * 32) * 100,
        "over_http_x100_ratio": {
            name: list(_triple(measure.paired_ratios(http["headrace"], rates)))
            for name, rates in http.items()
            if name != "headrace"
        },
        "quick": quick,
    }


def _triple(spread: measure.Spread) -> tuple[float, float, float]:
    return spread.low, spread.median, spread.high


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# The ladder on an emulated device",
        "",
        "Everything sleeps; what is left is the runtime. Items per second at the article's speed:",
        "",
        "| Plan | items/s | article |",
        "|---|---|---|",
        *(f"| {name} | {rate:.2f} | {ARTICLE.get(name, '-')} |" for name, rate in result["ladder"].items()),
        "",
        "Efficiency (throughput over the device's limit at the batch size, first to last batch start; median [range]):",
        "",
        f"- original speed, batch 32: {result['efficiency']['x1']:.1%}",
        f"- 10 times, batch 8: {result['efficiency']['x10']:.1%} {_range(result, 'x10', '.1%')}",
        f"- 100 times, batch 32: {result['efficiency']['x100']:.1%} {_range(result, 'x100', '.1%')}",
        "",
        (
            f"CPU of the runtime per item, local bytes: {result['runtime_cpu_us_per_item']:.1f} us "
            f"{_range(result, 'runtime_cpu_us_per_item', '.1f')}"
        ),
        "",
        f"100 times the speed with real HTTP (limit {result['over_http_x100_limit']:.0f}/s), interleaved:",
        "",
        "| design | items/s | headrace / it, low-median-high |",
        "|---|---|---|",
    ]
    for name, rate in result["over_http_x100"].items():
        ratio = result["over_http_x100_ratio"].get(name)
        lines.append(
            f"| {name} | {rate:.0f} | {'' if ratio is None else ' - '.join(f'{value:.3f}' for value in ratio)} |"
        )
    return "\n".join(lines)


def _range(result: dict[str, Any], name: str, form: str) -> str:
    low, high = result["spreads"][name]
    return f"[{low:{form}}-{high:{form}}]"


def main() -> int:
    """Run the benchmark from the command line."""
    measure.run_benchmark("ladder", __doc__.splitlines()[0], measure_all, as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
