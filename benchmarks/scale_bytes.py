"""What a job leaves behind, in bytes: spans, results, a message of a queue, a heartbeat. And one ledger with many writers.

    python -m benchmarks.scale_bytes --write    # twenty seconds

Sizes do not depend on the machine's speed; they do on the pipeline: four stages and a delivery of small results. The writers of
the ledger are processes that write events as fast as they can; counted are events that are missing, and refused writes.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import measure
from headrace.base.errors import LedgerError
from headrace.diagnose.evidence import collect
from headrace.ledger.ledger import Ledger
from headrace.monitor.fleet.beating import FleetWatch
from headrace.monitor.fleet.place import FolderPlace
from headrace.runs.formats.events import Event
from headrace.runs.reader import read_run
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

_STAGES = "abcd"
#: Processes that write into one ledger, and the events of each.
_WRITERS, _EVENTS = 20, 100


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    count = 5_000 if quick else 20_000
    with tempfile.TemporaryDirectory(prefix="bytes-") as name:
        folder = Path(name)
        stages = [hr.stage(stage, lambda value: value) for stage in _STAGES]
        pipeline = hr.Pipeline(hr.items(range(count)), stages=stages, delivery=hr.jsonl(str(folder / "out.jsonl")))
        hr.run(pipeline, output=folder / "run", watch=FleetWatch(FolderPlace(folder / "fleet")))
        spans = len(collect(read_run(folder / "run")).spans)
        queue = SqliteQueue(str(folder / "queue.db"))
        queue.send([encode_job(f"https://example.com/photos/{number:08}.jpg") for number in range(count)])
        queue.close()
        return {
            "span": size_of(folder / "run" / "spans") / spans,
            "spans_of_a_job": len(_STAGES) + 1,
            "result": size_of(folder / "out.jsonl") / count,
            "message": sum(size_of(path) for path in folder.glob("queue.db*")) / count,
            "heartbeat": size_of(folder / "fleet"),
            "jobs": count,
            "spans": spans,
            "ledger": fill_ledger(folder / "ledger.sqlite"),
            "quick": quick,
        }


def fill_ledger(path: Path) -> dict[str, Any]:
    """Return what becomes of the events of many writers."""
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(_WRITERS) as pool:
        found = pool.map(_write_events, [str(path)] * _WRITERS, chunksize=1)
    with Ledger.open(path) as ledger:
        written = len(ledger.events.events())
    return {
        "writers": _WRITERS,
        "events": _WRITERS * _EVENTS,
        "missing": _WRITERS * _EVENTS - written,
        "refused": sum(refused for refused, _ in found),
        "longest_seconds": max(longest for _, longest in found),
        "seconds": time.monotonic() - began,
    }


def _write_events(path: str) -> tuple[int, float]:
    """Write one writer's events; return how many were refused, and the seconds that the slowest took."""
    refused, longest = 0, 0.0
    with Ledger.open(path) as ledger:
        for _ in range(_EVENTS):
            began = time.monotonic()
            try:
                ledger.events.write(Event(kind="canary", says="a step"))
            except LedgerError:
                refused += 1
            longest = max(longest, time.monotonic() - began)
    return refused, longest


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return (
        path.stat().st_size if path.is_file() else sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    )


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    of_job, ledger = result["span"] * result["spans_of_a_job"], result["ledger"]
    return "\n".join(
        [
            "# What a job leaves behind",
            "",
            f"Bytes, of {result['jobs']:,} jobs through four stages and a delivery; {result['spans']:,} spans were recorded.",
            "",
            "| what | bytes |",
            "|---|---|",
            f"| a span | {result['span']:.1f} |",
            f"| the spans of a job, all recorded | {of_job:.0f} |",
            f"| a small result in JSON Lines | {result['result']:.0f} |",
            f"| a URL as a message of a SQLite queue | {result['message']:.0f} |",
            f"| a heartbeat | {result['heartbeat']:.0f} |",
            "",
            (
                f"{ledger['writers']} processes wrote {ledger['events']:,} events into one ledger as fast as they could, in "
                f"{ledger['seconds']:.1f} s with their start:"
            ),
            (
                f"{ledger['missing']} are missing, {ledger['refused']} writes were refused, and the slowest took "
                f"{ledger['longest_seconds']:.2g} s."
            ),
        ]
    )


if __name__ == "__main__":
    measure.run_benchmark("scale_bytes", __doc__.splitlines()[0], measure_all, as_text)
