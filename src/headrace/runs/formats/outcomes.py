"""What a comparison comes to: the words of documents, ledger and terminals, one vocabulary for each question.

Is B better than A? `Verdict`. Is B still as right as A, by one gate? `Outcome`. May B stand in for A, by all gates together?
`Acceptance`. Whether a model runs at all on another engine is another question: `headrace.runs.formats.portability`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Verdict = Literal["better", "worse", "no_difference", "underpowered"]
"""`underpowered`: too noisy, or too few measurements, to tell."""

Decided = Literal["passed", "rejected", "inconclusive"]
"""The drop is below the margin, above it, or there are too few items to tell."""

Outcome = Literal["passed", "rejected", "inconclusive", "skipped"]
"""The same of a gate. `skipped`: it could not be asked."""

Acceptance = Literal["accept", "reject", "inconclusive"]

ACCEPTANCE: Mapping[Decided, Acceptance] = {"passed": "accept", "rejected": "reject", "inconclusive": "inconclusive"}
"""What one outcome alone comes to."""
