"""How far off `headrace whatif` is for trainings: predictions from one profile of each, then every change made and measured.

    python -m benchmarks.train.whatif --write                            # the whole, 20 minutes; wants a quiet machine
    python -m benchmarks.train.whatif --minutes 4 --keep FOLDER          # as far as that goes ...
    python -m benchmarks.train.whatif --minutes 4 --keep FOLDER          # ... again: goes on where it stopped
    python -m benchmarks.train.whatif --only alone --most 2              # two changes, to try it
    python -m benchmarks.train.whatif --quick                            # two changes of each, until a minute has passed
    python -m benchmarks.train.whatif --rescore FOLDER                   # predict again from what --keep left

How this works: each job of `whatif_cases` is recorded once. From that run folder alone all of its changes are predicted, and
the predictions are frozen to a ledger, which refuses measurements that are older. Then each change is made: the unchanged and
the changed training are two processes, of which one stands still while the other goes on for half a second, A B A B A, without
a recorder. What counts is the rate of each B over that of the As beside it, so that what else the machine does falls on both.
Where an A was slower than in its best quarter by more than a twelfth, others had the cores: the Bs beside it are left out, and
there are more, up to twice as many. What B itself did decides nothing.

A recording is made again where the unchanged training is faster or slower behind it by more than a tenth, before anything is
predicted. How fast the unchanged training was beside the recorded one stands in the table; every change that was predicted and
made is scored. In the same table stand the operational bounds, and max(step, loader) as timers on the wall clock have them.

`--rescore` predicts what is known already: it serves development, and cannot be written as a result.

A change that cannot be predicted is listed with the reason and not scored.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from benchmarks import measure
from benchmarks.train.whatif_cases import JOBS, WHAT_IFS, Job, WhatIf
from benchmarks.whatif_error import Row, errors, line_of, summarize, why_not
from headrace.base.errors import HeadraceError
from headrace.compare.intervals import centre, paired_interval
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.diagnose.whatif import in_words
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run

QUICK_CHANGES = 2
#: What is done of each change.
STAGES = ("record", "predict", "measure")
FROZEN, ROWS, LEDGER = "frozen.jsonl", "measured.jsonl", "ledger.sqlite"

#: Recordings of a training at most, until the unchanged one is as fast behind it.
_RECORDINGS = 3
#: Where it is faster or slower by more, the cores have changed.
_OTHER_RATE = 0.1


class Started(Protocol):
    """A training that was started, as `whatif_jobs.Training`."""

    def __enter__(self) -> Started: ...

    def __exit__(self, *_: object) -> object: ...

    def rate(self, seconds: float) -> float:
        """Go on for so long, and return the samples per second of that."""
        ...


#: Starts a training, recorded into a folder or not.
Start = Callable[[Job, Path | None], Started]


@dataclass(frozen=True)
class Amount:
    """How long is measured."""

    profile: float = 5.0
    """Seconds of the profile of a training."""
    block: float = 0.4
    """Seconds for which each of both trainings goes on at a time."""
    blocks: int = 6
    """Of a changed training that count, where there are as many; twice as many are tried at most."""


USUAL, QUICK = Amount(), Amount(3.0, 0.4, 2)
#: Others had the cores where the unchanged training was slower than in its best quarter by more than this.
_DISTURBED = 1 / 12
#: Where fewer blocks were undisturbed, nothing says what is usual, and all count.
_FEWEST = 3


@dataclass
class Runner:
    """Predicts and measures, and keeps what came of it in a folder, from which it goes on."""

    folder: Path
    start: Start
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
            left = [pair for pair in zip(what_ifs, frozen, strict=False) if pair[1].says not in done]
            if not left:
                return
            for what_if, row in left:
                if time.monotonic() >= self.until:
                    return
                found = row if row.predicted is None else self._measure(ledger, what_if, row)
                self.rows.append(found)
                append_row(self.folder / ROWS, found)
                _say(line_of(found))

    def _record(self, name: str) -> None:
        """Record a training, unless that was done before; one that was killed half-way is recorded again."""
        file = self._rate_file(name)
        if file.exists():
            return
        for _ in range(_RECORDINGS):
            with self.start(JOBS[name], self.folder / name) as recorded:
                rate = recorded.rate(self.amount.profile)
            with self.start(JOBS[name], None) as unchanged:
                again = statistics.median(unchanged.rate(self.amount.block) for _ in range(3))
            if abs(again / rate - 1) <= _OTHER_RATE:
                break
        file.write_bytes(msgspec.json.encode(rate))

    def _rate_file(self, name: str) -> Path:
        """Of a recording: its samples per second."""
        return self.folder / f"{name}.rate.json"

    def _freeze(self, ledger: Ledger, name: str, what_ifs: Sequence[WhatIf]) -> list[Row]:
        replay = replay_of(self.folder / name)
        rows = [predict_row(replay, name, one, ledger) for one in what_ifs]
        for row in rows:
            append_row(self.folder / FROZEN, row)
        return rows

    def _measure(self, ledger: Ledger, what_if: WhatIf, row: Row) -> Row:
        began, seconds = time.time(), self.amount.block
        recorded = msgspec.json.decode(self._rate_file(row.pipeline).read_bytes(), type=float)
        try:
            # Both anew, so that neither has been at it for longer: processes that go on may become faster.
            with (
                self.start(JOBS[row.pipeline], None) as unchanged,
                self.start(what_if.make(JOBS[row.pipeline]), None) as changed,
                measure.Window() as window,
            ):
                rates, after = run_blocks(unchanged, changed, self.amount)
        except RuntimeError as error:
            return msgspec.structs.replace(row, failed=str(error))
        kept = undisturbed(rates)
        if len(kept) < _FEWEST:
            kept = list(range(len(after)))
        beside = [math.sqrt(rates[place] * rates[place + 1]) for place in kept]
        ratio = ratio_of(beside, [after[place] for place in kept])
        ledger.write_measurement(row.id, ratio, f"{len(kept)} interleaved blocks of {seconds:g} s", measured_at=began)
        return msgspec.structs.replace(
            row,
            measured=ratio,
            before=tuple(rates),
            after=tuple(after),
            left_out=len(after) - len(kept),
            other_cores=window.foreign_cores,
            base_speed=statistics.median(beside) / recorded,
        )


def predict_row(replay: TrainingReplay | HeadraceError, name: str, what_if: WhatIf, ledger: Ledger | None) -> Row:
    """Return what is predicted from a recorded training, written to the ledger if there is one; or why nothing is."""
    row = Row(pipeline=name, says=in_words(what_if.change), change=what_if.change)
    if isinstance(replay, HeadraceError):
        return msgspec.structs.replace(row, refused=str(replay))
    try:
        document = replay.predict(what_if.change)
    except HeadraceError as error:
        return msgspec.structs.replace(row, refused=str(error))
    hardware = replay.run.info.hardware
    id_ = "" if ledger is None else ledger.write_prediction(document, hardware=hardware)
    return msgspec.structs.replace(
        row, id=id_, predicted=document.throughput.ratio, bounds=document.bound_ratio, naive=document.naive_ratio
    )


def replay_of(run: Path) -> TrainingReplay | HeadraceError:
    """Return a recorded training that can be simulated, or why it cannot."""
    try:
        return TrainingReplay(read_run(run))
    except HeadraceError as error:
        return error


def rescore(folder: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Predict again what was measured in a folder, and return the benchmark's object."""
    rows = [row for row in read_rows(folder / ROWS) if not only or row.pipeline in only]
    replays = {name: replay_of(folder / name) for name in dict.fromkeys(row.pipeline for row in rows)}
    found = []
    for row in rows:
        what_if = next(one for one in WHAT_IFS[row.pipeline] if one.change == row.change)
        again = predict_row(replays[row.pipeline], row.pipeline, what_if, None)
        found.append(
            msgspec.structs.replace(
                row, predicted=again.predicted, refused=again.refused, bounds=again.bounds, naive=again.naive
            )
        )
        _say(line_of(found[-1]))
    return _result(found, len(rows), USUAL)


