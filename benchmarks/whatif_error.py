"""How far off `headrace whatif` is: predictions from one profile of each pipeline, then every change made and measured.

    python -m benchmarks.whatif_error --write            # all changes, some 30 minutes; wants a quiet machine
    python -m benchmarks.whatif_error --quick            # three changes, a smoke run
    python -m benchmarks.whatif_error --only mixed,line  # these pipelines
    python -m benchmarks.whatif_error --keep FOLDER      # keep the profiles and what was measured ...
    python -m benchmarks.whatif_error --keep FOLDER --resume   # go on after Ctrl-C: pipelines measured to the end are kept
    python -m benchmarks.whatif_error --rescore FOLDER   # ... and predict again from them, after a change of the simulator

How this works: each pipeline of `whatif_cases` is profiled once. From that run folder alone all of its changes are predicted,
and the predictions are frozen to a ledger, which refuses measurements that are older than the prediction. Then each change is
made, and the changed pipeline runs in turn with the unchanged one, A B, B A, B A, without a profiler; what counts is the ratio
of each pair, so that what else the machine does falls on both. Where pairs disagree there are more of them. The error is
|predicted ratio / measured ratio - 1|. A pair does not cancel the machine's own drift where one of the two waits for the cores
and the other for the outside: before each pair the cores are probed, and given a while to be as fast as they were at the
profile. Changes for which they stayed more than a tenth away are listed and not scored.

In the same table stand the operational bounds, and what stage timers on the wall clock would promise. `--rescore` predicts what
is known already: it serves development, says `"frozen": false`, and cannot be written as a result.

Ctrl-C ends it with what was measured so far.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import measure
from benchmarks.faults import SHAPES
from benchmarks.faults.case import Case
from benchmarks.faults.measuring import run_case, throughput
from benchmarks.machine_speed import NEAR, core_speed, wait_for
from benchmarks.paths import RESULTS
from benchmarks.whatif_cases import PIPELINES, QUICK, WHAT_IFS, WhatIf
from headrace.base.errors import HeadraceError
from headrace.compare.interrupts import noticing
from headrace.compare.intervals import centre
from headrace.compare.turns import runs_backwards
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import Replay
from headrace.diagnose.whatif import predict
from headrace.ledger.ledger import Ledger
from headrace.ledger.track_record import SIGN_BAND
from headrace.runs.formats.prediction import Change, PredictionDocument
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run

#: What a full run must reach; `sign_right` and `coverage` are the least, the others the most.
FEWEST_CHANGES, LEAST_SIGN_RIGHT, LEAST_COVERAGE = 60, 0.95, 0.86
MOST = {"mean": 0.05, "p90": 0.10, "max": 0.15}

#: Pairs are run again where the standard error of the measured ratio is above this, up to so many times as many in all.
SURE, MOST_ROUNDS = 0.02, 2

#: Profiles of a pipeline at most, until the cores were as fast after it as before.
PROFILES = 3
#: Where the cores are so much faster or slower than at the time of the profile, it is another machine.
OTHER_SPEED = 0.10

ROWS = "measured.jsonl"
LEDGER = "ledger.sqlite"


@dataclass(frozen=True)
class Length:
    """How much is run."""

    base_seconds: float
    """Of the profile that everything is predicted from."""
    block_seconds: float
    """Of each run of a pair."""
    pairs: int


QUICK_LENGTH = Length(base_seconds=2.5, block_seconds=1.2, pairs=2)


def full_length(pipeline: str) -> Length:
    """Return how long a pipeline runs: two equal runs that keep the cores busy differ by 3 to 5 %, others by 0.5 %.

    That is the machine's doing, and no less in longer runs; more pairs help.
    """
    if pipeline in SHAPES or pipeline == "mixed":
        return Length(base_seconds=8.0, block_seconds=1.2, pairs=5)
    return Length(base_seconds=6.0, block_seconds=1.2, pairs=2)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    pipeline: str
    says: str
    change: Change
    id: str = ""
    """In the ledger."""
    predicted: Estimate | None = None
    """Ratio of throughputs; None: refused."""
    refused: str = ""
    bounds: float | None = None
    """The ratio by operational bounds."""
    naive: float | None = None
    """The ratio by stage timers."""
    measured: Estimate | None = None
    """Mid of the pairs, with the least and the greatest; None: not made, because it was refused, or `failed` says why."""
    before: tuple[float, ...] = ()
    """Jobs per second of the unchanged pipeline, run by run."""
    after: tuple[float, ...] = ()
    other_cores: float | None = None
    """Taken by other programs meanwhile."""
    core_speed: float | None = None
    """How fast the cores were, compared with the time of the profile: median of the pairs."""
    base_speed: float | None = None
    """How fast the unchanged pipeline was, compared with its profile: median of the pairs."""
    left_out: int = 0
    """Of `after`, because others had the cores."""
    failed: str = ""

    @property
    def is_scored(self) -> bool:
        """Whether there are a prediction and a measurement, on one and the same machine."""
        return self.predicted is not None and self.measured is not None and not self.is_disturbed

    @property
    def is_disturbed(self) -> bool:
        """Whether the cores were faster or slower than at the time of the profile, by more than a tenth."""
        return self.core_speed is not None and abs(self.core_speed - 1) > OTHER_SPEED


# --- predicting


def predict_row(replay: Replay, pipeline: str, change: Change) -> tuple[Row, PredictionDocument | None]:
    """Return what is predicted for a change, from the recorded run alone."""
    try:
        document = predict(replay, change)
    except HeadraceError as error:
        return Row(pipeline=pipeline, says=_says(change), change=change, refused=str(error)), None
    row = Row(
        pipeline=pipeline,
        says=_says(change),
        change=change,
        predicted=document.throughput.ratio,
        refused=document.throughput.refused,
        bounds=document.bound_ratio,
        naive=document.naive_ratio,
    )
    return row, document


def _says(change: Change) -> str:
    parts = [setting.replace("executor=", "") for setting in change.settings]
    parts += [f"{name} {factor:g}x as fast" for name, factor in change.speedups.items()]
    parts += [f"without {name}" for name in change.drop]
    parts += [f"every {number}th item of {name}" for name, number in change.every.items()]
    parts += [f"{name} at {_curve(curve)}" for name, curve in change.cost_curves.items()]
    if change.arrival_rate is not None:
        parts.append(f"{change.arrival_rate:.3g} jobs/s arrive")
    return ", ".join(parts)


def _curve(curve: dict[int, float]) -> str:
    return " ".join(f"{size}: {1000 * seconds:.3g} ms" for size, seconds in sorted(curve.items()))


# --- measuring


class _Stopped(Exception):
    """The user wants no more."""


@dataclass
class Runner:
    """Runs the pipelines, one after the other, and keeps what came of it."""

    folder: Path
    ledger: Ledger
    length_of: Callable[[str], Length]
    is_interrupted: Callable[[], bool]
    total: int
    done: int = 0
    started: float = dataclasses.field(default_factory=time.monotonic)

    def run(self, pipeline: str, what_ifs: Sequence[WhatIf]) -> Iterator[Row]:
        """Profile a pipeline, freeze all predictions, then make and measure each change."""
        case, length = PIPELINES[pipeline](), self.length_of(pipeline)
        speed = self._profile(pipeline, dataclasses.replace(case, seconds=length.base_seconds))
        replay = Analysis(read_run(self.folder / pipeline)).replay
        asked = [one.at_rate(replay.throughput).with_curve(case) for one in what_ifs]
        frozen = [self._freeze(replay, pipeline, one.change) for one in asked]
        _say(f"{pipeline}: {replay.throughput:.4g}/s; {len(frozen)} predictions are in the ledger")
        block = dataclasses.replace(case, seconds=length.block_seconds)
        for one, row in zip(asked, frozen, strict=True):
            measured = self._measure(block, one, row, length.pairs, speed) if row.predicted is not None else row
            self.done += 1
            _say(f"[{self.done}/{self.total}] {line_of(measured)}{self._left()}")
            with (self.folder / ROWS).open("ab") as file:
                file.write(msgspec.json.encode(measured) + b"\n")
            yield measured

    def _profile(self, pipeline: str, case: Case) -> float:
        """Write the run folder of a pipeline, and return how fast the cores were; again if that changed meanwhile."""
        for _ in range(PROFILES):
            _say(f"{pipeline}: profiling for {case.seconds:g} s")
            before = core_speed()
            run_case(case, self.folder / pipeline, force=True)
            self._stop_if_asked()
            after = core_speed()
            if abs(after / before - 1) <= NEAR:
                break
        return (before + after) / 2

    def _freeze(self, replay: Replay, pipeline: str, change: Change) -> Row:
        row, document = predict_row(replay, pipeline, change)
        if document is None or row.predicted is None:
            return row
        number = self.ledger.write_prediction(document, hardware=replay.evidence.info.hardware)
        return msgspec.structs.replace(row, id=number)

    def _measure(self, base: Case, what_if: WhatIf, row: Row, pairs: int, speed: float) -> Row:
        began, changed = time.time(), what_if.make(base)
        speeds: list[float] = []

        def run_pair(number: int) -> tuple[float, float]:
            speeds.append(wait_for(speed, self._stop_if_asked))
            rates = {}
            for name in "ba" if runs_backwards(number) else "ab":
                rates[name] = throughput(base if name == "a" else changed)
                self._stop_if_asked()
            return rates["a"], rates["b"]

        try:
            with measure.Window() as window:
                before, after = until_sure(run_pair, pairs)
        except HeadraceError as error:
            self._stop_if_asked()  # what an interrupt cut short has failed too
            return msgspec.structs.replace(row, failed=str(error))
        ratio = _estimate(before, after)
        how = f"{len(before)} interleaved pairs of {base.seconds:g} s"
        self.ledger.write_measurement(row.id, ratio, how, measured_at=began)
        return msgspec.structs.replace(
            row,
            measured=ratio,
            before=before,
            after=after,
            other_cores=window.foreign_cores,
            core_speed=statistics.median(speeds),
        )

    def _stop_if_asked(self, line: str = "") -> None:
        if self.is_interrupted():
            raise _Stopped

    def _left(self) -> str:
        each = (time.monotonic() - self.started) / self.done
        return f"; about {each * (self.total - self.done) / 60:.0f} min left"


def until_sure(
    run_pair: Callable[[int], tuple[float, float]], pairs: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the rates before and after, pair by pair: as many again where the first leave the ratio unsure."""
    found: list[tuple[float, float]] = []
    while len(found) < MOST_ROUNDS * pairs:
        found.append(run_pair(len(found)))
        before, after = zip(*found, strict=True)
        if len(found) % pairs == 0 and _is_sure(before, after):
            break
    return before, after


