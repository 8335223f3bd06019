"""Two trainings, each run to its end in turn with the other: whether B learns from more samples in a second.

How this works: a block is a whole run of a program, recorded as `headrace train` does; its value is the samples per second of
all its processes, from the end of their first step on. So starting a program is in no figure, and the turns of its epochs are.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import HeadraceError, Interrupted, RunFolderError, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.settings import check
from headrace.compare.comparison import Metric, Question, answer, make_document
from headrace.compare.intervals import centre, usual_spread
from headrace.compare.sequential import doubling, once
from headrace.compare.turns import Turns, runs_backwards, take_turns
from headrace.compare.words import MOST_PAIRS
from headrace.diagnose.training.rate import find_rate
from headrace.diagnose.training.simulation_measured import loader_settings
from headrace.diagnose.training.simulation_needs import standing_for
from headrace.diagnose.training.steps import RankSteps, read_steps
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Phase
from headrace.train.recording import find_program, record_program

#: Fewer steps of a run tell no rate.
LEAST_STEPS = 8
#: Pairs that differ by more than this from their middle are worth a warning, as for pipelines.
_NOISY = 0.10
_SAMPLES = Metric("throughput", "samples/s", True)
_STEPS = Metric("throughput", "steps/s", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    pairs: int = 6
    """Pairs of runs: 6 are the fewest that give an interval; with `until_sure` those before the first look."""
    until_sure: bool = False
    """Go on until the answer is sure or the time is over."""
    time_limit_seconds: float = 3600.0
    """No new pair begins after this time; only with `until_sure`."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(1 <= self.pairs <= MOST_PAIRS, "--blocks", self.pairs, f"1 to {MOST_PAIRS} pairs")
        check(self.time_limit_seconds > 0, "--time-limit", self.time_limit_seconds, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One run of a program."""

    rate: float
    is_of_samples: bool
    """False: how many samples a step has is not known, and the rate is of steps."""
    phases: dict[str, float]
    """{phase: mean seconds of a step}, of the first rank."""
    settings: dict[str, Any]
    """Of the loader."""


def compare_trainings(
    a: str,
    b: str,
    *,
    question: Question | None = None,
    amount: Amount | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> ComparisonDocument:
    """Run two trainings in turn and return whether B is really faster.

    Args:
        a: The program before and its arguments, as a shell would have them: `train.py --workers 0`.
        b: The one after.
        question: What is wanted; its metric is the rate whatever it says.
        amount: How many runs.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If a program cannot be started, fails, or makes too few steps.
        Interrupted: If it was interrupted before a pair was measured.
    """
    question, amount = dataclasses.replace(question or Question(), metric=_SAMPLES), amount or Amount()
    for text in (a, b):
        find_program(_words(text))
    started = time.time()
    looks = doubling(amount.pairs) if amount.until_sure else once(amount.pairs)
    deadline = time.monotonic() + amount.time_limit_seconds

    def is_sure(turns: Turns[_Block]) -> bool:
        return answer(_values(turns), question, turns.alpha)[1].is_sure(question.goal(question.used_margin))

    def report(turns: Turns[_Block]) -> None:
        block_a, block_b = turns.pairs("A", "B")[-1]
        say(
            f"pair {len(turns.rounds)}: A {block_a.rate:.4g}/s, B {block_b.rate:.4g}/s, x{block_b.rate / block_a.rate:.3g}"
        )

    turns = take_turns(
        {"A": lambda: _run_once(a), "B": lambda: _run_once(b)},
        looks,
        is_sure=is_sure,
        may_go_on=lambda: not amount.until_sure or time.monotonic() < deadline,
        after_round=report,
    )
    if not turns.pairs("A", "B"):
        raise Interrupted("interrupted before both trainings were measured once; nothing is known")
    return _make_document((a, b), turns, question, started)


def _words(text: str) -> list[str]:
    """Return the words of a command as a shell would; raises SettingsError if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(
            f"{text} is no command: {error}; expected such as \"train.py --name 'two words'\""
        ) from None


def _run_once(command: str) -> _Block:
    """Run a program to its end and return what its recording says.

    Raises:
        Interrupted: If the user stopped it.
        HeadraceError: If it failed, or made too few steps.
    """
    argv, name = find_program(_words(command))
    with tempfile.TemporaryDirectory(prefix="headrace-compare-") as scratch:
        # What it prints is not the answer: it goes where progress goes.
        recording = record_program(argv, name, Path(scratch) / "run", stdout=2)
        # Also a script that catches Ctrl-C and ends well: its steps are fewer, and nobody wants the rest.
        if recording.ending.was_asked or recording.ending.status == "interrupted":
            raise Interrupted(f"{command} was interrupted")
        if recording.ending.exit_status:
            raise HeadraceError(f"{command}: {recording.ending.reason}; a training that fails cannot be compared")
        if recording.problem is not None:
            raise RunFolderError(f"{command}: {recording.problem}")
        return _read_block(command, recording.folder)


def _read_block(command: str, folder: Path) -> _Block:
    run = read_run(folder)
    ranks = read_steps(run)
    fewest = min((len(rank.steps) for rank in ranks), default=0)
    if fewest < LEAST_STEPS:
        raise HeadraceError(
            f"{command}: {pluralize(fewest, 'step')} recorded; a rate needs {LEAST_STEPS} steps of each process; train for "
            "longer"
        )
    return _Block(
        rate=sum(find_rate(rank) for rank in ranks),
        is_of_samples=all(bool(rank.steps.samples.any()) for rank in ranks),
        phases=_mean_phases(ranks[0]),
        settings=loader_settings(run),
    )


def _mean_phases(rank: RankSteps) -> dict[str, float]:
    whole = standing_for(rank.steps)[1:]
    return {
        str(phase): float(rank.steps.phases[phase].wall[whole].mean()) for phase in Phase if phase in rank.steps.phases
    }


def _values(turns: Turns[_Block]) -> list[tuple[float, float]]:
    return [(one.rate, other.rate) for one, other in turns.pairs("A", "B")]


def _make_document(
    names: tuple[str, str], turns: Turns[_Block], question: Question, started: float
) -> ComparisonDocument:
    values, pairs = _values(turns), turns.pairs("A", "B")
    of_samples = {block.is_of_samples for pair in pairs for block in pair}
    if len(of_samples) > 1:
        raise HeadraceError(
            f"of one of {names[0]} and {names[1]} it is not known how many samples a step has: rates of samples and of steps "
            "cannot be compared; load with a torch.utils.data.DataLoader in both"
        )
    if of_samples == {False}:
        question = dataclasses.replace(question, metric=_STEPS)
    interval, judgement = answer(values, question, turns.alpha)
    differences = [math.log(b / a) for a, b in values]
    return make_document(
        question,
        (_side(names[0], [one for one, _ in pairs]), _side(names[1], [one for _, one in pairs])),
        interval,
        judgement,
        mid=centre(differences),
        delivered=(1.0, 1.0),  # a run that fails ends the comparison
        paired=True,
        num_pairs=len(values),
        margin=question.used_margin,
        interrupted=turns.interrupted,
        environment={
            "started_unix_seconds": started,
            "order": "".join("BA" if runs_backwards(number) else "AB" for number in range(len(pairs))),
            "confidence": 1 - turns.alpha,
        },
        warnings=_warn_of_noise(differences),
    )


def _side(name: str, blocks: Sequence[_Block]) -> Side:
    phases = dict.fromkeys(phase for block in blocks for phase in block.phases)
    return Side(
        name=name,
        pipeline=find_program(_words(name))[1],
        plan_id="",
        plan=blocks[0].settings,
        values=tuple(block.rate for block in blocks),
        median=float(np.median([block.rate for block in blocks])),
        stages={phase: float(np.mean([block.phases.get(phase, 0.0) for block in blocks])) for phase in phases},
    )


def _warn_of_noise(differences: Sequence[float]) -> list[str]:
    spread = usual_spread(differences)
    return (
        []
        if spread <= _NOISY
        else [f"pairs differ by {spread:.0%} for no known reason: quieten the machine, or train for longer"]
    )
