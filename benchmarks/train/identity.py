"""Whether the phases of a step add up to the step, in eight loops.

For each loop: steps recorded and expected; `largest_difference`, the largest difference between a step and the sum of its
phases, as a share of the step; `largest_gap_us` between two stretches; `unnamed`, the largest share of a step that has no name;
`largest_excess`, the largest share by which CPU time and run delay together exceed the wall time of a phase of a millisecond
or more: what is left of the wall time is blocked, by definition.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paths import ROOT
from benchmarks.train.loops import BATCHES, LOOPS, Parts
from headrace.base.records import Span
from headrace.runs.reader import read_run
from headrace.runs.training_phases import WHOLE, Phase, Stretch
from headrace.train.loader_watch import WatchedLoader
from headrace.train.recorder import Recorder, StretchSpans
from headrace.train.torch_hooks import TorchHooks

_UNITS = frozenset(Stretch)


def run(*, quick: bool) -> dict[str, Any]:
    """Return what was found for each loop.

    Args:
        quick: Once each instead of ten times.
    """
    found = {name: _judge(_record(name, 1 if quick else 10)) for name in LOOPS}
    return {**found, "two_ranks": _two_ranks()}


def _record(name: str, times: int) -> tuple[list[list[dict[str, Any]]], int]:
    """Return the stretches of a loop in order, and how many steps it says to have made."""
    stretches: list[list[dict[str, Any]]] = []
    expected = 0

    def keep(spans: Sequence[Span]) -> None:
        if isinstance(spans, StretchSpans):
            stretches.append([_row(span) for span in spans])

    recorder = Recorder(keep)
    hooks = TorchHooks(recorder)
    try:
        parts = Parts(lambda loader: WatchedLoader(loader, recorder))
        for _ in range(times):
            expected += LOOPS[name](parts)
    finally:
        hooks.detach()
        recorder.close()
    return stretches, expected


def _row(span: Span) -> dict[str, Any]:
    return {name: getattr(span, name) for name in ("unit", "unit_id", "stage", "started", "ended", "cpu", "run_delay")}


def _judge(recorded: tuple[list[list[dict[str, Any]]], int]) -> dict[str, Any]:
    stretches, expected = recorded
    steps = [one for one in stretches if one[0]["unit"] == Stretch.STEP]
    wholes = [one[0] for one in stretches]
    return {
        "steps": len(steps),
        "expected_steps": expected,
        "largest_difference": max(
            abs(1 - sum(map(_wall, phases)) / _wall(whole)) for whole, *phases in steps if _wall(whole)
        ),
        "largest_gap_us": max(
            (abs(other["started"] - one["ended"]) for one, other in itertools.pairwise(wholes)), default=0
        )
        / 1e3,
        "unnamed": max(
            sum(_wall(phase) for phase in phases if phase["stage"] == Phase.OUTSIDE) / _wall(whole)
            for whole, *phases in steps
        ),
        "largest_excess": max(
            (
                (phase["cpu"] + phase["run_delay"]) / _wall(phase) - 1
                for _, *phases in steps
                for phase in phases
                if _wall(phase) >= 1_000_000 and phase["run_delay"] is not None
            ),
            default=None,
        ),
    }


def _wall(row: dict[str, Any]) -> int:
    return int(row["ended"] - row["started"])


def _two_ranks() -> dict[str, Any]:
    """Return the same of each of two processes that `headrace train` recorded."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        script = Path(__file__).with_name("two_ranks.py")
        command = [*("-m", "headrace", "train", "-o", str(run), sys.executable, str(script), str(Path(folder, "met")))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"two_ranks.py: exit status {done.returncode}\n{done.stderr[-3000:]}")
        rows = [row for row in read_run(run).spans().to_pylist() if row["unit"] in _UNITS]
    stretches: dict[int, dict[tuple[str, str], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: (row["started"], row["stage"] != WHOLE)):
        stretches[row["process"]][row["unit"], row["unit_id"]].append(row)
    judged = [_judge((list(one.values()), BATCHES)) for one in stretches.values()]
    return {"processes": len(judged), **{key: max(one[key] or 0 for one in judged) for key in judged[0]}}
