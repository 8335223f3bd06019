"""What a run of the benchmark took: seconds by part of a case, trials for the dose, rounds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.truth.rows import Row


def summarize_effort(rows: Sequence[Row]) -> dict[str, Any]:
    """Return seconds, trials and rounds of some cases.

    Returns:
        `seconds` (mean of a case, None without cases), `phases` ({part: mean seconds of the cases that have it}), `pilots`
        (trials in all), `scaled` (cases that did not run as drawn), `rounds` ({rounds: cases}).
    """
    parts = sorted({part for row in rows for part in row.phases})
    return {
        "seconds": statistics.fmean(row.seconds for row in rows) if rows else None,
        "phases": {part: statistics.fmean(row.phases[part] for row in rows if part in row.phases) for part in parts},
        "pilots": sum(len(row.pilots) for row in rows),
        "scaled": sum(len(row.pilots) > 1 for row in rows),
        "rounds": dict(sorted(Counter(row.rounds for row in rows if row.rounds).items())),
    }


def effort_in_words(effort: Mapping[str, Any], reasons: Mapping[str, int]) -> list[str]:
    """Return lines for readers; none of rows that do not say what they took.

    Args:
        effort: Of `summarize_effort`.
        reasons: {why cases were not scored: how many}.
    """
    unscored = ", ".join(f"{number} {reason}" for reason, number in reasons.items())
    lines = [f"Not scored: {unscored}."] if unscored else []
    if effort["phases"]:
        phases = ", ".join(f"{part} {seconds:.1f}" for part, seconds in effort["phases"].items())
        rounds = ", ".join(f"{cases} after {number}" for number, cases in effort["rounds"].items())
        scaled = f"{effort['scaled']} cases ran with another dose than was drawn; {effort['pilots']} pilots in all."
        lines += [f"{scaled} Rounds ended: {rounds}. A case took {effort['seconds']:.1f} s: {phases}."]
    return [line for text in lines for line in ("", text)]
