"""Damaged HTTP requests of `tools/fuzz_http.py`: read beside aiohttp's strict parser, and sent to a front that runs."""

from __future__ import annotations

import collections
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

#: Refusals with 501 and 505: what the front does not speak is no error of its own.
_NOT_SPOKEN = ("http.coding", "http.version")
_TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz_http.py"


def measure_mutated(count: int, over_sockets: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Return how many differences there are, of which kinds, and what a front did with those that were sent to it.

    Args:
        count: Cases that both read.
        over_sockets: Cases that are sent, each over a connection of its own; after each hundred a good request is answered, or
            this raises RuntimeError.
        say: Told how it goes.
    """
    fuzz = _fuzz()
    kinds = collections.Counter(found for _, _, found in fuzz.compare(range(count)))
    known = fuzz.reviewed()
    unreviewed = {kind: number for kind, number in kinds.items() if kind not in known}
    say(f"{count:,} damaged requests: {kinds.total():,} differences of {len(kinds)} kinds, not reviewed: {unreviewed}")
    answers = fuzz.send(range(over_sockets))
    return {
        "cases": count,
        "differences": kinds.total(),
        "kinds": len(kinds),
        "unreviewed": unreviewed,
        "over_sockets": over_sockets,
        "good_between": -(-over_sockets // fuzz.GOOD_EACH),
        "internal_errors": answers.get("5xx", 0) - sum(answers.get(code, 0) for code in _NOT_SPOKEN),
    }


def _fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location(_TOOL.stem, _TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_TOOL.stem] = module  # its tuples look for their module
    spec.loader.exec_module(module)
    return module
