"""Whether headrace is right about pipelines that nobody has seen: drawn from seeds, run, diagnosed, predicted, then measured.

    python -m benchmarks.truth --quick                      # stored recordings, judged by today's rules; a minute
    python -m benchmarks.truth --full FOLDER                # seeds drawn from the commit's hash; hours; Ctrl-C, and it goes on
    python -m benchmarks.truth --full FOLDER --cases 60     # so many, or --minutes 45
    python -m benchmarks.truth --full FOLDER --healthy      # healthy pipelines alone: is one called faulty?
    python -m benchmarks.truth --seeds 0-39 --full FOLDER   # development: seeds below 1,000
    python -m benchmarks.truth --rescore FOLDER             # what a folder holds, by today's rules of what is right
    python -m benchmarks.truth --write SEED FOLDER          # a case as files that a person can run

How this works: see `benchmarks/truth/__init__.py`. Verdicts and predictions are frozen to a file before the truth of a case is
measured. A pilot makes a dose stronger that would cost nothing; `--write SEED FOLDER --of RUN` writes a case as it ran in RUN.
A case takes a minute or less; a result says how long each part took. Have nothing else run, or run it with `chrt -r 10`,
or with `--quiet 600`, which waits before each case.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import measure
from benchmarks.truth import program
from benchmarks.truth.grammar import Case, draw
from benchmarks.truth.measuring import Length, commit, run_case
from benchmarks.truth.recordings import diagnose_again, store
from benchmarks.truth.rows import DISTURBING_CORES, Row, append, read_rows
from benchmarks.truth.scores import as_text, score, summarize
from headrace.base.errors import Interrupted, SettingsError

ROWS = "rows.jsonl"
#: Seeds below are for development: nothing that is reported comes from them.
FIRST_REPORTED = 1000
_WRITTEN_SECONDS = 10.0


def fresh_seeds(commit_hash: str) -> Iterator[int]:
    """Give seeds that nobody has tuned for: they follow from the commit that is judged."""
    numbers = random.Random(commit_hash)
    while True:
        yield numbers.randrange(FIRST_REPORTED, 1 << 31)


def run_all(
    seeds: Iterator[int],
    folder: Path,
    *,
    cases: int | None,
    minutes: float | None,
    keep: bool = False,
    patience_seconds: float = 0.0,
    experiment_seconds: float = 0.0,
) -> bool:
    """Run cases that the folder does not hold yet; return whether the user ended it.

    Args:
        seeds: Of the cases, in order.
        folder: Of rows, and of what is frozen.
        cases: Most cases that the folder is to hold.
        minutes: Begin none after so many.
        keep: Keep the run folders.
        patience_seconds: Wait so long at most before each case for other programs to be quiet.
        experiment_seconds: Of experiments with each running pipeline; 0: none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = {row.seed for row in read_rows(folder / ROWS)}
    began, length, now = time.monotonic(), Length(experiment_seconds=experiment_seconds), commit()
    for number, seed in enumerate(seeds):
        if (cases is not None and number >= cases) or (minutes is not None and time.monotonic() - began > 60 * minutes):
            return False
        if seed in done:
            continue
        try:
            if patience_seconds:
                measure.wait_quiet(DISTURBING_CORES, patience_seconds)
            row = msgspec.structs.replace(run_case(draw(seed), folder, length, keep=keep), headrace=now)
        except (KeyboardInterrupt, Interrupted):
            return True
        append(folder / ROWS, [row])
        say(f"[{number + 1}] {line_of(row)}")
    return False


def line_of(row: Row) -> str:
    """Return one line on one case."""
    one = score(row)
    first = row.said.first
    verdict = row.said.problem if first is None else f"{first.verdict}{f' at {first.stage}' if first.stage else ''}"
    gains = " ".join(f"{name}: x{truth.ratio:.2f}" for name, truth in row.truths.items())
    return (
        f"seed {row.seed} {' + '.join(row.faults) or 'healthy'}: {one.outcome}; said {verdict}; {gains}; {one.why} "
        f"({row.seconds:.0f} s, rivals {row.rivals:.2f}, others {row.foreign:.2f})"
    )


