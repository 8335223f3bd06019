"""Whether the time of an exchange is split into waiting for the other rank and transfer, as both are known from elsewhere.

Two gloo ranks train a model whose gradient is one bucket of a set size, and one of them is late by a set time in each step.
Waiting is right if it is by how much later that rank calls its backward pass, which the loop itself times; transfer, if it is
what a bare all-reduce of as many bytes takes behind each step, with the same rank as late, from when both have begun it. On two
cores the transfer computes on the cores of the ranks, so what else is compared with it has to meet the same moments.

    python -m benchmarks.train.communication [--quick] [--json] [--write]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.train.communication_loop import RANKS
from benchmarks.train.ranks import run_ranks
from headrace.diagnose.training.ranks import join_exchanges, read_exchanges, select_steps
from headrace.diagnose.training.steps import read_steps
from headrace.runs.reader import read_run

#: Widths of the matrix: gradients of 64 kB to 8 MB.
WIDTHS = (128, 362, 724, 1448)
#: Seconds by which one rank is late.
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
    with tempfile.TemporaryDirectory(prefix="communication-") as name:
        folder = Path(name)
        run_ranks("benchmarks.train.communication_loop", RANKS, _TIMEOUT_SECONDS, folder, [str(steps)], cases)
        rows = [_read(folder / case, width, delay) for case, width, delay in cases]
    return {
        "rows": rows,
        "largest_wait_error": max(abs(row["wait_error"]) for row in rows),
        "largest_transfer_error": max(abs(row["transfer_error"]) for row in rows),
        "largest_gap": max(row["gap"] for row in rows),
        "settings": {"ranks": RANKS, "steps": steps},
        "quick": quick,
    }


def _known(folder: Path, steps: Any) -> dict[str, Any]:
    """Return what the loops themselves know: by how much rank 1 was late, and what a bare all-reduce took.

    Args:
        folder: The run folder, beside which it is.
        steps: Numbers of the steps that count.
    """
    told = [json.loads(Path(f"{folder}-{rank}.json").read_text()) for rank in range(RANKS)]
    called = np.array([one["called"] for one in told])[:, steps]
    times = np.array([one["reduced"] for one in told])[:, steps]
    # Each rank's own time from when both had begun, as the exchange of a step has it.
    taken = (times[:, :, 1] - times[:, :, 0].max(axis=0)).T
    return {
        "late": float(np.median(called[1] - called[0])),
        "bare": float(np.median(taken)),
        "bare_by_half": [float(np.median(half)) for half in np.array_split(taken, 2)],
    }


def _read(folder: Path, width: int, delay: float) -> dict[str, Any]:
    """Return what a training recorded of its exchanges: medians over plain steps."""
    recorded = read_run(folder)
    ranks, exchanges = read_steps(recorded), read_exchanges(recorded)
    joined = join_exchanges(exchanges)
    if joined is None:
        raise RuntimeError(f"{folder.name}: ranks recorded no exchange that they have in common")
    meetings = select_steps(ranks, joined)
    known = _known(folder, meetings.step)
    wait, transfer = float(np.median(meetings.wait[:, 0])), float(np.median(meetings.rest))
    first = exchanges[0]
    whole = (first.ended - first.began)[np.isin(first.step, meetings.step)]
    parts = meetings.wait[:, 0] + meetings.rest[:, 0]
    return {
        "bytes": num_bytes(width),
        "delay": delay,
        "wait": wait,
        "transfer": transfer,
        **known,
        "wait_error": wait / known["late"] - 1,
        "transfer_error": transfer / known["bare"] - 1,
        "gap": float(np.abs(parts / whole - 1).max()),
        "steps": len(meetings.step),
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    ranks, steps = result["settings"]["ranks"], result["settings"]["steps"]
    lines = [
        "# An exchange, split into waiting and transfer",
        "",
        f"{ranks} gloo ranks of one thread, {steps} steps of each row; medians. In brackets: of the first and the second half.",
        "",
        f"Waiting is off by at most {result['largest_wait_error']:.1%} of what the loops time, transfer by at most",
        f"{result['largest_transfer_error']:.1%} of a bare all-reduce of as many bytes behind each step. Both parts miss",
        f"the exchange by at most {result['largest_gap']:.1e} of it.",
        "",
        "| gradient, kB | delay, ms | late by, ms | waiting, ms | off by | all-reduce, ms | transfer, ms | off by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        late, wait, bare, transfer, before, after = (
            1e3 * one for one in (row["late"], row["wait"], row["bare"], row["transfer"], *row["bare_by_half"])
        )
        lines.append(
            f"| {row['bytes'] / 1e3:,.0f} | {row['delay'] * 1e3:g} | {late:.2f} | {wait:.2f} | {row['wait_error']:+.1%} | "
            f"{bare:.3f} [{before:.3f}, {after:.3f}] | {transfer:.3f} | {row['transfer_error']:+.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.communication", __doc__.splitlines()[0], run, as_text)
