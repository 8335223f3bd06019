"""The article's ladder foretold: from a profile of the sequential run at 3 requests/s alone, what the other Plans give.

The emulated case of `benchmarks.ladder` at its original speed. The sequential run is profiled (its warm-up measures the device
at batches of 1, 2, 4 and 8); threads, overlap and batches of 8 are predicted from it and go to a ledger; only then are they
measured.

    python -m benchmarks.article_whatif [--quick] [--json] [--write]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import ladder, measure, ours
from headrace.base.plan_changes import list_changed_settings
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import Replay
from headrace.diagnose.whatif import predict
from headrace.ledger.ledger import Ledger
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run
from headrace.stages.module import ProcessStage

RUNGS = ("threaded", "overlapped", "batch8")
#: Items of the sequential run: a third of a second each. A prediction takes 30.
PROFILED, PROFILED_QUICK = 40, 32
#: The goal: every Plan within this of what is measured.
MOST_ERROR = 0.10
#: What each Plan can do at most, by arithmetic: one thread preprocesses and runs the model; the device at batch 1; at batch 8.
LIMITS = {
    "threaded": 1 / (ladder.PREPROCESS_SECONDS + ladder.LAUNCH_SECONDS + ladder.ITEM_SECONDS),
    "overlapped": 1 / (ladder.LAUNCH_SECONDS + ladder.ITEM_SECONDS),
    "batch8": 8 / (ladder.LAUNCH_SECONDS + 8 * ladder.ITEM_SECONDS),
}


def profile_sequential(folder: Path, count: int) -> Replay:
    """Profile the sequential Plan at the original speed and return it ready to be replayed."""
    stages = [
        hr.emulated("fetch", kind="io", seconds=ladder.IO_SECONDS),
        hr.emulated("preprocess", seconds=ladder.PREPROCESS_SECONDS),
        ProcessStage("process", ours.Device()),
    ]
    source = ours.Listed([(str(number), b"") for number in range(count)])
    profile(
        hr.Pipeline(source, stages=stages, name="the article's case, emulated"),
        _plan("sequential"),
        output=folder,
        settings=ProfileSettings(measure_overhead=False),
    )
    return Analysis(read_run(folder)).replay


def _plan(name: str) -> hr.Plan:
    options = [
        f"model.options.launch_seconds={ladder.LAUNCH_SECONDS}",
        f"model.options.item_seconds={ladder.ITEM_SECONDS}",
    ]
    return hr.Plan.load(ours.PLANS / f"ladder_{name}.toml").with_settings(options)


def predict_and_measure(folder: Path, quick: bool) -> dict[str, Any]:
    """Return the sequential rate, and of each other Plan what was predicted and measured."""
    replay = profile_sequential(folder / "sequential", PROFILED_QUICK if quick else PROFILED)
    _say(f"sequential: {replay.throughput:.2f}/s")
    counts = ladder.QUICK if quick else ladder.RUNGS
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        predicted: dict[str, tuple[str, Estimate]] = {}
        for name in RUNGS:
            document = predict(replay, Change(settings=list_changed_settings(_plan("sequential"), _plan(name))))
            ratio, told = document.throughput.ratio, document.throughput.predicted
            if ratio is None or told is None:
                raise RuntimeError(f"{name} was not predicted: {document.throughput.refused}")
            predicted[name] = (ledger.write_prediction(document), told)
            _say(f"{name}: {told.mid:.2f}/s predicted ({told.low:.2f} to {told.high:.2f})")
        rows = []
        for name, (id_, told) in predicted.items():
            began = time.time()
            rate, _ = ladder.run_emulated(name, 1, counts[name])
            ratio_measured = rate / replay.throughput
            ledger.write_measurement(
                id_, Estimate(ratio_measured, ratio_measured, ratio_measured), "one run", measured_at=began
            )
            _say(f"{name}: {rate:.2f}/s measured")
            rows.append(_row(name, told, rate))
        record = ledger.track_record()
    errors = [abs(row["error"]) for row in rows]
    return {
        "sequential": replay.throughput,
        "rungs": rows,
        "mean_error": sum(errors) / len(errors),
        "max_error": max(errors),
        "record": record.says,
        "foreign_cores": replay.document.environment.other_cpu_cores,
        "quick": quick,
    }


def _row(name: str, told: Estimate, rate: float) -> dict[str, Any]:
    return {
        "name": name,
        "predicted": told.mid,
        "low": told.low,
        "high": told.high,
        "measured": rate,
        "limit": LIMITS[name],
        "article": ladder.ARTICLE[name],
        "error": told.mid / rate - 1,
    }


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    with tempfile.TemporaryDirectory() as folder:
        return predict_and_measure(Path(folder), quick)


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    return "\n".join(
        [
            "# The article's ladder, foretold from its first step",
            "",
            f"Emulated, at the original speed. Profiled: the sequential run alone, {result['sequential']:.2f} items/s.",
            "",
            "| Plan | predicted | interval | measured | error | closed form | article |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {row['name']} | {row['predicted']:.2f} | {row['low']:.2f} to {row['high']:.2f} | {row['measured']:.2f} | "
                f"{row['error']:+.1%} | {row['limit']:.2f} | {row['article']:g} |"
                for row in result["rungs"]
            ),
            "",
            f"Mean error {result['mean_error']:.1%}, largest {result['max_error']:.1%}.",
        ]
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line; status 1 when a prediction is further off than the goal."""
    result = measure.run_benchmark("article_whatif", __doc__.splitlines()[0], measure_all, as_text)
    return int(result["max_error"] > MOST_ERROR)


if __name__ == "__main__":
    sys.exit(main())
