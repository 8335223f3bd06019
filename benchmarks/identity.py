"""Whether wall time = CPU + run delay + blocked, and whether the blocked part is explained: six conditions on this machine.

One stage does the same work in each: 10 ms of sleep, 5 ms of pure Python, or 2.5 ms of C code that lets go of the GIL. What
should come out is known: nothing but sleep; nothing but CPU; waiting for the GIL; nothing but CPU; waiting for a core, because
of headrace's own threads; waiting for a core, because of three other programs. `unexplained` is blocked time to which no
cause was found, over the service time. The CPU demand of the same work must be the same, whatever it competes with.

    python -m benchmarks.identity [--quick] [--json] [--write]
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import measure, ours
from headrace.diagnose import profile_document
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.profile import BlockedSplit, StageAccount
from headrace.runs.reader import read_run

_BUFFER = bytes(64_000_000)
_HOG = "while True: pass"


@dataclass(frozen=True)
class Condition:
    """One way of running one kind of work."""

    name: str
    work: str
    """`sleep`, `python` or `c`."""
    workers: int
    hogs: int = 0
    """Other programs that compute meanwhile."""


CONDITIONS = (
    Condition("sleep", "sleep", 1),
    Condition("python x1", "python", 1),
    Condition("python x4", "python", 4),
    Condition("c x2 (all cores)", "c", 2),
    Condition("c x6 (oversubscribed)", "c", 6),
    Condition("c x1, 3 outside hogs", "c", 1, hogs=3),
)


def _sleep() -> Callable[[Any], Any]:
    return lambda value: time.sleep(0.010)


def _python() -> Callable[[Any], Any]:
    loops = 100_000

    def work(value: Any) -> int:
        total = 0
        for number in range(loops):
            total += number
        return total

    loops = round(loops * 0.005 / _cpu_seconds(lambda: work(None)))
    return work


def _c() -> Callable[[Any], Any]:
    sample = _BUFFER[:4_000_000]
    size = round(len(sample) * 0.0025 / _cpu_seconds(lambda: hashlib.sha256(sample)))
    work = _BUFFER[: min(size, len(_BUFFER))]
    return lambda value: hashlib.sha256(work).digest()


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a call, the median of several."""
    times = []
    for _ in range(9):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return statistics.median(times)


def works() -> dict[str, Callable[[Any], Any]]:
    """Return the kinds of work, calibrated on this machine."""
    return {"sleep": _sleep(), "python": _python(), "c": _c()}


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Keep so many other programs computing."""
    running = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure_condition(condition: Condition, work: Callable[[Any], Any], seconds: float) -> StageAccount:
    """Return the account of the stage that did the work for about so many seconds."""
    each = {"sleep": 0.010, "python": 0.005, "c": 0.0025}[condition.work]
    at_once = {"sleep": condition.workers, "python": 1, "c": min(2, condition.workers) / (1 + condition.hogs / 2)}
    count = max(20, int(seconds / each * at_once[condition.work]))
    stage = hr.stage(
        "work", work, kind="io" if condition.work == "sleep" else "cpu", releases_gil=condition.work != "python"
    )
    source = ours.Listed([(str(number), b"x") for number in range(count)])
    with tempfile.TemporaryDirectory() as folder, hogs(condition.hogs):
        profile(
            hr.Pipeline(source, stages=[stage]),
            hr.Plan().with_settings([f"work.workers={condition.workers}"]),
            output=Path(folder, "run"),
            settings=ProfileSettings(measure_overhead=False),
        )
        document = profile_document(read_run(Path(folder, "run")))
    return next(account for account in document.stages if account.name == "work")


def row(condition: Condition, account: StageAccount) -> dict[str, Any]:
    """Return what a table shows of an account, in milliseconds per item."""
    if account.cpu is None or account.run_delay is None or account.blocked is None or account.service.mean is None:
        raise RuntimeError(f"{condition.name}: CPU time or run delay was not measured on this machine")
    split = account.blocked_split or BlockedSplit(unknown=account.blocked)
    named = {name: getattr(split, name) for name in ("gil", "lock", "network", "disk", "sleep", "process")}
    return {
        "name": condition.name,
        "service_ms": account.service.mean * 1e3,
        "cpu_ms": account.cpu * 1e3,
        "run_delay_ms": account.run_delay * 1e3,
        "blocked_ms": account.blocked * 1e3,
        "gil_ms": split.gil * 1e3,
        "named_ms": {name: value * 1e3 for name, value in named.items()},
        "unexplained_share": (account.blocked - sum(named.values())) / account.service.mean,
        "num_spans": account.num_spans,
        "num_samples": split.num_samples,
    }


def measure_all(quick: bool) -> dict[str, Any]:
    """Run all conditions and return the benchmark's object."""
    kinds = works()
    rows = []
    for condition in CONDITIONS:
        rows.append(row(condition, measure_condition(condition, kinds[condition.work], 3 if quick else 12)))
        _say(_line(rows[-1]))
    demand = {kind: [one["cpu_ms"] for one in rows if one["name"].startswith(kind)] for kind in ("python", "c")}
    return {
        "conditions": rows,
        "worst_unexplained_share": max(abs(one["unexplained_share"]) for one in rows),
        "cpu_demand_spread": {kind: max(values) / min(values) for kind, values in demand.items()},
        "quick": quick,
    }


def _line(one: dict[str, Any]) -> str:
    return (
        f"| {one['name']} | {one['service_ms']:.2f} | {one['cpu_ms']:.2f} | {one['run_delay_ms']:.2f} "
        f"| {one['blocked_ms']:.2f} | {one['gil_ms']:.2f} | {one['named_ms']['sleep']:.2f} | {one['unexplained_share']:.1%} |"
    )


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    return "\n".join(
        [
            "# wall = CPU + run delay + blocked, in six conditions",
            "",
            "Milliseconds per item; `unexplained` is blocked time without a cause, over the service.",
            "",
            "| condition | service | cpu | run delay | blocked | of it GIL | of it sleep | unexplained |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(one) for one in result["conditions"]),
            "",
            f"Largest unexplained share: {result['worst_unexplained_share']:.1%} (goal: 5 %).",
            "",
            (
                "CPU demand of the same work, most over least: "
                + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in result["cpu_demand_spread"].items())
                + "."
            ),
        ]
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line."""
    measure.run_benchmark("identity", __doc__.splitlines()[0], measure_all, as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
