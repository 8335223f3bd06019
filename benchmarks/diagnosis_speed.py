"""How long an answer takes: simulating 10,000 items through six stages, and `headrace diagnose` on a run of 100,000 spans.

    python -m benchmarks.diagnosis_speed [--quick] [--json] [--write]

The run is a real one: a fast pipeline of six stages, profiled with every span recorded. `diagnose` is timed as a user has it,
as a command with the start of Python.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import measure, ours
from headrace.diagnose.simulator.engine import simulate
from headrace.diagnose.simulator.system import CPU, WAIT, Program, Station, System
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.reader import read_run

ITEMS, STAGES = 10_000, 6
SPANS = 100_000
SIMULATION_GOAL_SECONDS, DIAGNOSE_GOAL_SECONDS = 0.5, 3.0
_COMMAND = "import sys; from headrace.cli import main; sys.exit(main())"


def simulation_seconds(rounds: int) -> list[float]:
    """Return seconds to simulate ITEMS items through STAGES stages on two cores, once for each round."""
    random = np.random.default_rng(0)

    def programs(kind: int, mean: float) -> list[Program]:
        return [((kind, float(seconds)),) for seconds in random.exponential(mean, ITEMS)]

    stations = [
        Station(name=f"stage{number}", workers=workers, capacity=16 * workers, programs=programs(kind, mean))
        for number, (workers, kind, mean) in enumerate(
            [(16, WAIT, 0.02), (2, CPU, 0.002), (2, CPU, 0.001), (2, CPU, 0.002), (1, CPU, 0.002), (4, WAIT, 0.005)]
        )
    ]
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        simulate(System(stations=stations, num_jobs=ITEMS, cores=2))
        found.append(time.perf_counter() - began)
    return found


def record(folder: Path, spans: int) -> int:
    """Profile a pipeline of six stages with every span recorded; return how many there are."""
    stages = [hr.emulated(f"stage{number}", seconds=0.0002, kind="io") for number in range(STAGES - 1)]
    count = spans // STAGES + 1
    pipeline = hr.Pipeline(ours.Listed([(str(number), b"") for number in range(count)]), stages=stages)
    profile(pipeline, output=folder, settings=ProfileSettings(spans_per_second=1e9))
    return len(read_run(folder).spans())


def diagnose_seconds(folder: Path, rounds: int) -> list[float]:
    """Return seconds that `headrace diagnose` takes as a command, once for each round."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", _COMMAND, "diagnose", str(folder), "--json"], capture_output=True, check=False
        )
        found.append(time.perf_counter() - began)
    return found


def measure_all(quick: bool) -> dict[str, Any]:
    """Run both and return the benchmark's object."""
    rounds = 2 if quick else 7
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        spans = record(folder, SPANS // 5 if quick else SPANS)
        diagnose = diagnose_seconds(folder, rounds)
    simulation = simulation_seconds(rounds)
    return {
        "items": ITEMS,
        "stages": STAGES,
        "simulation_seconds": statistics.median(simulation),
        "simulation_range": [min(simulation), max(simulation)],
        "spans": spans,
        "diagnose_seconds": statistics.median(diagnose),
        "diagnose_range": [min(diagnose), max(diagnose)],
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    rows = [
        (
            f"simulate {result['items']:,} items through {result['stages']} stages",
            result["simulation_seconds"],
            result["simulation_range"],
            SIMULATION_GOAL_SECONDS,
        ),
        (
            f"headrace diagnose, {result['spans']:,} spans",
            result["diagnose_seconds"],
            result["diagnose_range"],
            DIAGNOSE_GOAL_SECONDS,
        ),
    ]
    lines = ["# How long an answer takes", "", "| what | median | range | goal |", "|---|---|---|---|"]
    lines += [f"| {what} | {mid:.2f} s | {low:.2f}-{high:.2f} s | {goal} s |" for what, mid, (low, high), goal in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the benchmark from the command line; status 1 when an answer takes longer than the goal."""
    result = measure.run_benchmark("diagnosis_speed", (__doc__ or "").splitlines()[0], measure_all, as_text)
    is_slow = (
        result["simulation_seconds"] > SIMULATION_GOAL_SECONDS or result["diagnose_seconds"] > DIAGNOSE_GOAL_SECONDS
    )
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
