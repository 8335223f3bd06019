"""Leaks, caches that fill, and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.diagnose import profile_document
from headrace.diagnose.memory_growth import growth

ITEMS = np.arange(120) * 100.0
MEGABYTE = 1e6


def noise(seed: int, correlation: float = 0.8, spread: float = 0.3 * MEGABYTE) -> np.ndarray:
    """Return noise whose neighbours are alike."""
    random = np.random.default_rng(seed)
    values = [0.0]
    for step in random.normal(0, spread, 119):
        values.append(correlation * values[-1] + step)
    return np.array(values)


def test_a_leak_is_found_with_its_pace() -> None:
    """2 MB per 1,000 items under correlated noise."""
    found = growth(ITEMS, 100 * MEGABYTE + 2000 * ITEMS + noise(1))
    assert found.verdict == "growing"
    estimate = found.bytes_per_1000_items
    assert estimate.low <= 2 * MEGABYTE <= estimate.high
    assert "leak" in found.reason


def test_constant_memory_is_flat() -> None:
    """Not a byte."""
    found = growth(ITEMS, np.full(120, 100 * MEGABYTE))
    assert (found.verdict, found.bytes_per_1000_items.mid) == ("flat", 0.0)


def test_a_cache_that_fills_is_no_leak() -> None:
    """Memory that rises to a ceiling in the first third."""
    found = growth(ITEMS, 100 * MEGABYTE + 20 * MEGABYTE * np.minimum(ITEMS / 4000, 1.0))
    assert found.verdict != "growing"


def test_noise_is_no_leak() -> None:
    """Of a hundred runs with correlated noise and no trend hardly one is called growing."""
    verdicts = [growth(ITEMS, 30 * MEGABYTE + noise(seed)).verdict for seed in range(100)]
    assert verdicts.count("growing") <= 5


def test_a_single_spike_does_not_move_the_slope() -> None:
    """One sample of ten times the memory."""
    num_bytes = np.full(120, 100 * MEGABYTE)
    num_bytes[100] *= 10
    found = growth(ITEMS, num_bytes)
    assert found.bytes_per_1000_items.mid == 0.0
    assert found.verdict != "growing"


def test_many_samples_are_averaged() -> None:
    """Ten thousand samples take no minutes and give the same slope."""
    items = np.linspace(0, 12_000, 10_000)
    assert growth(items, 1e8 + 2000 * items).bytes_per_1000_items.mid == pytest.approx(2e6, rel=1e-3)


def test_growth_is_measured_after_the_warm_up_and_against_items(single_server: Any, builder: Any) -> None:
    """A run of a thousand items in ten seconds that leaks 1 kB an item."""
    arrived = np.arange(1000) * 0.01
    single_server(builder, arrived, np.full(1000, 0.004))
    ticks = np.arange(0.0, 10.0, 0.25)
    builder.gauge("processes", "rss_bytes", ticks, 1e7 + 1000 * 100 * ticks)
    found = profile_document(builder.finish()).memory_growth
    assert found is not None
    assert found.bytes_per_1000_items.mid == pytest.approx(1e6, rel=0.02)
    assert found.verdict == "growing"


def test_too_few_samples_say_how_many_are_needed(single_server: Any, builder: Any) -> None:
    """Five samples are no trend."""
    single_server(builder, np.arange(1000) * 0.01, np.full(1000, 0.004))
    builder.gauge("processes", "rss_bytes", np.arange(5.0), 1e7)
    document = profile_document(builder.finish())
    assert document.memory_growth is None
    assert "20 are needed" in document.not_measured["memory_growth"]
