"""What a job leaves behind, in bytes: spans, results, a message of a queue, a heartbeat.

    python -m benchmarks.scale_bytes --write    # ten seconds

Sizes do not depend on the machine's speed; they do on the pipeline: four stages and a delivery of small results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import measure
from headrace.diagnose.evidence import collect
from headrace.monitor.fleet.beating import FleetWatch
from headrace.monitor.fleet.place import FolderPlace
from headrace.runs.reader import read_run
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

_STAGES = "abcd"


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
            "quick": quick,
        }


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return (
        path.stat().st_size if path.is_file() else sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    )


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    of_job = result["span"] * result["spans_of_a_job"]
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
        ]
    )


if __name__ == "__main__":
    measure.run_benchmark("scale_bytes", __doc__.splitlines()[0], measure_all, as_text)
