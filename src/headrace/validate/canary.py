"""Judges of a canary's answers, for `headrace.pipeline.canary_calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.meaning import Declared
from headrace.pipeline.canary_calls import Judges
from headrace.validate.agreement import Agreement
from headrace.validate.first_answers import begin_agreement
from headrace.validate.parity import has_broken


class ChangedAnswers:
    """Finds answers of a canary that are other ones, by what they mean; for one thread at a time."""

    def __init__(self) -> None:
        self._agreements: dict[int, tuple[Declared, Agreement]] = {}

    def __call__(self, stable: Any, canary: Any, declared: Declared) -> Sequence[float]:
        """Return (items,) 1.0 where the canary gives another answer.

        Raises:
            ValueError: If they cannot be compared.
        """
        kept = self._agreements.get(id(declared))
        if kept is None:  # with what it is of, or another object might get its id
            kept = self._agreements[id(declared)] = declared, begin_agreement(stable, declared)[0]
        return [float(one) for one in kept[1].add(stable, canary)]


def make_judges() -> Judges:
    """Return them, for one run."""
    return Judges(has_broken=has_broken, find_changed=ChangedAnswers())
