"""What the guards cost: queue to callback on this tree against an earlier commit that had none of them.

Rules for addresses, limits on decoding, signatures and circuit breakers cannot be switched off one by one, so two trees run in
turn, before after after before, on the same images, model and Plan; each pair gives a ratio of the rates and of the CPU time
per item.

    python -m benchmarks.guards_cost [--quick] [--json] [--write]
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import corpus, measure
from benchmarks.measure import Window
from benchmarks.paths import ROOT
from benchmarks.peers import Outcome, QueueBench, Settings
from headrace.compare.intervals import FEWEST_PAIRS, paired_interval

#: The last commit before any of the guards.
BEFORE = "48e3ad4"
_PLAN = "queue_to_callback.toml"


def run(quick: bool) -> dict[str, Any]:
    """Return {"rate_ratio", "cpu_ratio", ...}, each with low, mid and high; after over before.

    Args:
        quick: A smoke run: few images and as many pairs as an interval needs.
    """
    rounds, count = (FEWEST_PAIRS, 40) if quick else (16, 400)
    folder = corpus.build(count=count) if quick else corpus.build()
    with _tree_of(BEFORE) as tree, QueueBench("scaled", corpus_folder=folder) as bench:
        runners = {name: partial(_run_tree, bench, where, count) for name, where in (("before", tree), ("after", ROOT))}
        outcomes = measure.interleave(runners, rounds, on_result=_show)
    pairs = list(zip(outcomes["before"], outcomes["after"], strict=True))
    return {
        "rate_ratio": _interval([math.log(after.rate / before.rate) for before, after in pairs]),
        "cpu_ratio": _interval([math.log(a.cpu_seconds_per_item / b.cpu_seconds_per_item) for b, a in pairs]),
        "before": BEFORE,
        "pairs": rounds,
        "count": count,
        "quick": quick,
        "outcomes": {name: [outcome.record() for outcome in found] for name, found in outcomes.items()},
    }


def _interval(logs: Sequence[float]) -> dict[str, float]:
    found = paired_interval(logs)
    if found is None:
        raise ValueError(f"{len(logs)} pairs give no interval; at least {FEWEST_PAIRS} are needed")
    return {name: math.exp(getattr(found, name)) for name in ("low", "mid", "high")}


@contextmanager
def _tree_of(commit: str) -> Iterator[Path]:
    """Check a commit out beside this tree, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=ROOT, check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True, capture_output=True)


def _run_tree(bench: QueueBench, tree: Path, count: int) -> Outcome:
    """Run headrace as it is in a tree, with that tree's own Plan."""
    order = {"workload": bench.workload, "jobs": asdict(bench._jobs(count)), "plan": _PLAN, "settings": []}  # noqa: SLF001
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder, "request"), Path(folder, "reply")
        request.write_text(json.dumps(order))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.ours", request, reply],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"headrace of {tree} ended with code {done.returncode}: {done.stderr[-2000:]}")
        window = Window(**json.loads(reply.read_text()))
    outcome = bench.outcome(tree.name, Settings(), count, window)
    if outcome.error:
        raise RuntimeError(f"headrace of {tree}: {outcome.error}")
    return outcome


def _show(name: str, number: int, outcome: Outcome) -> None:
    print(f"pair {number + 1}, {name}: {outcome.rate:.1f}/s", file=sys.stderr, flush=True)


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        "# What the guards cost: queue to callback",
        "",
        f"{result['pairs']} pairs of {result['count']} images, this tree over {result['before']}:",
        "",
        "| | middle | 95 % interval |",
        "|---|---|---|",
    ]
    for name, what in (("rate_ratio", "items per second"), ("cpu_ratio", "CPU seconds per item")):
        one = result[name]
        lines.append(f"| {what} | x{one['mid']:.3f} | x{one['low']:.3f} to x{one['high']:.3f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure.run_benchmark("guards_cost", __doc__.splitlines()[0], run, as_text)
