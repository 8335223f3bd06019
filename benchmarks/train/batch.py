"""Batch size, accumulation and checkpointing: what survives, what is named, and how far off predictions are.

`kills`: trials that take more memory than they may are killed, and the process that tries them lives on. `accumulation`: six
mistakes that were planted are named, right code is not. `checkpointing`: memory and time that were predicted beside those of
the choices that were run. `search`: samples per second of the size that was found, over those of the best of all sizes, in
rounds that run every size. Times want a quiet machine.

    python -m benchmarks.train.batch [kills] [accumulation] [checkpointing] [search] [--quick] [--json] [--write]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.train import batch_recipes
from headrace.runs.formats.train_check import CheckpointCheck
from headrace.train import Recipe
from headrace.train.search.accumulation import check_accumulation
from headrace.train.search.batch_search import SearchSettings, search_batch_size
from headrace.train.search.checkpointing import check_checkpointing
from headrace.train.search.children import run_child
from headrace.train.search.step_trial import run_steps

_RECIPES = Path(batch_recipes.__file__)
#: Of a trial: less than the hungry training takes, and more than PyTorch does.
_LIMIT_BYTES = 700 * 10**6
#: Steps of a size are timed so long, in a search and in the rounds of all sizes.
_SIZE_SECONDS = 0.2


#: {part: what runs it}; the short way, two kills and checkpoints of one model.
PARTS: dict[str, Callable[[bool], Any]] = {
    "kills": lambda quick: count_kills(2 if quick else 50),
    "accumulation": lambda _: name_planted(),
    "search": lambda quick: compare_searches(batch_recipes.SEARCHED[: 1 if quick else None]),
    "checkpointing": lambda quick: compare_checkpoints(batch_recipes.CHECKPOINTED[: 1 if quick else None]),
}


def run(quick: bool) -> dict[str, Any]:
    """Return what came of all three."""
    return {**{name: measure_part(quick) for name, measure_part in PARTS.items()}, "quick": quick}


def count_kills(number: int) -> dict[str, Any]:
    """Try a batch that does not fit so many times; return how many trials were killed for it, and survived here."""
    killed, others = 0, []
    for _ in range(number):
        answer = run_child("steps", f"{_RECIPES}:make_hungry", limit_bytes=_LIMIT_BYTES, batch_size=64, seconds=0.01)
        if answer.shortage.startswith("it took "):
            killed += 1
        else:
            others.append(answer.shortage or "it finished")
    return {"tried": number, "killed": killed, "others": others}


def name_planted(right: Sequence[Callable[[], Any]] = batch_recipes.RIGHT) -> dict[str, Any]:
    """Return what was named where a mistake was planted, and in trainings that are right."""
    torch.manual_seed(0)
    named = {mistake: _names(make()) for mistake, make in batch_recipes.PLANTED.items()}
    return {
        "planted": len(named),
        "named": sum(names == [mistake] for mistake, names in named.items()),
        "missed": {mistake: names for mistake, names in named.items() if names != [mistake]},
        "right": len(right),
        "accused": [names for names in map(_names, (make() for make in right)) if names],
    }


def _names(recipe: Any) -> list[str]:
    found = check_accumulation(recipe, micro_batches=4, micro_batch_size=4, with_ddp=True)
    return [finding.name for finding in found["findings"]]


def compare_checkpoints(makers: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return for each choice of each training how far off memory and time were, as shares of what was measured."""
    return [row for maker in makers for row in _rows(maker, check_checkpointing(f"{_RECIPES}:{maker}", 0))]


def _rows(maker: str, found: CheckpointCheck) -> list[dict[str, Any]]:
    return [
        {
            "training": maker,
            "units": list(choice.units),
            "saved": 1 - choice.activation_bytes / found.activation_bytes,
            "peak_bytes": choice.peak_bytes,
            "peak_error": choice.predicted_peak_bytes / choice.peak_bytes - 1,
            "step_seconds": choice.step_seconds,
            "time_error": choice.predicted_step_seconds / choice.step_seconds - 1,
            "slower": choice.step_seconds / found.step_seconds - 1,
            "core_wait": choice.core_wait,
        }
        for choice in found.choices
        if choice.peak_bytes and choice.step_seconds
    ]


def compare_searches(makers: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each training how many sizes were run, and how fast the one that was found is beside the best of all."""
    torch.set_num_threads(1)
    return [_search(maker) for maker in makers]


def _search(maker: str) -> dict[str, Any]:
    found = search_batch_size(f"{_RECIPES}:{maker}", SearchSettings(seconds=_SIZE_SECONDS))
    recipe: Recipe = getattr(batch_recipes, maker)()
    sizes = range(1, len(recipe.data) + 1)
    rounds = [
        [
            size / run_steps(recipe, batch_size=size, seconds=_SIZE_SECONDS, base_bytes=0)["step_seconds"]
            for size in order
        ]
        for order in (sizes, sizes[::-1])
    ]
    rates = dict(zip(sizes, map(math.sqrt, map(math.prod, zip(rounds[0], rounds[1][::-1], strict=True))), strict=True))
    best = max(rates, key=rates.__getitem__)
    assert found.batch_size is not None
    return {
        "training": maker,
        "sizes": len(rates),
        "runs": len(found.trials),
        "found": found.batch_size,
        "best": best,
        "of_best": rates[found.batch_size] / rates[best],
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown; parts may be missing."""
    lines = ["# Batch size, accumulation and checkpointing", ""]
    if (kills := result.get("kills")) is not None:
        lines.append(
            f"Trials above their limit of memory: {kills['killed']} of {kills['tried']} were killed, and the search lived on."
        )
    if (planted := result.get("accumulation")) is not None:
        lines += [
            f"Mistakes in accumulating that were planted: {planted['named']} of {planted['planted']} were named, and nothing",
            "else.",
            f"Trainings without one: {planted['right']}, of them accused: {len(planted['accused'])}.",
        ]
    if (rows := result.get("checkpointing")) is not None:
        lines += [
            "",
            "| training | checkpointed | activations freed | peak off by | step off by | slower by | core waited for |",
            "|---|---|---|---|---|---|---|",
            *(_line(row) for row in rows),
        ]
    if (searches := result.get("search")) is not None:
        lines += [
            "",
            "| training | sizes | run by the search | found | best | samples/s of the best |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['training'].removeprefix('make_')} | {row['sizes']} | {row['runs']} ({row['runs'] / row['sizes']:.0%}) | "
            f"{row['found']} | {row['best']} | {row['of_best']:.1%} |"
            for row in searches
        ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    wait = "-" if row["core_wait"] is None else f"{row['core_wait']:.0%}"
    name, parts = row["training"].removeprefix("make_"), f"{len(row['units'])} parts"
    errors = f"{row['peak_error']:+.1%} | {row['time_error']:+.1%}"
    return f"| {name} | {parts} | {row['saved']:.0%} | {errors} | {row['slower']:+.0%} | {wait} |"


if __name__ == "__main__":
    measure.run_parts("train.batch", __doc__.splitlines()[0], PARTS, as_text)
