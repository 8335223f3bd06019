"""How far apart two runs of one pipeline are that runs as fast as it can: recorded, and minutes later without a recorder.

    python -m benchmarks.truth.apart             # of all dated results, whose seeds nobody had seen; seconds
    python -m benchmarks.truth.apart --result    # and writes the dated result that `headrace.diagnose.whatif` quotes

How this works: each row of a dated result holds the rate of the profile, and the median rate of the same pipeline in the
blocks that were run in turn with its cures. Rows count where nobody disturbed the machine and the source gives jobs as fast as
they are taken: the rate of others is that at which jobs come. What-if takes the nine in ten for what it cannot know of a rate
that is said to it (`--arrival-rate`), where the recorded run was as fast as it could be.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import measure, paths
from benchmarks.truth.rounds import AS_IT_IS
from benchmarks.truth.rows import Row

#: What keeps a source from giving jobs as fast as they are taken.
_PACED = ("per_second", "poll_seconds")
_SHARE = 0.9


def rows_of(folder: Path) -> Iterator[tuple[str, Row]]:
    """Give each row of the dated results of the seeds, with the name of its file."""
    for path in sorted(folder.glob("truth_*.json")):
        for row in json.loads(path.read_text())["data"].get("rows", ()):
            yield path.stem, msgspec.convert(row, Row)


def apart(row: Row) -> float | None:
    """Return the logarithm of the later rate over the recorded one; None where the row does not tell."""
    again = row.rates.get(AS_IT_IS)
    if (
        row.problem
        or row.is_disturbed
        or not row.throughput
        or not again
        or not row.case.spec.arrivals.keys().isdisjoint(_PACED)
    ):
        return None
    return math.log(again / row.throughput)


def summarize(rows: Iterable[tuple[str, Row]]) -> dict[str, Any]:
    """Return how far apart the pairs of runs are.

    Returns:
        `pipelines`; `nine_in_ten` and `median`: of the absolute logarithms, nearest rank; `pairs`: one for each pipeline.
    """
    logs = [(name, row, log) for name, row in rows if (log := apart(row)) is not None]
    distances = sorted(abs(log) for _, _, log in logs)
    return {
        "pipelines": len(logs),
        "median": _rank(distances, 0.5),
        "nine_in_ten": _rank(distances, _SHARE),
        "pairs": [
            {"from": name, "seed": row.seed, "recorded": row.throughput, "again": row.rates[AS_IT_IS], "log": log}
            for name, row, log in logs
        ],
    }


def _rank(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def as_text(found: dict[str, Any]) -> str:
    """Return it for readers."""
    title = "# How far apart two runs of one pipeline are\n\n"
    if not found["pipelines"]:
        return f"{title}No dated result holds such a pair."
    says = (
        f"{found['pipelines']} pipelines whose source gives jobs as fast as they are taken, each recorded, and run again "
        f"minutes later without a recorder: the rates differ by x{math.exp(found['median']):.2f} in the median and by at most "
        f"x{math.exp(found['nine_in_ten']):.2f} in nine of ten (a logarithm of {found['nine_in_ten']:.2f}).\n\n"
    )
    head = "| from | seed | recorded, jobs/s | again, jobs/s | again over recorded |\n|---|---|---|---|---|\n"
    lines = [
        f"| {one['from']} | {one['seed']} | {one['recorded']:.1f} | {one['again']:.1f} | x{math.exp(one['log']):.2f} |"
        for one in sorted(found["pairs"], key=lambda one: -abs(one["log"]))
    ]
    return title + says + head + "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Say it from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.truth.apart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--result", action="store_true", help="write a dated result to benchmarks/results")
    parsed = parser.parse_args(arguments)
    found = summarize(rows_of(paths.RESULTS))
    print(as_text(found))
    if parsed.result:
        print(f"written: {measure.write_result('runs_apart', as_text(found), found)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
