"""What activation checkpointing saves and costs: counted, predicted, and the best choices run. Each in a child process.

The training without checkpoints runs between choices, too: a core is a fifth faster in some minutes than in others, so what a
choice takes is scaled by what its neighbours took.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from headrace.runs.formats.train_check import CheckpointCheck, CheckpointChoice, CheckpointUnit
from headrace.train.search.checkpoint_choices import Choice, Unit, front, pick
from headrace.train.search.children import ask_child, run_child

#: What a proposed choice frees of the activations, at least, and how much longer its step takes, at most.
FREED, SLOWER = 0.5, 1.33
#: The C library gives blocks of 1 MB up back when they are freed. By default that size grows with what is freed, to 32 MB:
#: smaller activations then stay in a heap with holes, and checkpoints may not lower resident memory at all.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
#: Steps of a choice are timed so long.
_SECONDS = 1.0


def check_checkpointing(recipe: str, seed: int) -> CheckpointCheck:
    """Count what is kept, and run the best choices.

    Args:
        recipe: FILE.py:make.
        seed: Of the recipe's random numbers.

    Raises:
        TrainingFailed: If the training without checkpoints does not finish.
    """
    counted = ask_child("activations", recipe, seed)
    units = [
        Unit(name, frozenset(saved), frozenset(taken), seconds) for name, _, saved, taken, seconds in counted["units"]
    ]
    sizes = dict(counted["sizes"])
    size = counted["batch_size"]

    def run_without() -> dict[str, Any]:
        return ask_child("steps", recipe, seed, environment=ALLOCATOR, batch_size=size, seconds=_SECONDS)

    before, answers = [run_without()], []
    choices = front(units, frozenset(counted["rest"]), sizes)
    picked = pick(choices)
    for choice in picked:
        answers.append(_run(recipe, seed, size, choice))
        before.append(run_without())
    nothing, peak = choices[0], before[0]["peak_bytes"]
    without = [one["step_seconds"] for one in before]
    usual = statistics.median(without)
    steps = at_usual_speed([found.get("step_seconds") for found in answers], without)
    ran = tuple(
        CheckpointChoice(
            units=choice.names,
            activation_bytes=choice.activation_bytes,
            predicted_step_seconds=usual + choice.lost_seconds,
            predicted_peak_bytes=peak - nothing.activation_bytes + choice.activation_bytes,
            step_seconds=seconds,
            peak_bytes=found.get("peak_bytes"),
            core_wait=found.get("core_wait"),
        )
        for choice, found, seconds in zip(picked, answers, steps, strict=True)
    )
    return CheckpointCheck(
        batch_size=size,
        activation_bytes=nothing.activation_bytes,
        step_seconds=usual,
        peak_bytes=peak,
        units=tuple(
            CheckpointUnit(
                name=name,
                unit_class=kind,
                saved_bytes=sum(sizes[key] for key in set(saved) - set(taken)),
                forward_seconds=seconds,
            )
            for name, kind, saved, taken, seconds in counted["units"]
        ),
        front_size=len(choices),
        choices=ran,
        proposed=propose(ran, nothing.activation_bytes, usual),
    )


def _run(recipe: str, seed: int, size: int, choice: Choice) -> dict[str, Any]:
    """Return what the training takes with a choice; empty: it did not finish."""
    names = list(choice.names)
    answer = run_child(
        "steps", recipe, seed=seed, environment=ALLOCATOR, batch_size=size, seconds=_SECONDS, checkpointed=names
    )
    return answer.results[0] if answer.results else {}


def at_usual_speed(steps: Sequence[float | None], without: Sequence[float]) -> list[float | None]:
    """Return what steps would have taken had the core always been as fast as it was in the middle.

    Args:
        steps: Of each choice, in seconds; None: it did not finish.
        without: Of the training without checkpoints, before each choice and after the last.
    """
    beside = [math.sqrt(before * after) for before, after in itertools.pairwise(without)]
    usual = statistics.median(without)
    return [None if took is None else took * usual / near for took, near in zip(steps, beside, strict=True)]


def propose(choices: Sequence[CheckpointChoice], activation_bytes: int, step_seconds: float) -> tuple[str, ...]:
    """Return the parts of the choice that keeps least, of those that free half for at most a third more time, as run.

    Args:
        choices: That were run.
        activation_bytes: Kept without checkpoints.
        step_seconds: Without checkpoints.
    """
    good = [
        choice
        for choice in choices
        if choice.activation_bytes <= (1 - FREED) * activation_bytes
        and choice.step_seconds is not None
        and choice.step_seconds <= SLOWER * step_seconds
    ]
    return min(good, key=lambda choice: choice.activation_bytes).units if good else ()
