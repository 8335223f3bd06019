"""Sets of items are apart, by content and by source, or they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.validate.disjoint import check_disjoint, check_production
from headrace.validate.golden import Golden


def items(name: str, first: int, sources: list[str] | None = None, **more: Any) -> Golden:
    """Return a set of three items that are numbered from `first`."""
    inputs = np.arange(first, first + 3, dtype=np.float32)[:, None]
    known = None if sources is None else np.array(sources)
    return Golden(name=name, inputs=inputs, labels=None, sha256="", sources=known, **more)


def test_an_item_in_both_is_refused() -> None:
    """By its content, whatever the sets are called; the message counts them and names both."""
    with pytest.raises(SettingsError, match=r"1 item of --data a\.npz is in --golden b\.npz too"):
        check_disjoint({"--data": items("a.npz", 0), "--golden": items("b.npz", 2)})


def test_the_files_of_items_in_both_are_named() -> None:
    """In each of the two sets, for a copy has another name; items of arrays are named by their place."""
    files = {"files": ["data/x.jpg", "data/y.jpg", "data/z.jpg"]}
    with pytest.raises(SettingsError, match=r"too: data/z\.jpg \(there item 0\); .*take them out of one"):
        check_disjoint({"--data": items("data", 0, **files), "--golden": items("b.npz", 2)})
    four = replace(items("a.npz", 0), inputs=np.arange(4, dtype=np.float32)[:, None])
    with pytest.raises(SettingsError, match=r"4 items .*: item 0 \(there item 0\), .* and 1 more;"):
        check_disjoint({"--data": four, "--golden": four})


def test_an_item_in_both_is_refused_in_whatever_precision_it_was_written() -> None:
    """NumPy makes float64 of nearly everything."""
    doubled = items("a.npz", 0)
    doubled = replace(doubled, inputs=doubled.inputs.astype(np.float64))
    with pytest.raises(SettingsError, match="1 item of --data"):
        check_disjoint({"--data": doubled, "--golden": items("b.npz", 2)})


def test_a_source_in_both_is_refused() -> None:
    """Other frames of the same camera are other items, and no other scene; the message says which and what to do."""
    first, second = items("a", 0, ["cam1", "cam1", "cam2"]), items("b", 3, ["cam1", "cam3", "cam2"])
    with pytest.raises(SettingsError, match=r"share 2 sources \(cam1, cam2\).*put each source into one"):
        check_disjoint({"--data": first, "--golden": second})


def test_regions_with_names_of_their_own_are_apart() -> None:
    """Two parts of one photograph are two sources where they are called so."""
    check_disjoint({"--data": items("a", 0, ["x, train"] * 3), "--golden": items("b", 3, ["x, held_out"] * 3)})


def test_unknown_sources_are_no_common_source() -> None:
    """Neither a missing set, nor missing sources, nor empty names."""
    check_disjoint({"--data": items("a", 0, ["", "", "x"]), "--golden": items("b", 3, ["", "", "y"])})
    check_disjoint({"--data": items("a", 0), "--golden": items("b", 3, ["x"] * 3)})
    check_disjoint({"--data": None, "--golden": items("b", 3)})


def test_many_sources_are_counted_and_some_named() -> None:
    """Three names are enough to find them."""
    names = [f"cam{number}" for number in range(5)]
    first, second = (items(name, at, some_sources=frozenset(names)) for name, at in (("a", 0), ("b", 3)))
    with pytest.raises(SettingsError, match=r"share 5 sources \(cam0, cam1, cam2 and 2 more\)"):
        check_disjoint({"--data": first, "--golden": second})


def test_production_items_are_in_no_set(tmp_path: Path) -> None:
    """A copy under another name is found; files of other content are not."""
    for name, content in (
        ("a.jpg", b"12345"),
        ("copy.jpg", b"12345"),
        ("other.jpg", b"54321"),
        ("long.jpg", b"123456"),
    ):
        (tmp_path / name).write_bytes(content)
    sets = {"--data": None, "--golden": items("held_out", 0, files=[str(tmp_path / "a.jpg")])}
    check_production([tmp_path / "other.jpg", tmp_path / "long.jpg"], sets)
    with pytest.raises(SettingsError, match=r"1 file of --source, such as .*copy\.jpg, is in --golden held_out too"):
        check_production([tmp_path / "other.jpg", tmp_path / "copy.jpg"], sets)
