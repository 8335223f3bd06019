"""How far off `headrace whatif` is for trainings: predictions from one profile of each, then every change made and measured.

    python -m benchmarks.train.whatif --minutes 8 --keep FOLDER          # as far as that goes; wants a quiet machine
    python -m benchmarks.train.whatif --minutes 8 --keep FOLDER          # again: goes on where it stopped
    python -m benchmarks.train.whatif --keep FOLDER --write              # to the end, and writes a dated result
    python -m benchmarks.train.whatif --only alone --most 2              # two changes, to try it
    python -m benchmarks.train.whatif --quick                            # two changes of each, in two minutes
    python -m benchmarks.train.whatif --short --keep FOLDER --stage predict    # all changes, in short runs: record, predict,
    python -m benchmarks.train.whatif --short --keep FOLDER --minutes 2       # and measure where the machine is quiet

How this works: each job of `whatif_cases` is recorded once. From that run folder alone all of its changes are predicted, and
the predictions are frozen to a ledger, which refuses measurements that are older. Then each change is made, and the changed
training runs in turn with the unchanged one, A B, B A, without a recorder; what counts is the ratio of each pair, so that what
else the machine does falls on both. More pairs are run where two disagree. Before each recording and each pair the cores are
probed: changes for which they were more than a tenth faster or slower than at the recording are listed and not scored. In the
same table stand the operational bounds, and max(step, loader) as timers on the wall clock have them.

A change that cannot be predicted is listed with the reason and not scored.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import machine_speed, measure
from benchmarks.train.whatif_cases import JOBS, WHAT_IFS, Job, WhatIf
from benchmarks.whatif_error import Row, errors, line_of, summarize, until_sure, why_not
from headrace.base.errors import HeadraceError
from headrace.compare.intervals import centre
from headrace.compare.turns import runs_backwards
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.diagnose.whatif import in_words
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run

QUICK_CHANGES = 2
#: What is done of each change.
STAGES = ("record", "predict", "measure")
FROZEN, ROWS, LEDGER = "frozen.jsonl", "measured.jsonl", "ledger.sqlite"

RunJob = Callable[..., float]


@dataclass(frozen=True)
class Amount:
    """How long is measured."""

    profile: float = 5.0
    """Seconds of the profile of a training."""
    block: float = 2.0
    """Seconds of each run of a pair."""
    pairs: int = 2
    """Of a change, at least."""
    adds_pairs: bool = True
    """More pairs are run where two disagree."""


USUAL, QUICK = Amount(), Amount(3.0, 0.8, adds_pairs=False)
SHORT = Amount(3.0, 0.8)


@dataclass
class Runner:
    """Predicts and measures, and keeps what came of it in a folder, from which it goes on."""

    folder: Path
    run_job: RunJob
    until: float
    """On the monotonic clock: no measurement begins after it."""
    rows: list[Row]
    amount: Amount = USUAL
    stage: str = STAGES[-1]
    """The last of `STAGES` that is done."""

    def run(self, name: str, what_ifs: Sequence[WhatIf]) -> None:
        """Predict all changes of a job, unless that was done before, and measure those that are missing."""
        with Ledger.open(self.folder / LEDGER) as ledger:
            frozen = [row for row in read_rows(self.folder / FROZEN) if row.pipeline == name]
            if not frozen:
                self._record(name)
            if self.stage == "record":
                return
            frozen = frozen or self._freeze(ledger, name, what_ifs)
            if self.stage == "predict":
                return
            done = {row.says for row in self.rows if row.pipeline == name}
            for what_if, row in zip(what_ifs, frozen, strict=False):
                if row.says in done or time.monotonic() >= self.until:
                    continue
                found = row if row.predicted is None else self._measure(ledger, JOBS[name], what_if, row)
                self.rows.append(found)
                append_row(self.folder / ROWS, found)
                _say(line_of(found))

    def _record(self, name: str) -> None:
        """Record a training, unless that was done before; one that was killed half-way is recorded again."""
        run, begun = self.folder / name, self.folder / f"{name}.begun"
        if run.exists() and not begun.exists():
            return
        begun.touch()
        self._speed_file(name).write_bytes(msgspec.json.encode(machine_speed.core_speed()))
        self.run_job(JOBS[name], self.amount.profile, run)
        begun.unlink()

    def _speed_file(self, name: str) -> Path:
        """Of a recording: how fast the cores were."""
        return self.folder / f"{name}.speed.json"

    def _freeze(self, ledger: Ledger, name: str, what_ifs: Sequence[WhatIf]) -> list[Row]:
        rows = [predict_row(self.folder / name, name, one, ledger) for one in what_ifs]
        for row in rows:
            append_row(self.folder / FROZEN, row)
        return rows

    def _measure(self, ledger: Ledger, job: Job, what_if: WhatIf, row: Row) -> Row:
        began, changed = time.time(), what_if.make(job)
        seconds, pairs = self.amount.block, self.amount.pairs
        recorded_at = msgspec.json.decode(self._speed_file(row.pipeline).read_bytes(), type=float)
        speeds: list[float] = []

        def run_pair(number: int) -> tuple[float, float]:
            speeds.append(machine_speed.core_speed() / recorded_at)
            rates = {}
            for side in "ba" if runs_backwards(number) else "ab":
                rates[side] = self.run_job(job if side == "a" else changed, seconds)
            return rates["a"], rates["b"]

        try:
            with measure.Window() as window:
                if self.amount.adds_pairs:
                    before, after = until_sure(run_pair, pairs)
                else:
                    before, after = zip(*map(run_pair, range(pairs)), strict=True)
        except RuntimeError as error:
            return msgspec.structs.replace(row, failed=str(error))
        ratio = ratio_of(before, after)
        ledger.write_measurement(row.id, ratio, f"{len(before)} interleaved pairs of {seconds:g} s", measured_at=began)
        return msgspec.structs.replace(
            row,
            measured=ratio,
            before=before,
            after=after,
            other_cores=window.foreign_cores,
            core_speed=statistics.median(speeds),
        )


def predict_row(run: Path, name: str, what_if: WhatIf, ledger: Ledger) -> Row:
    """Return what is predicted from a run folder, written to the ledger; or why nothing is."""
    row = Row(pipeline=name, says=in_words(what_if.change), change=what_if.change)
    try:
        recorded = read_run(run)
        document = TrainingReplay(recorded).predict(what_if.change)
    except HeadraceError as error:
        return msgspec.structs.replace(row, refused=str(error))
    id_ = ledger.write_prediction(document, hardware=recorded.info.hardware)
    return msgspec.structs.replace(
        row, id=id_, predicted=document.throughput.ratio, bounds=document.bound_ratio, naive=document.naive_ratio
    )


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the centre of the paired ratios, with the least and the greatest."""
    logs = [math.log(second / first) for first, second in zip(before, after, strict=True)]
    mid = math.exp(centre(logs))
    ratios = [math.exp(one) for one in logs]
    return Estimate(min(*ratios, mid), mid, max(*ratios, mid))


