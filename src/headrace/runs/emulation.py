"""Which engines of a run were emulated: their models' variants state what a call takes, because nobody measured it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def emulated_engines(variants: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the engines whose times were made up.

    Args:
        variants: Models as a run opened them (`RunInfo.variants`).
    """
    return frozenset(str(variant.get("engine")) for variant in variants if "launch_seconds" in variant)