def _differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [math.log(second / first) for first, second in zip(before, after, strict=True)]


def _is_sure(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the standard error of the mean ratio is small enough."""
    return len(before) > 1 and statistics.stdev(_differences(before, after)) / math.sqrt(len(before)) <= SURE


def _estimate(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the centre of the paired ratios with the least and the greatest."""
    ratios = [math.exp(one) for one in _differences(before, after)]
    mid = math.exp(centre(_differences(before, after)))
    return Estimate(min(*ratios, mid), mid, max(*ratios, mid))


def measure_all(
    chosen: dict[str, Sequence[WhatIf]],
    folder: Path,
    ledger_path: Path,
    length_of: Callable[[str], Length],
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Predict, freeze and measure, and return the benchmark's object.

    Args:
        chosen: {pipeline: its changes}.
        folder: Of profiles and rows.
        ledger_path: Where predictions are frozen.
        length_of: How long each pipeline runs.
        resume: Keep what the folder and the ledger hold of pipelines that were measured to the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = _finished(read_rows(folder), chosen) if resume else []
    interrupted = False
    (folder / ROWS).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    if not resume:
        _remove(ledger_path)
    left = {name: what_ifs for name, what_ifs in chosen.items() if all(row.pipeline != name for row in rows)}
    with Ledger.open(ledger_path) as ledger, noticing() as is_interrupted:
        runner = Runner(folder, ledger, length_of, is_interrupted, sum(map(len, left.values())))
        try:
            for pipeline, what_ifs in left.items():
                rows.extend(runner.run(pipeline, what_ifs))
        except (_Stopped, KeyboardInterrupt):
            interrupted = True
    return {
        **summarize(rows),
        "frozen": True,
        "interrupted": interrupted,
        "lengths": {name: dataclasses.asdict(length_of(name)) for name in chosen},
        "cases": [msgspec.to_builtins(row) for row in rows],
    }


def _finished(rows: Sequence[Row], chosen: dict[str, Sequence[WhatIf]]) -> list[Row]:
    """Return the rows of pipelines whose changes were all tried."""
    return [
        row for row in rows if sum(one.pipeline == row.pipeline for one in rows) == len(chosen.get(row.pipeline, ()))
    ]


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


# --- scoring


def read_rows(folder: Path) -> list[Row]:
    """Return what an earlier run with `--keep` measured.

    Raises:
        HeadraceError: If the folder holds none.
    """
    try:
        content = (folder / ROWS).read_bytes()
    except OSError as error:
        raise HeadraceError(f"{folder} was not written by --keep: {error}") from None
    return [msgspec.json.decode(line, type=Row) for line in content.splitlines()]


def rescore(folder: Path, only: Sequence[str]) -> dict[str, Any]:
    """Predict again what was measured already, tell one line each, and return the benchmark's object."""
    rows = []
    by_pipeline: dict[str, list[Row]] = {}
    for row in read_rows(folder):
        if not only or row.pipeline in only:
            by_pipeline.setdefault(row.pipeline, []).append(row)
    for pipeline, known in by_pipeline.items():
        replay = Analysis(read_run(folder / pipeline)).replay
        base = replay.simulate(Change()).throughput
        _say(f"{pipeline}: {replay.throughput:.4g}/s measured, {base:.4g}/s simulated")
        for row in known:
            again, _ = predict_row(replay, pipeline, row.change)
            rows.append(
                msgspec.structs.replace(
                    row, predicted=again.predicted, refused=again.refused, bounds=again.bounds, naive=again.naive
                )
            )
            _say("  " + line_of(rows[-1]))
    return {
        **summarize(rows),
        "frozen": False,
        "interrupted": False,
        "cases": [msgspec.to_builtins(row) for row in rows],
    }


def line_of(row: Row) -> str:
    """Return one line on one change."""
    text = f"{row.pipeline}: {row.says}: "
    if row.predicted is None:
        return f"{text}refused: {row.refused}"
    text += f"predicted x{row.predicted.mid:.3f} [{row.predicted.low:.3f}-{row.predicted.high:.3f}]"
    text += f", bounds {_times(row.bounds)}, naive {_times(row.naive)}"
    if row.measured is None:
        return f"{text}, not measured: {row.failed}"
    text += f", measured x{row.measured.mid:.3f} [{row.measured.low:.3f}-{row.measured.high:.3f}]"
    return f"{text}, error {100 * (row.predicted.mid / row.measured.mid - 1):+.1f} %"


def _times(value: float | None) -> str:
    return "-" if value is None else f"x{value:.3f}"


def errors(pairs: Iterable[tuple[float | None, float]]) -> dict[str, Any]:
    """Return how far predicted ratios were off, as shares.

    Args:
        pairs: (predicted, measured); those without a prediction do not count.

    Returns:
        `n`, `mean`, `p90` (nearest rank), `max`, and `sign_right`: the share predicted on the right side of 1 among those
        measured more than 5 % away from it. None where there are none.
    """
    known = [(predicted, measured) for predicted, measured in pairs if predicted is not None]
    found = sorted(abs(predicted / measured - 1) for predicted, measured in known)
    signed = [(predicted, measured) for predicted, measured in known if abs(measured - 1) > SIGN_BAND]
    right = sum((predicted - 1) * (measured - 1) > 0 for predicted, measured in signed)
    return {
        "n": len(found),
        "mean": statistics.fmean(found) if found else None,
        "p90": found[math.ceil(0.9 * len(found)) - 1] if found else None,
        "max": found[-1] if found else None,
        "sign_right": right / len(signed) if signed else None,
        "n_signed": len(signed),
    }


def coverage(pairs: Sequence[tuple[Estimate, Estimate]]) -> dict[str, Any]:
    """Return how intervals held what was measured, and what they had to reach to.

    Args:
        pairs: (predicted, measured), at least one.

    Returns:
        `n`; `inside`: the share whose middle was within the interval; `overlap`: that whose own range was at least touched;
        `width`: the mean half width, as a share; `error`: what nine in ten were off by.
    """
    inside = sum(told.low <= real.mid <= told.high for told, real in pairs)
    overlap = sum(told.low <= real.high and real.low <= told.high for told, real in pairs)
    return {
        "n": len(pairs),
        "inside": inside / len(pairs),
        "overlap": overlap / len(pairs),
        "width": statistics.fmean(math.sqrt(told.high / told.low) - 1 for told, _ in pairs),
        "error": errors((told.mid, real.mid) for told, real in pairs)["p90"],
    }


def missed(result: dict[str, Any]) -> list[str]:
    """Return which goals a full run misses, in words; none if it reaches all."""
    found = [f"{key} {result[key]:.1%} > {most:.0%}" for key, most in MOST.items() if not (result[key] or 0.0) <= most]
    if result["n"] < FEWEST_CHANGES:
        found.append(f"{result['n']} changes < {FEWEST_CHANGES}")
    if (result["sign_right"] or 0.0) < LEAST_SIGN_RIGHT:
        found.append(f"sign right {_percent(result['sign_right'])} < {LEAST_SIGN_RIGHT:.0%}")
    if (result["coverage"] or 0.0) < LEAST_COVERAGE:
        found.append(f"intervals held {_percent(result['coverage'])} < {LEAST_COVERAGE:.0%}")
    return found


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the benchmark's figures."""
    scored = [
        (row, row.predicted, row.measured)
        for row in rows
        if row.is_scored and row.predicted is not None and row.measured is not None
    ]
    ours = errors((predicted.mid, measured.mid) for _, predicted, measured in scored)
    naive = errors((row.naive, measured.mid) for row, _, measured in scored)
    bounds = errors((row.bounds, measured.mid) for row, _, measured in scored)
    inside = sum(predicted.low <= measured.mid <= predicted.high for _, predicted, measured in scored)
    return {
        **ours,
        "naive_mean": naive["mean"],
        "bounds_mean": bounds["mean"],
        "naive": naive,
        "bounds": bounds,
        "coverage": inside / len(scored) if scored else None,
        "kinds": {
            kind: coverage([(told, real) for row, told, real in scored if kind in row.change.kinds])
            for kind in sorted({kind for row, _, _ in scored for kind in row.change.kinds})
        },
        "refused": sum(row.predicted is None for row in rows),
        "failed": sum(bool(row.failed) for row in rows),
        "disturbed": sum(row.is_disturbed for row in rows),
        "pipelines": {
            name: errors((one.mid, measured.mid) for row, one, measured in scored if row.pipeline == name)
            for name in dict.fromkeys(row.pipeline for row in rows)
        },
    }


# --- telling


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    rows = [msgspec.convert(case, Row) for case in result["cases"]]
    lines = ["# How far off predictions are", "", _introduction(result), ""]
    lines += ["| by | changes | mean error | 90 % within | largest | sign right |", "|---|---|---|---|---|---|"]
    for name, one in (
        ("simulator", result),
        ("operational bounds", result["bounds"]),
        ("stage timers", result["naive"]),
    ):
        lines.append(f"| {name} | {_cells(one)} |")
    lines += [
        "",
        "| pipeline | changes | mean error | 90 % within | largest | sign right |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {_cells(one)} |" for name, one in result["pipelines"].items()]
    lines += [
        "",
        "| kind of change | changes | measured within the interval | half width, mean | 90 % off by |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {kind} | {one['n']} | {one['inside']:.0%} | {_percent(one['width'])} | {_percent(one['error'])} |"
        for kind, one in result.get("kinds", {}).items()
    ]
    lines += [
        "",
        "| pipeline | change | predicted | bounds | stage timers | measured | error | others' cores | speed of the cores |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    lines += [_row_text(row) for row in rows if row.is_scored]
    left_out = [f"* {row.pipeline}: {row.says}: {why_not(row)}" for row in rows if not row.is_scored]
    if left_out:
        lines += ["", "Not counted:", "", *left_out]
    lines += [
        "",
        "Ratios are throughput of the changed pipeline over that of the unchanged one; brackets hold the interval of the",
    ]
    lines += [
        "prediction, and the least and the greatest pair. Sign: on the right side of 1 where more than 5 % away from it."
    ]
    return "\n".join(lines)


def _introduction(result: dict[str, Any]) -> str:
    if not result["n"]:
        return "Nothing was measured."
    how = (
        f"frozen to a ledger before they were made; {_lengths(result)} each"
        if result["frozen"]
        else "**predicted again after measuring**: for development, not a result"
    )
    coverage = f"{result['coverage']:.0%} were measured within the predicted interval"
    stopped = " Interrupted: not all changes were tried." if result["interrupted"] else ""
    return f"{result['n']} changes of {len(result['pipelines'])} pipelines, {how}; {coverage}.{stopped}"


def why_not(row: Row) -> str:
    """Return why a change is not scored, for readers."""
    if not row.is_disturbed or row.predicted is None or row.measured is None:
        return f"refused: {row.refused}" if row.refused else f"failed: {row.failed}"
    return (
        f"predicted {row.predicted.mid:.3f}, measured {row.measured.mid:.3f}, "
        f"cores {row.core_speed:.2f} times as fast as at the time of the profile"
    )


def _lengths(result: dict[str, Any]) -> str:
    pairs = [(length["pairs"], length["block_seconds"]) for length in result["lengths"].values()]
    return " or ".join(
        f"{number} or more interleaved pairs of {seconds:g} s" for number, seconds in dict.fromkeys(pairs)
    )


def _cells(one: dict[str, Any]) -> str:
    numbers = " | ".join(_percent(one[key]) for key in ("mean", "p90", "max"))
    sign = "-" if one["sign_right"] is None else f"{one['sign_right']:.0%} of {one['n_signed']}"
    return f"{one['n']} | {numbers} | {sign}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _row_text(row: Row) -> str:
    assert row.predicted is not None
    assert row.measured is not None
    ours, real = row.predicted, row.measured
    cells = [
        row.pipeline,
        row.says,
        f"{ours.mid:.3f} [{ours.low:.3f}-{ours.high:.3f}]",
        _times(row.bounds),
        _times(row.naive),
        f"{real.mid:.3f} [{real.low:.3f}-{real.high:.3f}]",
        f"{100 * (ours.mid / real.mid - 1):+.1f} %",
        "-" if row.other_cores is None else f"{row.other_cores:.2f}",
        "-" if row.core_speed is None else f"{row.core_speed:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the command


def _chosen(quick: bool, only: Sequence[str]) -> dict[str, Sequence[WhatIf]]:
    if quick:
        return {name: WHAT_IFS[name][:count] for name, count in QUICK.items() if not only or name in only}
    return {name: what_ifs for name, what_ifs in WHAT_IFS.items() if not only or name in only}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whatif_error",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run, under 50 s; the claim is the full run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument(
        "--write", action="store_true", help="write a dated result and the ledger to benchmarks/results"
    )
    parser.add_argument("--only", default="", metavar="PIPELINES", help=f"some of {','.join(WHAT_IFS)}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep profiles, ledger and rows here")
    parser.add_argument(
        "--resume", action="store_true", help="go on in --keep FOLDER with the pipelines that are missing"
    )
    parser.add_argument("--rescore", type=Path, metavar="FOLDER", help="predict again from what --keep left")
    arguments = parser.parse_args()
    arguments.only = [name for name in arguments.only.split(",") if name]
    if unknown := set(arguments.only) - set(WHAT_IFS):
        parser.error(f"--only: no pipeline {', '.join(sorted(unknown))}; there are {', '.join(WHAT_IFS)}")
    if arguments.resume and not arguments.keep:
        parser.error("--resume goes on in the folder of --keep; name it")
    if arguments.rescore and (arguments.write or arguments.keep or arguments.quick):
        parser.error("--rescore goes with --only and --json alone: what is predicted after measuring is no result")
    return arguments


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.rescore:
        return rescore(arguments.rescore, arguments.only)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="whatif-error-"))
    ledger = folder / LEDGER
    if arguments.write:
        RESULTS.mkdir(parents=True, exist_ok=True)
        ledger = RESULTS / f"whatif_error_{measure.hardware_slug()}_{datetime.now(UTC):%Y%m%d}.sqlite"
    try:
        chosen = _chosen(arguments.quick, arguments.only)
        length_of = (lambda _: QUICK_LENGTH) if arguments.quick else full_length
        result = measure_all(chosen, folder, ledger, length_of, resume=arguments.resume)
        return {**result, "quick": arguments.quick, "ledger": ledger.name}
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the benchmark from the command line; status 1 when a full run misses a goal."""
    arguments = _arguments()
    try:
        result = _run(arguments)
    except HeadraceError as error:
        _say(str(error))
        return 2
    print(json.dumps(result) if arguments.json else as_text(result))
    if arguments.write:
        _say(f"written: {measure.write_result('whatif_error', as_text(result), result)}")
    if result["interrupted"]:
        return 130
    if arguments.quick or arguments.only or arguments.rescore:
        return 0
    for goal in (goals := missed(result)):
        _say(f"goal missed: {goal}")
    return int(bool(goals))


if __name__ == "__main__":
    sys.exit(main())