def noise_of(rows: Sequence[Row]) -> float | None:
    """Return by how much the pairs of a change differ from their middle at most, of the median change; None without any."""
    found = [max(one.high / one.mid, one.mid / one.low) - 1 for row in rows if (one := row.measured) is not None]
    return statistics.median(found) if found else None


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file, none where there is no file."""
    return [msgspec.json.decode(line, type=Row) for line in file.read_bytes().splitlines()] if file.exists() else []


def append_row(file: Path, row: Row) -> None:
    """Write a row to the end of a file."""
    with file.open("ab") as stream:
        stream.write(msgspec.json.encode(row) + b"\n")


def measure_all(
    folder: Path,
    chosen: Mapping[str, Sequence[WhatIf]],
    minutes: float,
    run_job: RunJob,
    *,
    amount: Amount = USUAL,
    stage: str = STAGES[-1],
) -> dict[str, Any]:
    """Go on with the changes that are missing in a folder, and return the benchmark's object.

    Args:
        folder: Of profiles, ledger and rows; made if it is not there.
        chosen: {job: its changes}.
        minutes: After which no measurement begins.
        run_job: Runs a training: job, seconds, run folder to record into.
        amount: How long is measured.
        stage: The last of `STAGES` that is done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(folder, run_job, time.monotonic() + 60 * minutes, read_rows(folder / ROWS), amount, stage)
    for name, what_ifs in chosen.items():
        if time.monotonic() < runner.until:
            runner.run(name, what_ifs)
    wanted = sum(map(len, chosen.values()))
    return {
        **summarize(runner.rows),
        "noise": noise_of(runner.rows),
        "wanted": wanted,
        "seconds": (amount.profile, amount.block),
        "pairs": amount.pairs,
        "adds_pairs": amount.adds_pairs,
        "cases": [msgspec.to_builtins(row) for row in runner.rows],
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Return how far off predictions are, and how often the interval covers what was measured.

    Args:
        quick: Two changes of each training, in shorter runs, until a minute has passed.
    """
    from benchmarks.train.whatif_jobs import run_job

    chosen = {name: what_ifs[: QUICK_CHANGES if quick else None] for name, what_ifs in WHAT_IFS.items()}
    with tempfile.TemporaryDirectory(prefix="train-whatif-") as scratch:
        return measure_all(Path(scratch), chosen, 0.9 if quick else 60.0, run_job, amount=QUICK if quick else USUAL)


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    rows = [msgspec.convert(case, Row) for case in result["cases"]]
    lines = ["# How far off predictions for trainings are", ""]
    profile, block = result["seconds"]
    inside = "-" if result["coverage"] is None else f"{result['coverage']:.0%}"
    introduction = (
        f"{result['n']} of {result['wanted']} changes of {len(result['pipelines'])} trainings, each predicted from one profile "
        f"of {profile:g} s and frozen to a ledger before it was made; {result['pairs']}{' or more' * result['adds_pairs']} "
        f"interleaved pairs of {block:g} s each; one PyTorch thread; {inside} were measured within the predicted interval."
    )
    if result["disturbed"]:
        introduction += (
            f" Not scored: {result['disturbed']} for which the cores were faster or slower by more than a tenth."
        )
    if result["noise"] is not None:
        introduction += (
            f" The pairs of one change differ from their middle by up to {result['noise']:.1%} (the median of changes): no "
            "prediction is known better than that."
        )
    lines += [introduction, "", "| by | changes | mean error | 90 % within | largest | sign right |", "|" + "---|" * 6]
    for by, one in (
        ("simulation", result),
        ("operational bounds", result["bounds"]),
        ("max(step, loader)", result["naive"]),
    ):
        lines.append(f"| {by} | {_cells(one)} |")
    lines += [
        "",
        "| training | changes | mean error | 90 % within | largest | sign right |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {_cells(one)} |" for name, one in result["pipelines"].items()]
    lines += [
        "",
        "| training | change | predicted | bounds | max() | measured | error | others' cores | speed |",
        "|" + "---|" * 9,
    ]
    lines += [_row_text(row) for row in rows if row.is_scored]
    left_out = [f"* {row.pipeline}: {row.says}: {why_not(row)}" for row in rows if not row.is_scored]
    return "\n".join([*lines, *(["", "Not counted:", "", *left_out] if left_out else [])])


def _cells(one: dict[str, Any]) -> str:
    sign = "-" if one["sign_right"] is None else f"{one['sign_right']:.0%} of {one['n_signed']}"
    shares = ["-" if one[key] is None else f"{one[key]:.1%}" for key in ("mean", "p90", "max")]
    return f"{one['n']} | {' | '.join(shares)} | {sign}"


def _row_text(row: Row) -> str:
    assert row.predicted is not None
    assert row.measured is not None
    ours, real = row.predicted, row.measured
    others = ["-" if one is None else f"{one:.2f}" for one in (row.other_cores, row.core_speed)]
    by_hand = [f"{one:.3f}" if one is not None else "-" for one in (row.bounds, row.naive)]
    error = errors([(ours.mid, real.mid)])["mean"]
    ratios = [f"{one.mid:.3f} [{one.low:.3f}-{one.high:.3f}]" for one in (ours, real)]
    cells = [row.pipeline, row.says, ratios[0], *by_hand, ratios[1], f"{error:.1%}", *others]
    return f"| {' | '.join(cells)} |"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train.whatif",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no measurement after so long (default: 60)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep everything here, and go on from what is there"
    )
    parser.add_argument("--only", default="", metavar="JOBS", help=f"some of {','.join(JOBS)}")
    parser.add_argument("--most", type=int, metavar="N", help="no more than N changes of each job")
    parser.add_argument("--quick", action="store_true", help="two changes of each job, in shorter runs")
    parser.add_argument("--short", action="store_true", help="all changes, in shorter runs")
    parser.add_argument(
        "--stage", choices=STAGES, default=STAGES[-1], help="stop after recording, or after predicting (with --keep)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    arguments = parser.parse_args()
    arguments.only = [name for name in arguments.only.split(",") if name]
    if unknown := set(arguments.only) - set(JOBS):
        parser.error(f"--only: no job {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    return arguments


def main() -> int:
    """Run the benchmark from the command line."""
    from benchmarks.train.whatif_jobs import run_job

    arguments = _arguments()
    most = arguments.most or (QUICK_CHANGES if arguments.quick else None)
    amount = QUICK if arguments.quick else SHORT if arguments.short else USUAL
    chosen = {name: WHAT_IFS[name][:most] for name in arguments.only or WHAT_IFS}
    with tempfile.TemporaryDirectory(prefix="train-whatif-") as scratch:
        result = measure_all(
            arguments.keep or Path(scratch), chosen, arguments.minutes, run_job, amount=amount, stage=arguments.stage
        )
    if arguments.stage != STAGES[-1]:
        return 0
    print(json.dumps(result) if arguments.json else as_text(result))
    if arguments.write:
        _say(f"written: {measure.write_result('train_whatif', as_text(result), result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
