"""Marks and columns of the table of variants are explained beneath it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec

from headrace.cli.optimization_text import as_text

_FILE = Path(__file__).parents[1] / "report" / "variants_documents.py"


def _search() -> msgspec.Struct:
    spec = importlib.util.spec_from_file_location("variants_documents", _FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.full_search()  # type: ignore[no-any-return]


def test_every_mark_and_both_speeds_are_explained() -> None:
    """Of two speeds of one and the same layout it is said that they are of different minutes."""
    told = " ".join(as_text(_search(), None).split())  # type: ignore[arg-type]
    for expected in (
        "* the one to use", "+ on the front", "calls of 8 items one after the other",
        "over the model as given at 1 x 1 thread, batch 8", "the same thing in different minutes",
    ):  # fmt: skip
        assert expected in told


def test_speeds_are_over_what_the_plan_uses() -> None:
    """Where that is another variant than the model as given."""
    search = _search()
    used = msgspec.structs.replace(search, in_use=search.attempts[0])  # type: ignore[attr-defined]
    told = " ".join(as_text(used, None).split())  # type: ignore[arg-type]
    assert "one after the other, in turn with what the Plan uses" in told
    assert "its own layout over what the Plan uses at 1 x 1 thread, batch 8" in told


def test_nothing_is_explained_that_is_not_there() -> None:
    """Without layouts, a recommendation and a front there is one speed."""
    bare = msgspec.structs.replace(_search(), layout=None, laid_out=(), recommended=None, front=())
    told = " ".join(as_text(bare, None).split())  # type: ignore[arg-type]
    assert "times as fast: calls of 8 items" in told
    for absent in ("the one to use", "on the front", "times with it"):
        assert absent not in told
