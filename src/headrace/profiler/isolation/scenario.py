"""One variation of a pipeline, ready to be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.profiler.isolation.replay import Entry


class NotPossible(Exception):
    """A variation cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One variation, ready to be run any number of times."""

    name: str
    pipeline: Pipeline
    """Its source is not used."""
    plan: Plan
    entries: Sequence[Entry]
    says: str
    """What it means."""
    prepare: Callable[[], object] = lambda: None
    """Called before each run; may raise NotPossible."""
    before: Callable[[Entry], object] | None = None
    """Called with each job before it is given out."""
    check: Callable[[], object] = lambda: None
    """Called after each run; may raise NotPossible: the run does not count."""
    copies: bool = False
    """Each job needs a copy of its payload, because the first stage changes it."""
    outputs_per_item: float = 1.0
    """Results of this pipeline for one item of the whole one."""
