"""What a golden set's fingerprint is of: everything that may decide a verdict."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.validate.golden import Golden, read_golden

GIVEN: dict[str, Any] = {
    "inputs": np.arange(12, dtype=np.float32).reshape(4, 3), "labels": np.array([0, 1, 0, 1]), "truth_box": np.arange(4),
    "sources": np.array(["a", "a", "b", "b"]), "slice_light": np.array(["dark", "dark", "bright", "bright"]),
}  # fmt: skip


def read(folder: Path, **arrays: Any) -> Golden:
    """Return the set with these arrays in place of the given ones."""
    np.savez(folder / "golden.npz", **{**GIVEN, **arrays})
    return read_golden(folder / "golden.npz")


@pytest.mark.parametrize("name", GIVEN)
def test_another_array_makes_another_set(tmp_path: Path, name: str) -> None:
    """The same items from other sources, or otherwise divided, are another question; the same again is the same."""
    before = read(tmp_path).sha256
    assert read(tmp_path).sha256 == before
    assert read(tmp_path, **{name: GIVEN[name][::-1].copy()}).sha256 != before


def test_the_same_values_under_another_name_make_another_set(tmp_path: Path) -> None:
    """A slice's name is in what is said of it."""
    before = read(tmp_path).sha256
    np.savez(tmp_path / "named.npz", **{name.replace("light", "focus"): array for name, array in GIVEN.items()})
    assert read_golden(tmp_path / "named.npz").sha256 != before


def test_truth_swapped_between_names_makes_another_set(tmp_path: Path) -> None:
    """What is true is asked for by name: the same arrays, as a file has them, under each other's names are others."""
    one, other = np.arange(4), np.arange(4)[::-1].copy()
    first, second = read(tmp_path, truth_low=one, truth_high=other), read(tmp_path, truth_high=one, truth_low=other)
    assert first.sha256 != second.sha256
    assert read(tmp_path, truth_high=other, truth_low=one).sha256 == first.sha256  # whatever the order of the file


def test_a_set_without_truth_keeps_the_fingerprint_that_ledgers_know(tmp_path: Path) -> None:
    """It is of inputs, labels, slices and sources as they lie in memory, as it always was."""
    without = {name: array for name, array in GIVEN.items() if name != "truth_box"}
    np.savez(tmp_path / "golden.npz", **without)
    named = json.dumps(["light", GIVEN["slice_light"].tolist()]) + json.dumps(["sources", GIVEN["sources"].tolist()])
    expected = hashlib.sha256(GIVEN["inputs"].tobytes() + GIVEN["labels"].tobytes() + named.encode())
    assert read_golden(tmp_path / "golden.npz").sha256 == expected.hexdigest()
