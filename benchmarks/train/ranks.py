"""Whether a rank that is late in each step is named with its phase, and whether balanced ranks are left alone.

The last of several gloo ranks sleeps or computes for a share of the step, in one phase; balanced runs have no delay. The step
is that of a balanced run before. A run counts as right if rank and phase are named, as wrong if another rank is, or another
phase of the right one, and as silent if nobody is.

    python -m benchmarks.train.ranks [--quick] [--json] [--write]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from headrace.diagnose.training.profile import training_document
from headrace.runs.formats.training_ranks import RanksJudged
from headrace.runs.reader import read_run

PHASES, KINDS = ("wait", "forward", "backward", "optimizer"), ("sleep", "compute")
OUTCOMES = ("right", "silent", "wrong phase", "wrong rank")
_RANKS = 2
_TIMEOUT_SECONDS = 1800


def run(quick: bool) -> dict[str, Any]:
    """Return how often each kind of delay was named, and how often balanced ranks were accused.

    Args:
        quick: Three runs of each delay at three sizes, and 40 balanced ones: some two minutes.
    """
    steps, rounds, doses = (24, 3, (0.05, 0.1, 0.2)) if quick else (24, 13, (0.05, 0.1, 0.2, 0.5))
    num_balanced = 40 if quick else 200
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        step_seconds = _train(folder / "first", steps, [("first", "", "", 0.0)])["first"].step_seconds
        delays = [
            (f"{phase}-{kind}-{dose:g}-{number}", phase, kind, dose * step_seconds)
            for number in range(rounds)
            for dose in doses
            for phase in PHASES
            for kind in KINDS
        ]
        balanced = [(f"balanced-{number}", "", "", 0.0) for number in range(num_balanced)]
        judged = _train(folder / "all", steps, _mix(delays, balanced))
    outcomes: dict[str, Counter[str]] = {}
    for case, phase, _, _ in delays:
        row, _ = case.rsplit("-", 1)
        outcomes.setdefault(row, Counter())[_outcome(judged[case], phase)] += 1
    accused = [case for case, *_ in balanced if judged[case].straggler is not None]
    waits = sorted(judged[case].wait_share for case, *_ in balanced)
    return {
        "outcomes": {row: dict(counts) for row, counts in outcomes.items()},
        "right": (right := sum(counts["right"] for counts in outcomes.values())),
        "runs": len(delays),
        "named": right / len(delays),
        "accused": len(accused),
        "balanced": len(balanced),
        "balanced_wait_share": waits[len(waits) // 2],
        "settings": {"ranks": _RANKS, "steps": steps, "step_seconds": step_seconds, "doses": doses},
        "quick": quick,
    }


def run_ranks(
    module: str, num_ranks: int, seconds: float, folder: Path, words: Sequence[str], cases: Sequence[Any]
) -> None:
    """Run a program once for each rank: `FOLDER RANK WORDS... CASES...`, a case as its parts with `:` between them.

    Raises:
        RuntimeError: If one fails.
        subprocess.TimeoutExpired: If one takes longer than so many seconds.
    """
    told = [":".join(map(str, case)) for case in cases]
    command = [sys.executable, "-m", module, str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), *words, *told], cwd=ROOT, stdin=subprocess.DEVNULL)
        for rank in range(num_ranks)
    ]
    try:
        codes = [rank.wait(seconds) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise RuntimeError(f"ranks ended with status {codes}; expected 0: read what they printed above")


def _mix(delays: list[Any], balanced: list[Any]) -> list[Any]:
    """Return both kinds spread over each other: what else the machine does meets them alike."""
    placed = [((place + 0.5) / len(cases), case) for cases in (delays, balanced) for place, case in enumerate(cases)]
    return [case for _, case in sorted(placed)]


def _train(folder: Path, steps: int, cases: list[tuple[str, str, str, float]]) -> dict[str, RanksJudged]:
    """Train the cases with all ranks, in processes of their own, and return what was judged of each."""
    folder.mkdir()
    run_ranks("benchmarks.train.ranks_loop", _RANKS, _TIMEOUT_SECONDS, folder, (str(_RANKS), str(steps)), cases)
    found = {}
    for name, *_ in cases:
        judged = training_document(read_run(folder / name)).together.judged
        if judged is None:
            raise RuntimeError(f"{name}: ranks recorded no exchange that they have in common")
        found[name] = judged
    return found


def _outcome(judged: RanksJudged, phase: str) -> str:
    straggler = judged.straggler
    if straggler is None:
        return "silent"
    if straggler.rank != _RANKS - 1:
        return "wrong rank"
    return "right" if straggler.phase == phase else "wrong phase"


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    settings = result["settings"]
    step = settings["step_seconds"] * 1e3
    wrong = sum(counts.get(one, 0) for counts in result["outcomes"].values() for one in ("wrong phase", "wrong rank"))
    lines = [
        "# Whether a late rank is named",
        "",
        f"{settings['ranks']} gloo ranks of one thread, {settings['steps']} steps of {step:.0f} ms each.",
        "The last rank is late in each step, by the share of the step in the row. Right: rank and phase are named.",
        "",
        f"Named right: {result['right']} of {result['runs']}; wrong: {wrong}. Balanced runs with an accused rank:",
        f"{result['accused']} of {result['balanced']}; ranks wait {result['balanced_wait_share']:.1%} of the step in these.",
        "",
        f"| phase, delay, share of the step | {' | '.join(OUTCOMES)} |",
        f"|---|{'---|' * len(OUTCOMES)}",
    ]
    for row, counts in result["outcomes"].items():
        lines.append(f"| {row.replace('-', ', ')} | {' | '.join(str(counts.get(one, 0)) for one in OUTCOMES)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.ranks", __doc__.splitlines()[0], run, as_text)
