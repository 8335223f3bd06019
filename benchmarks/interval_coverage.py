"""How many of the measured what-ifs lie within intervals as they are made today, from the ledgers in `benchmarks/results`.

    python -m benchmarks.interval_coverage [--json] [--write]

How this works: each dated result of `benchmarks.whatif_error` has the ledger to which its predictions were frozen. The spread
of the recorded run is taken out of each frozen interval, and today's rule is put around the frozen ratio. Then the ledger of
each machine serves as the track record for the predictions of the other one: no prediction is judged by a record that it is
part of. The prior itself comes from these very results, so that what the rule alone holds is no proof of it; what it holds on
pipelines that were drawn from seeds is (`benchmarks.truth`).
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import RESULTS
from headrace.base.documents import decode_document
from headrace.diagnose.prediction_interval import model_error, times_as_wide
from headrace.ledger.track_record import Outcome, judge_record
from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.runs.formats.profile import Estimate

#: Their intervals were made by the first rule: a tenth of a change of 25 % or more, and 2 % at least.
LEDGERS = ("whatif_error_amd-epyc-2-2c_20261121.sqlite", "whatif_error_intel-xeon-167-2c_20261122.sqlite")
_FIRST_LEAST, _FIRST_ERROR, _FIRST_FULL = 0.02, 0.10, math.log(1.25)
#: Shares of the measured ratios that intervals are to hold.
GOAL = (0.86, 0.94)


def read_outcomes(path: Path) -> list[tuple[Outcome, bool]]:
    """Return what a ledger's predictions come to with intervals of today's rule, and whether the frozen interval held."""
    # A file of the repository must not be changed, nor may files appear beside it.
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        rows = connection.execute(
            "SELECT p.change, p.low, p.mid, p.high, m.mid FROM predictions p JOIN measurements m ON m.prediction = p.number"
            " ORDER BY p.number"
        ).fetchall()
    finally:
        connection.close()
    return [_outcome(*row) for row in rows]


def _outcome(change: str, low: float, mid: float, high: float, measured: float) -> tuple[Outcome, bool]:
    kinds = decode_document(change, Change).kinds
    first = max(_FIRST_LEAST, _FIRST_ERROR * min(1.0, abs(math.log(mid)) / _FIRST_FULL))
    spread = math.sqrt(max(0.0, math.log(high / mid) ** 2 - first**2))
    width = math.exp(math.hypot(spread, model_error(mid, kinds)))
    return Outcome(Estimate(mid / width, mid, mid * width), measured, kinds), low <= measured <= high


def widen(outcome: Outcome, record: TrackRecord) -> Outcome:
    """Return an outcome with the interval that a record makes of it."""
    told, times = outcome.predicted, times_as_wide(outcome.kinds, record)
    width = math.exp(times * math.log(told.high / told.mid))
    return replace(outcome, predicted=Estimate(told.mid / width, told.mid, told.mid * width), widened=times)


def score(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the share that the intervals held, and their mean half width, as a share."""
    return {
        "n": len(outcomes),
        "held": statistics.fmean(one.predicted.low <= one.measured <= one.predicted.high for one in outcomes),
        "width": statistics.fmean(one.predicted.high / one.predicted.mid - 1 for one in outcomes),
    }


def measure_all(quick: bool = False) -> dict[str, Any]:
    """Return the benchmark's object; it reads files only, so that the quick form is the whole."""
    read = {name: read_outcomes(RESULTS / name) for name in LEDGERS}
    found: dict[str, Any] = {"goal": GOAL, "quick": quick, "ledgers": {}}
    for name, rows in read.items():
        outcomes = [outcome for outcome, _ in rows]
        record = judge_record([outcome for other in LEDGERS if other != name for outcome, _ in read[other]])
        found["ledgers"][name] = {
            "frozen": statistics.fmean(held for _, held in rows),
            "rule": score(outcomes),
            "record": score([widen(one, record) for one in outcomes]),
            "times": {kind: one.times for kind, one in record.by_kind.items()},
        }
    return found


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    low, high = result["goal"]
    lines = [
        "# How many measured what-ifs lie within their intervals",
        "",
        f"Goal: {low:.0%} to {high:.0%}. Read from the ledgers to which predictions were frozen; nothing is run.",
        "",
        "| ledger | changes | as frozen then | by today's rule (half width) | with the other machine's record (half width) |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {one['rule']['n']} | {one['frozen']:.0%} | {_share(one['rule'])} | {_share(one['record'])} |"
        for name, one in result["ledgers"].items()
    ]
    return "\n".join(lines)


def _share(one: dict[str, float]) -> str:
    return f"{one['held']:.0%} ({one['width']:.1%})"


def main() -> int:
    """Run the benchmark from the command line; status 1 when intervals with a record miss the goal."""
    result = measure.run_benchmark("interval_coverage", __doc__.splitlines()[0], measure_all, as_text)
    low, high = GOAL
    return int(not all(low <= one["record"]["held"] <= high for one in result["ledgers"].values()))


if __name__ == "__main__":
    sys.exit(main())
