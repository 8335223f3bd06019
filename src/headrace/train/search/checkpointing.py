"""What activation checkpointing saves and costs: counted, predicted, and the best choices run. Each in a child process."""

from __future__ import annotations

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
    before = ask_child("steps", recipe, seed, environment=ALLOCATOR, batch_size=size, seconds=_SECONDS)
    choices = front(units, frozenset(counted["rest"]), sizes)
    nothing = choices[0]
    ran = tuple(_run(recipe, seed, size, before, nothing, choice) for choice in pick(choices))
    return CheckpointCheck(
        batch_size=size,
        activation_bytes=nothing.activation_bytes,
        step_seconds=before["step_seconds"],
        peak_bytes=before["peak_bytes"],
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
        proposed=propose(ran, nothing.activation_bytes, before["step_seconds"]),
    )


def _run(
    recipe: str, seed: int, size: int, before: dict[str, Any], nothing: Choice, choice: Choice
) -> CheckpointChoice:
    names = list(choice.names)
    answer = run_child(
        "steps", recipe, seed=seed, environment=ALLOCATOR, batch_size=size, seconds=_SECONDS, checkpointed=names
    )
    found = answer.results[0] if answer.results else {}
    return CheckpointChoice(
        units=choice.names,
        activation_bytes=choice.activation_bytes,
        predicted_step_seconds=before["step_seconds"] + choice.lost_seconds,
        predicted_peak_bytes=before["peak_bytes"] - nothing.activation_bytes + choice.activation_bytes,
        step_seconds=found.get("step_seconds"),
        peak_bytes=found.get("peak_bytes"),
        core_wait=found.get("core_wait"),
    )


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
