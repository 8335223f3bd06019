"""What neighbours that come and go do to `headrace compare`: false alarms, and how much of 5 % is found.

Three programs beside the pipeline compute and rest for random times, so that what is left of the cores changes all the time.
Blocks of one pipeline are recorded one after the other, each with what others took of the cores meanwhile. Comparisons of the
pipeline with itself are then made up of stretches of this record, which of the two is A being drawn at random: once with all
pairs as they come, once as `headrace compare` does it, which measures a pair again when what others took changed within it.

    python -m benchmarks.compare_neighbours --write    # 8 minutes
    python -m benchmarks.compare_neighbours --quick    # a smoke run
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measure
from benchmarks.compare_power import PIPELINES, Numbers
from benchmarks.faults.outside import OutsideProgram
from headrace.base.plan import Plan
from headrace.compare.blocks import Contender, SameItems, measure_block
from headrace.compare.comparison import Question, answer
from headrace.compare.neighbours import have_changed
from headrace.compare.sequential import once
from headrace.compare.turns import take_turns

NUM_HOGS = 3
#: Computes and rests for random times, 1.5 s and 3 s on average.
_HOG = """
import os, random, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(flush=True)
while True:
    time.sleep(random.expovariate(1 / 3))
    end = time.monotonic() + random.expovariate(1 / 1.5)
    while time.monotonic() < end:
        pass
"""
PAIRS, BLOCK_SECONDS, CHANGE = 12, 0.3, 0.05


class Recorded(NamedTuple):
    """One block."""

    throughput: float
    taken_cores: float | None
    seconds: float


def record(seconds: float) -> list[Recorded]:
    """Return blocks of one pipeline, run one after the other for some time while others come and go."""
    contender = Contender(name="A", pipeline=PIPELINES["python"](1.0), plan=Plan())
    items = SameItems(Numbers())
    pilot = measure_block(contender, items, 400)
    num_items = max(50, math.ceil((pilot.throughput or 0.0) * BLOCK_SECONDS))
    found = []
    with contextlib.ExitStack() as stack:
        for _ in range(NUM_HOGS):
            stack.enter_context(OutsideProgram("-c", _HOG))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            block = measure_block(contender, items, num_items)
            if block.throughput is not None:
                found.append(Recorded(block.throughput, block.taken_cores, block.seconds))
    return found


def simulate(blocks: list[Recorded], count: int, *, again: bool, change: float = 0.0) -> dict[str, float]:
    """Return how comparisons of blocks from a record came out, as shares, and how wide their intervals were.

    Args:
        blocks: In the order of time.
        count: Comparisons.
        again: Measure disturbed pairs again.
        change: What B does more, as a share.
    """
    random = np.random.default_rng(1)
    verdicts, widths, sizes, pairs_again = [], [], [], 0
    for _ in range(count):
        at = int(random.integers(len(blocks)))

        def run_block() -> Recorded:
            nonlocal at
            at += 1
            return blocks[at % len(blocks)]

        def is_disturbed(measured: Any) -> bool:
            taken = [block.taken_cores for block in measured.values()]
            return again and have_changed(taken, min(block.seconds for block in measured.values()))

        names = ["A", "B"] if random.random() < 0.5 else ["B", "A"]
        turns = take_turns(dict.fromkeys(names, run_block), once(PAIRS), is_disturbed=is_disturbed)
        pairs = [(a.throughput, b.throughput / (1 + change)) for a, b in turns.pairs("A", "B")]
        interval, judgement = answer(pairs, Question())
        assert interval is not None
        verdicts.append(judgement.verdict)
        widths.append((interval.high - interval.low) / 2)
        pairs_again += turns.num_again
        if judgement.verdict in ("better", "worse"):
            sizes.append(abs(math.expm1(interval.mid)))
    return {
        "alarms": sum(one in ("better", "worse") for one in verdicts) / count,
        "worse": verdicts.count("worse") / count,
        "half_width": float(np.median(widths)),
        "largest_alarm": max(sizes, default=0.0),
        "pairs_again": pairs_again / count,
    }


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    blocks, count = record(20.0 if quick else 450.0), 200 if quick else 2000
    rules = {
        name: {
            "same": simulate(blocks, count, again=again),
            "slower": simulate(blocks, count, again=again, change=CHANGE),
        }
        for name, again in (("all pairs", False), ("disturbed pairs again", True))
    }
    return {"num_blocks": len(blocks), "comparisons": count, "blocks": blocks, "rules": rules, "quick": quick}


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# `headrace compare` beside neighbours that come and go",
        "",
        (
            f"{result['comparisons']:,} comparisons of {PAIRS} pairs, made up of {result['num_blocks']} recorded blocks of "
            f"{BLOCK_SECONDS:g} s of one pipeline, beside {NUM_HOGS} programs that compute and rest at random."
        ),
        "",
        f"| rule | false alarms | the largest | half width | {CHANGE:.0%} found | pairs measured again |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in result["rules"].items():
        same = one["same"]
        lines.append(
            f"| {name} | {same['alarms']:.1%} | {same['largest_alarm']:.1%} | {same['half_width']:.1%} | "
            f"{one['slower']['worse']:.0%} | {same['pairs_again']:.1f} |"
        )
    lines += [
        "",
        "False alarm: better or worse, of a pipeline and itself. Half width: of the 95 % interval, in the middle. Stretches of",
        "one record overlap, so that the shares are known less well than so many comparisons suggest.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark from the command line; status 1 when more than a tenth are false alarms."""
    result = measure.run_benchmark("compare_neighbours", __doc__.splitlines()[0], measure_all, as_text)
    return int(result["rules"]["disturbed pairs again"]["same"]["alarms"] > 0.1)


if __name__ == "__main__":
    sys.exit(main())
