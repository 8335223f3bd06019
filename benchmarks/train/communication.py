"""Whether the time of an exchange is split into waiting for the other rank and transfer, as both are known from elsewhere.

Two gloo ranks train a model whose gradient is one bucket of a set size, and one of them sleeps for a set time in each step.
Waiting is right if it is that time; transfer, if it is what an all-reduce of as many bytes takes where nothing else is done.
The all-reduces are measured before and after the trainings, and the mean of both counts.

    python -m benchmarks.train.communication [--quick] [--json] [--write]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.train.communication_loop import RANKS
from headrace.diagnose.training.ranks import join_exchanges, read_exchanges, select_steps
from headrace.diagnose.training.steps import read_steps
from headrace.runs.reader import read_run
from headrace.train.ranks.link_probe import measure_link

#: Widths of the matrix: gradients of 64 kB to 8 MB.
WIDTHS = (128, 362, 724, 1448)
#: Seconds for which one rank sleeps.
DELAYS = (0.005, 0.02)
_TIMEOUT_SECONDS = 600


def num_bytes(width: int) -> int:
    """Return the bytes of the gradient."""
    return 4 * width * width


def run(quick: bool) -> dict[str, Any]:
    """Return waiting and transfer, as recorded and as known.

    Args:
        quick: 40 steps of each case instead of 200.
    """
    steps = 40 if quick else 200
    cases = [(f"{width}-{number}", width, delay) for width in WIDTHS for number, delay in enumerate(DELAYS)]
    sizes = [num_bytes(width) for width in WIDTHS]
    with tempfile.TemporaryDirectory(prefix="communication-") as name:
        folder = Path(name)
        before = measure_link(RANKS, sizes).measured
        _train(folder, steps, cases)
        after = measure_link(RANKS, sizes).measured
        known = {
            width: statistics.fmean((one.seconds, other.seconds))
            for width, one, other in zip(WIDTHS, before, after, strict=True)
        }
        rows = [_read(folder / case, width, delay, known[width]) for case, width, delay in cases]
    return {
        "rows": rows,
        "probe_spread": max(abs(one.seconds / other.seconds - 1) for one, other in zip(before, after, strict=True)),
        "largest_wait_error": max(abs(row["wait_error"]) for row in rows),
        "largest_transfer_error": max(abs(row["transfer_error"]) for row in rows),
        "largest_gap": max(row["gap"] for row in rows),
        "settings": {"ranks": RANKS, "steps": steps},
        "quick": quick,
    }


def _train(folder: Path, steps: int, cases: list[tuple[str, int, float]]) -> None:
    words = [":".join(map(str, case)) for case in cases]
    command = [sys.executable, "-m", "benchmarks.train.communication_loop", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(steps), *words], cwd=ROOT, stdin=subprocess.DEVNULL)
        for rank in range(RANKS)
    ]
    try:
        codes = [rank.wait(_TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise RuntimeError(f"ranks ended with status {codes}; expected 0: read what they printed above")


def _read(folder: Path, width: int, delay: float, known: float) -> dict[str, Any]:
    """Return what a training recorded of its exchanges: medians over plain steps."""
    recorded = read_run(folder)
    ranks, exchanges = read_steps(recorded), read_exchanges(recorded)
    joined = join_exchanges(exchanges)
    if joined is None:
        raise RuntimeError(f"{folder.name}: ranks recorded no exchange that they have in common")
    meetings = select_steps(ranks, joined)
    wait, transfer = float(np.median(meetings.wait[:, 0])), float(np.median(meetings.rest))
    first = exchanges[0]
    whole = (first.ended - first.began)[np.isin(first.step, meetings.step)]
    parts = meetings.wait[:, 0] + meetings.rest[:, 0]
    return {
        "bytes": num_bytes(width),
        "delay": delay,
        "wait": wait,
        "wait_error": wait / delay - 1,
        "transfer": transfer,
        "known": known,
        "transfer_error": transfer / known - 1,
        "gap": float(np.abs(parts / whole - 1).max()),
        "steps": len(meetings.step),
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    settings = result["settings"]
    lines = [
        "# An exchange, split into waiting and transfer",
        "",
        f"{settings['ranks']} gloo ranks of one thread, {settings['steps']} steps of each row; medians.",
        "",
        f"Waiting is off by at most {result['largest_wait_error']:.1%}, transfer by at most",
        f"{result['largest_transfer_error']:.1%} of an all-reduce of as many bytes with nothing else to do (which itself",
        f"differed by up to {result['probe_spread']:.1%} between before and after). Both parts miss the exchange by at most",
        f"{result['largest_gap']:.1e} of it.",
        "",
        "| gradient, kB | other rank sleeps, ms | waiting, ms | off by | transfer, ms | all-reduce, ms | off by |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['bytes'] / 1e3:,.0f} | {row['delay'] * 1e3:g} | {row['wait'] * 1e3:.2f} | {row['wait_error']:+.1%} | "
        f"{row['transfer'] * 1e3:.3f} | {row['known'] * 1e3:.3f} | {row['transfer_error']:+.1%} |"
        for row in result["rows"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.communication", __doc__.splitlines()[0], run, as_text)
