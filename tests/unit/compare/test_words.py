"""What a comparison says in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.compare.words import describe
from headrace.runs.formats.comparison import ComparisonDocument, Side

SIDE = Side(name="a", pipeline="p", plan_id="i")
PLAIN = ComparisonDocument(
    a=SIDE,
    b=SIDE,
    metric="throughput",
    unit="items/s",
    higher_is_better=True,
    paired=True,
    num_pairs=24,
    ratio=1.0,
    ratio_low=0.99,
    ratio_high=1.01,
    margin=0.02,
    budget=None,
    verdict="no_difference",
    is_regression=False,
    pairs_needed=None,
    environment={"items_per_block": 2000},
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "No difference: throughput of B is +0.0 % (95 % interval -1.0 % to +1.0 %), all within 2.0% of the same."),
        ({}, "24 pairs of blocks of 2,000 items, run in turn."),
        (
            {"verdict": "better", "ratio": 2.5, "ratio_low": 2.4, "ratio_high": 2.6},
            "B is better: throughput of B is x2.5",
        ),
        ({"verdict": "worse", "ratio": 0.3, "ratio_low": 0.2, "ratio_high": 0.4}, "(95 % interval x0.2 to x0.4)"),
        (
            {"verdict": "underpowered", "pairs_needed": 1},
            "about 1 more pair would tell (--blocks 25, or --until-sure).",
        ),
        ({"verdict": "underpowered", "pairs_needed": 976}, "about 976 more pairs would tell (--blocks 1000"),
        # more than --blocks takes
        ({"verdict": "underpowered", "pairs_needed": 977}, "it would take about 977 more pairs: quieten the machine"),
        (
            {"verdict": "underpowered", "pairs_needed": 4, "num_pairs": 2, "ratio_low": None, "ratio_high": None},
            "throughput of B is +0.0 % in 2 pairs, too few for an interval; about 4 more pairs would tell (--blocks 6",
        ),
        # a half and less, and more than a half, in one form
        (
            {"verdict": "worse", "ratio": 0.51, "ratio_low": 0.48, "ratio_high": 0.54},
            "is x0.51 (95 % interval x0.48 to x0.54)",
        ),
        ({"num_pairs": 1}, "1 pair of blocks of 2,000 items, run in turn."),
        ({"verdict": "underpowered", "paired": False, "margin": 0.1}, "--measure runs them again in pairs"),
        ({"budget": 0.03, "budget_met": True}, "The loss stays within the budget of 3.0%."),
        ({"budget": 0.03, "budget_met": None}, "Whether the loss stays within the budget of 3.0% cannot be told yet."),
        ({"interrupted": True}, "It was interrupted: this is from the 24 pairs measured until then."),
        ({"environment": {"emulated": True}}, "The device was emulated: its times are settings, not measurements."),
        ({"environment": {"confidence": 0.975}}, "(97.5 % interval"),
        (
            {"verdict": "worse", "environment": {"delivered_share": [1.0, 0.5]}},
            "B is worse, whatever its rate: it delivers 50.0% of the jobs, and A 100.0%.",
        ),
    ],
)
def test_sentences(changes: dict[str, Any], said: str) -> None:
    """Each verdict, budget and circumstance has its sentence, with its numbers."""
    assert said in " ".join(describe(msgspec.structs.replace(PLAIN, **changes)))
