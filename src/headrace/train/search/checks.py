"""Runs the checks of a training, each in a child process, and makes the document of what they found."""

from __future__ import annotations

from collections.abc import Collection

from headrace import __version__
from headrace.base.documents import convert_document
from headrace.runs.formats.train_check import AccumulationCheck, PrecisionCheck, TrainCheckDocument
from headrace.train.search.checkpointing import check_checkpointing
from headrace.train.search.children import ask_child

#: What can be checked.
CHECKS = ("accumulation", "precision", "checkpointing")
#: Under autocast, each in a process of its own.
DTYPES = ("bfloat16", "float16")
#: Samples of the batch that is computed layer by layer: both outputs of each layer are in memory.
MOST_SAMPLES = 16


def check_training(
    recipe: str,
    *,
    checks: Collection[str] = CHECKS,
    micro_batches: int = 4,
    micro_batch_size: int | None = None,
    with_ddp: bool = False,
    seed: int = 0,
) -> TrainCheckDocument:
    """Check a training.

    Args:
        recipe: FILE.py:make.
        checks: Of `CHECKS`.
        micro_batches: Parts of the large batch.
        micro_batch_size: Samples in each; None: those that make up the recipe's batch size.
        with_ddp: Whether to count exchanges under DistributedDataParallel.
        seed: Of the recipe's random numbers.

    Raises:
        SettingsError: If the recipe is none, or has too little data.
        TrainingFailed: If the user's code failed, or memory did not suffice.
    """
    accumulation, precision = None, []
    if "accumulation" in checks:
        parts = {"micro_batches": micro_batches, "micro_batch_size": micro_batch_size, "with_ddp": with_ddp}
        accumulation = convert_document(ask_child("accumulation", recipe, seed, **parts), AccumulationCheck)
    if "precision" in checks:
        for dtype in DTYPES:
            found = ask_child("precision", recipe, seed, dtype=dtype, most_samples=MOST_SAMPLES)
            precision.append(convert_document(found, PrecisionCheck))
    return TrainCheckDocument(
        recipe=recipe,
        headrace_version=__version__,
        accumulation=accumulation,
        precision=tuple(precision),
        checkpointing=check_checkpointing(recipe, seed) if "checkpointing" in checks else None,
    )
