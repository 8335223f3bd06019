"""Whether trainings behave the same under `headrace train`: what they print, the bits that they learn, how they end.

Each program of `unchanged_loops` runs alone and recorded. Its stdout, which has a digest of the weights and of the next random
numbers, and its exit status have to be the same; the last line of what headrace says tells what is missing.

    python -m benchmarks.train.unchanged [--quick] [--json] [--write]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.train.unchanged_loops import LOOPS
from headrace.diagnose.training.steps import read_steps
from headrace.runs.reader import read_run

_LOOPS = "benchmarks.train.unchanged_loops"
#: Keras is seen by its callback: the script without it is what the one with it is compared with.
_ALONE = {"keras-callback": "keras"}
_QUICK = ("plain", "workers", "raises", "sys.exit")
_LAUNCH = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_TIMEOUT_SECONDS = 900
_AT_ONCE = 4


def run(quick: bool) -> dict[str, Any]:
    """Return how each program ended, alone and recorded; of those that were compared until Ctrl-C.

    Args:
        quick: Four programs.
    """
    names = [name for name in LOOPS if (name in _QUICK if quick else name not in _ALONE.values())]
    rows: list[dict[str, Any]] = []
    # Several at a time: nothing is timed.
    with tempfile.TemporaryDirectory(prefix="unchanged-") as folder, ThreadPoolExecutor(_AT_ONCE) as several:
        try:
            for row in several.map(lambda name: _compare(name, Path(folder) / name.replace(" ", "-")), names):
                rows.append(row)
                print(f"{row['program']}: {'the same' if row['same'] else 'DIFFERS'}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            several.shutdown(cancel_futures=True)
    return {"rows": rows, "same": sum(row["same"] for row in rows), "programs": len(names), "quick": quick}


def _compare(name: str, folder: Path) -> dict[str, Any]:
    alone = _run(*_program(_ALONE.get(name, name)))
    recorded = _run("-m", "headrace", "train", "-o", str(folder), *_program(name))
    ranks = read_steps(read_run(folder))
    said = [line for line in recorded.stderr.splitlines() if line.startswith("headrace train: ")]
    return {
        "program": name,
        "status": alone.returncode % 256,
        "recorded_status": recorded.returncode,
        "printed": alone.stdout,
        "same": recorded.stdout == alone.stdout
        and recorded.returncode == (128 - alone.returncode if alone.returncode < 0 else alone.returncode),
        "processes": len(ranks),
        "steps": sum(len(rank.steps) for rank in ranks),
        "says": said[-1].replace(str(folder), "RUN") if said else "",
    }


def _program(name: str) -> list[str]:
    launch = _LAUNCH if name == "rank dies" else ()
    return ["-m", *launch, *(("-m",) if launch else ()), _LOOPS, name]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
    )


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = result["rows"]
    lines = [
        "# Trainings that are recorded behave the same",
        "",
        "Same: what the program printed, a digest of its weights and next random numbers included, and its exit status.",
        f"The same with and without `headrace train`: {result['same']} of {len(rows)} programs",
        f"({result['programs']} in all).",
        "",
        "| program | same | exit status | processes | steps recorded | digest | what headrace says of its end |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        printed = row["printed"].split()
        digest = f"`{printed[-1][:12]}`" if printed else "-"
        status = row["recorded_status"]
        lines.append(
            f"| {row['program']} | {'yes' if row['same'] else 'NO'} | {status} | {row['processes']} | {row['steps']} | "
            f"{digest} | {row['says'] or '-'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.unchanged", __doc__.splitlines()[0], run, as_text)
