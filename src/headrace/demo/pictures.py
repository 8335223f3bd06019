"""The pictures of a story, drawn in text: where the time of an item goes, and what each proposal came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.formatting import align_columns, with_bars
from headrace.base.units import format_duration
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.prediction import PredictionDocument
from headrace.runs.formats.profile import Estimate

_COLUMNS = 44


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal."""

    name: str
    predicted: PredictionDocument | None
    """None where nothing was asked, or nothing could be said."""
    measured: ComparisonDocument | None
    """None where nobody tried."""


def format_factor(factor: Estimate) -> str:
    """Return a factor of the throughput with its interval: `x2.10 (1.90 to 2.30)`."""
    return f"x{factor.mid:.2f} ({factor.low:.2f} to {factor.high:.2f})"


def draw_waterfall(parts: Sequence[tuple[str, float]]) -> list[str]:
    """Return a line for each part, with a bar that begins where the bar of the part before ends.

    Args:
        parts: At least one name with its seconds.
    """
    total = sum(seconds for _, seconds in parts) or 1.0
    lines = align_columns([[name, format_duration(seconds)] for name, seconds in parts])
    width, bars, passed = max(map(len, lines)), [], 0.0
    for _, mean in parts:
        begin, end = round(_COLUMNS * passed / total), round(_COLUMNS * (passed + mean) / total)
        bars.append(" " * begin + ("#" * (end - begin) or "|"))
        passed += mean
    return [f"{line:<{width}}  {bar}" for line, bar in zip(lines, bars, strict=True)]


def draw_outcomes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table with bars: the throughput of each proposal, as a factor of the program as it was."""
    rows, factors = [["", "throughput", "interval"], ["as it was", "x1", ""]], [1.0]
    for name, factor in _list_factors(outcomes):
        rows.append([name, f"x{factor.mid:.2f}", f"{factor.low:.2f} to {factor.high:.2f}"])
        factors.append(factor.mid)
    return with_bars(align_columns(rows), factors)


def _list_factors(outcomes: Sequence[Outcome]) -> list[tuple[str, Estimate]]:
    found = []
    for outcome in outcomes:
        if outcome.predicted and (ratio := outcome.predicted.throughput.ratio):
            found.append((f"{outcome.name}: predicted", ratio))
        if (measured := outcome.measured) and measured.ratio and measured.ratio_low and measured.ratio_high:
            found.append(
                (f"{outcome.name}: measured", Estimate(measured.ratio_low, measured.ratio, measured.ratio_high))
            )
    return found
