"""What one that hangs costs the others: their rate with one in ten jobs for it, over their rate without it.

Four parties: a receiver of callbacks and a host of images that accept and say nothing, a task whose model hangs, and a tenant
that answers 500 on a host that it shares with the others. The others answer in 40 ms (the other task's model takes 4 ms), so
that a run with the default workers waits for nothing but them: each worker that somebody else holds is missed. Rounds with
and without the party take turns; the time counts from the first result, before anything is known of the party.

    python -m benchmarks.bulkheads [--quick] [--json] [--write]
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.bulkheads_case import ANSWER_SECONDS, MODEL_SECONDS
from benchmarks.paths import ROOT

CASES = ("receiver", "source_host", "task", "shared_host")
_WORDS = {
    "receiver": "a receiver that accepts and says nothing",
    "source_host": "a host of images that accepts and says nothing",
    "task": "a task whose model hangs",
    "shared_host": "a tenant of the others' host that answers 500",
}


def run(quick: bool) -> dict[str, Any]:
    """Return the share of the rate that is kept, by case, with the spread over the rounds.

    Args:
        quick: A smoke run: one round of three seconds.
    """
    rounds, seconds = (1, 3.0) if quick else (4, 12.0)
    runners = {f"{case} {how}": partial(_rate, case, how, seconds) for case in CASES for how in ("without", "hangs")}
    rates = measure.interleave(runners, rounds, on_result=_show)
    ratios = {case: measure.paired_ratios(rates[f"{case} hangs"], rates[f"{case} without"]) for case in CASES}
    return {
        **{case: ratio.median for case, ratio in ratios.items()},
        "spread": {case: [ratio.low, ratio.high] for case, ratio in ratios.items()},
        "rates_per_second": rates,
        "settings": {
            "rounds": rounds,
            "seconds": seconds,
            "share_of_jobs": 0.1,
            "answer_seconds": ANSWER_SECONDS,
            "model_seconds": MODEL_SECONDS,
        },
        "quick": quick,
    }


def _rate(case: str, how: str, seconds: float) -> float:
    """Return the rate of the others in one run, in a process of its own: it ends with calls that hang."""
    command = [sys.executable, "-m", "benchmarks.bulkheads_case", case, how, str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=seconds + 120, stdin=subprocess.DEVNULL
    )
    rate: float = json.loads(done.stdout.splitlines()[-1])["rate"]
    return rate


def _show(name: str, number: int, rate: float) -> None:
    print(f"round {number + 1}: {name}: {rate:.0f}/s", file=sys.stderr, flush=True)


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    settings = result["settings"]
    lines = [
        "# What one that hangs costs the others",
        "",
        "One in ten jobs is for somebody who hangs or fails. The rate of the others over their rate without it;",
        f"{settings['rounds']} rounds of {settings['seconds']:g} s, with and without in turn, from the first result on.",
        "",
        "| the party | share of the rate kept | least to greatest | without, with (1/s) |",
        "|---|---|---|---|",
    ]
    for case in CASES:
        least, greatest = result["spread"][case]
        without, hangs = (
            measure.spread(result["rates_per_second"][f"{case} {how}"]).median for how in ("without", "hangs")
        )
        lines.append(
            f"| {_WORDS[case]} (`{case}`) | {result[case]:.2f} | {least:.2f} to {greatest:.2f} | {without:.0f}, {hangs:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("bulkheads", __doc__.splitlines()[0], run, as_text)
