"""How long refusals took within the server, as its benchmark reads it from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serve.refusals import Histograms, milliseconds, read_histograms


def test_what_was_counted_meanwhile_is_told(tmp_path: Path) -> None:
    """Of what came before nothing is; each figure is at most a twentieth too high."""
    file = tmp_path / "refusals"
    found = Histograms(file)
    for series in ("seen", "read"):
        found.note(series, 900_000_000)
    before = read_histograms(file)
    for number in range(1, 101):
        found.note("seen", number * 1_000_000)
        found.note("read", number * 1_000)
    told = milliseconds(before, read_histograms(file))
    assert told["seen"]["p50_ms"] == pytest.approx(50, rel=0.06)
    assert told["seen"]["p99_ms"] == pytest.approx(99, rel=0.06)
    assert told["read"]["p99_ms"] == pytest.approx(0.099, rel=0.06)


def test_nothing_has_no_figure_and_extremes_are_counted(tmp_path: Path) -> None:
    """Less than a microsecond, and more than a day."""
    file = tmp_path / "refusals"
    found, before = Histograms(file), read_histograms(file)
    assert milliseconds(before, before)["read"] == {"p50_ms": None, "p99_ms": None}
    found.note("read", 0)
    found.note("read", 10**15)
    assert sum(read_histograms(file)["read"]) == 2