def run_blocks(unchanged: Started, changed: Started, amount: Amount) -> tuple[list[float], list[float]]:
    """Return the rates of the unchanged training, and between each two of them that of the changed one."""
    rates, after = [unchanged.rate(amount.block)], list[float]()
    while len(after) < 2 * amount.blocks and len(undisturbed(rates)) < amount.blocks:
        after.append(changed.rate(amount.block))
        rates.append(unchanged.rate(amount.block))
    return rates, after


def undisturbed(rates: Sequence[float]) -> list[int]:
    """Return which blocks of a changed training count: block i lies between `rates[i]` and `rates[i + 1]` of the unchanged."""
    least = float(np.percentile(rates, 75)) * (1 - _DISTURBED)
    return [place for place, beside in enumerate(itertools.pairwise(rates)) if min(beside) >= least]


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the centre of the paired ratios with its 95 % interval; of too few pairs, with the least and the greatest."""
    logs = [math.log(second / first) for first, second in zip(before, after, strict=True)]
    mid, interval = centre(logs), paired_interval(logs)
    low, high = (min(*logs, mid), max(*logs, mid)) if interval is None else (interval.low, interval.high)
    return Estimate(math.exp(low), math.exp(mid), math.exp(high))


def noise_of(rows: Sequence[Row]) -> float | None:
    """Return how far the interval of a measured change reaches, of the median change; None without any."""
    found = [max(one.high / one.mid, one.mid / one.low) - 1 for row in rows if (one := row.measured) is not None]
    return statistics.median(found) if found else None


def _result(rows: Sequence[Row], wanted: int, amount: Amount) -> dict[str, Any]:
    return {
        **summarize(rows),
        "noise": noise_of(rows),
        "wanted": wanted,
        "seconds": (amount.profile, amount.block),
        "blocks": amount.blocks,
        "left_out": (sum(row.left_out for row in rows), sum(len(row.after) for row in rows)),
        "cases": [msgspec.to_builtins(row) for row in rows],
    }


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
    start: Start,
    *,
    amount: Amount = USUAL,
    stage: str = STAGES[-1],
) -> dict[str, Any]:
    """Go on with the changes that are missing in a folder, and return the benchmark's object.

    Args:
        folder: Of profiles, ledger and rows; made if it is not there.
        chosen: {job: its changes}.
        minutes: After which no measurement begins.
        start: Starts a training.
        amount: How long is measured.
        stage: The last of `STAGES` that is done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(folder, start, time.monotonic() + 60 * minutes, read_rows(folder / ROWS), amount, stage)
    for name, what_ifs in chosen.items():
        if time.monotonic() < runner.until:
            runner.run(name, what_ifs)
    rows = [row for row in runner.rows if row.pipeline in chosen]
    return _result(rows, sum(map(len, chosen.values())), amount)


