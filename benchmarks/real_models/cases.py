"""What the benchmark knows of a package: its pipeline, its models, its files, and how its own code answers."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: The modules beside this one, each with a `CASE`.
NAMES = ("boxes", "lines", "types", "speech", "turned", "captchas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One package."""

    models: Mapping[str, Path]
    """{name: file}; the first is the one that variants are tried of."""
    make_items: Callable[[Path, int], None]
    """(folder, count) writes files."""
    own: Callable[[Sequence[Path]], dict[str, Any]]
    """{file name: answer} by the package's own code."""
    same: Callable[[Any, Any], bool]
    """(ours, theirs) whether two answers, as JSON has them, are the same."""
    inputs: Callable[[Sequence[Path]], np.ndarray] | None
    """(items, ...) as the first model takes them; None: it takes several."""
    batch_axis: int = 0
    """Of the first model's output."""


def load(name: str) -> Case:
    """Return a case; its module imports the package, so this works in its environment alone."""
    case: Case = importlib.import_module(f"benchmarks.real_models.{name}").CASE
    return case