def case_of(seed: int, folder: Path | None) -> Case:
    """Return a case: as it ran in a folder of `--full`, or as it is drawn.

    Raises:
        SettingsError: If the folder holds no such case.
    """
    if folder is None:
        return draw(seed)
    for row in read_rows(folder / ROWS):
        if row.seed == seed:
            return row.case
    raise SettingsError(f"{folder / ROWS} holds no case of seed {seed}; leave out --of to write it as it is drawn")


def say(text: str) -> None:
    """Tell the progress."""
    print(text, file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="diagnose and predict stored recordings again, by today's rules"
    )
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="run cases; goes on with what the folder holds")
    parser.add_argument("--rescore", type=Path, metavar="FOLDER", help="judge what a folder holds again")
    parser.add_argument(
        "--store", type=Path, metavar="FOLDER", help="store what --full FOLDER --keep left, for --quick"
    )
    parser.add_argument("--write", nargs=2, metavar=("SEED", "FOLDER"), help="write a case as files to run")
    parser.add_argument("--of", type=Path, metavar="RUN", help="with --write: with the doses of the case in folder RUN")
    parser.add_argument("--cases", type=int, help="so many cases at most")
    parser.add_argument("--minutes", type=float, help="begin no case after so many minutes")
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="before each case wait so long for others to be quiet",
    )
    parser.add_argument(
        "--experiment",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="after each profile also experiment for so long",
    )
    parser.add_argument("--seeds", type=_seeds, help="these instead of fresh ones: 7 or 0-39 or 3,17")
    parser.add_argument("--healthy", action="store_true", help="of the seeds only those whose pipeline is healthy")
    parser.add_argument("--keep", action="store_true", help="keep the run folders below FOLDER/runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument(
        "--result", action="store_true", help="write a dated result to benchmarks/results; fresh seeds alone"
    )
    parsed = parser.parse_args(arguments)
    if sum(bool(one) for one in (parsed.quick, parsed.full, parsed.rescore, parsed.store, parsed.write)) != 1:
        parser.error("say one of --quick, --full FOLDER, --rescore FOLDER, --store FOLDER and --write SEED FOLDER")
    if parsed.of and not parsed.write:
        parser.error("--of goes with --write SEED FOLDER")
    if parsed.result and (parsed.quick or parsed.seeds):
        parser.error("--result goes with --full or --rescore of fresh seeds: what was developed with is no result")
    return parsed


def _seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _result(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.quick:
        return {**summarize(diagnose_again()), "quick": True, "interrupted": False}
    interrupted = False
    folder = arguments.full or arguments.rescore
    if arguments.full:
        seeds = iter(arguments.seeds) if arguments.seeds else fresh_seeds(commit())
        if arguments.healthy:  # four of five have a fault, and take longer
            seeds = (seed for seed in seeds if not draw(seed).planted)
        interrupted = run_all(
            seeds,
            folder,
            cases=arguments.cases,
            minutes=arguments.minutes,
            keep=arguments.keep,
            patience_seconds=arguments.quiet,
            experiment_seconds=arguments.experiment,
        )
    rows = read_rows(folder / ROWS)
    return {**summarize(rows), "quick": False, "interrupted": interrupted}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; 130 if it was interrupted."""
    parsed = _arguments(arguments)
    if parsed.write:
        seed, folder = parsed.write
        try:
            case = case_of(int(seed), parsed.of)
        except SettingsError as error:
            say(f"error: {error}")
            return 2
        print(program.write(case, Path(folder), _WRITTEN_SECONDS), end="")
        return 0
    if parsed.store:
        for row in read_rows(parsed.store / ROWS):
            if score(row).outcome != "not scored":
                print(store(row, parsed.store / "runs" / f"{row.seed}"))
        return 0
    result = _result(parsed)
    print(msgspec.json.encode(result).decode() if parsed.json else as_text(result))
    if parsed.result:
        say(f"written: {measure.write_result('truth', as_text(result), result)}")
    return 130 if result["interrupted"] else 0


if __name__ == "__main__":
    sys.exit(main())