def run(*, quick: bool) -> dict[str, Any]:
    """Return how far off predictions are, and how often the interval covers what was measured.

    Args:
        quick: Two changes of each training, in shorter runs, until a minute has passed.
    """
    from benchmarks.train.whatif_jobs import Training

    chosen = {name: what_ifs[: QUICK_CHANGES if quick else None] for name, what_ifs in WHAT_IFS.items()}
    with tempfile.TemporaryDirectory(prefix="train-whatif-") as scratch:
        return measure_all(Path(scratch), chosen, 0.9 if quick else 25.0, Training, amount=QUICK if quick else USUAL)


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    rows = [msgspec.convert(case, Row) for case in result["cases"]]
    lines = ["# How far off predictions for trainings are", ""]
    profile, block = result["seconds"]
    inside = "-" if result["coverage"] is None else f"{result['coverage']:.0%}"
    left_out, tried = result["left_out"]
    introduction = (
        f"{result['n']} of {result['wanted']} changes of {len(result['pipelines'])} trainings, each predicted from one profile "
        f"of {profile:g} s and frozen to a ledger before it was made; {result['blocks']} blocks of {block:g} s each, between "
        f"blocks of the unchanged one ({left_out} of {tried} left out, because the unchanged one was slower beside them); one "
        f"PyTorch thread; {inside} were measured within the predicted interval."
    )
    if result["noise"] is not None:
        introduction += (
            f" A measured ratio is known to {result['noise']:.1%} (the median of changes), no prediction better."
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
    lines += [
        "",
        "Brackets: the interval predicted, and that of the pairs. Speed: the unchanged training over the recorded one.",
    ]
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
    others = ["-" if one is None else f"{one:.2f}" for one in (row.other_cores, row.base_speed)]
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
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no measurement after so long (default: 25)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep everything here, and go on from what is there"
    )
    parser.add_argument("--only", default="", metavar="JOBS", help=f"some of {','.join(JOBS)}")
    parser.add_argument("--most", type=int, metavar="N", help="no more than N changes of each job")
    parser.add_argument("--quick", action="store_true", help="two changes of each job, in shorter runs")
    parser.add_argument(
        "--stage", choices=STAGES, default=STAGES[-1], help="stop after recording, or after predicting (with --keep)"
    )
    parser.add_argument("--rescore", type=Path, metavar="FOLDER", help="predict again from what --keep left")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    arguments = parser.parse_args()
    arguments.only = [name for name in arguments.only.split(",") if name]
    if unknown := set(arguments.only) - set(JOBS):
        parser.error(f"--only: no job {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    if arguments.rescore and (arguments.write or arguments.keep or arguments.quick):
        parser.error("--rescore goes with --only and --json alone: what is predicted after measuring is no result")
    return arguments


def main() -> int:
    """Run the benchmark from the command line."""
    from benchmarks.train.whatif_jobs import Training

    arguments = _arguments()
    most = arguments.most or (QUICK_CHANGES if arguments.quick else None)
    chosen = {name: WHAT_IFS[name][:most] for name in arguments.only or WHAT_IFS}
    amount = QUICK if arguments.quick else USUAL
    with tempfile.TemporaryDirectory(prefix="train-whatif-") as scratch:
        folder = arguments.keep or Path(scratch)
        result = (
            rescore(arguments.rescore, arguments.only)
            if arguments.rescore
            else measure_all(folder, chosen, arguments.minutes, Training, amount=amount, stage=arguments.stage)
        )
    if arguments.stage != STAGES[-1]:
        return 0
    print(json.dumps(result) if arguments.json else as_text(result))
    if arguments.write:
        _say(f"written: {measure.write_result('train_whatif', as_text(result), result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
