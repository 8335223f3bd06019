"""The registry of parts: headrace's own and those of other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.base.registry import Registry

GROUP = "headrace.test_parts"


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Return a registry with one part of its own and three of an installed package."""
    (tmp_path / "theirs.py").write_text("class Part:\n    pass\n")
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\nz_part = theirs:Part\na_part = theirs:Missing\npath = theirs:Part\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry(GROUP, {"path": "pathlib:Path"}, "model.engine")
    sys.modules.pop("theirs", None)


def test_parts_of_other_packages_come_after_our_own(parts: Registry) -> None:
    """Names are listed without an import."""
    assert parts.names() == ["path", "a_part", "z_part"]
    assert "theirs" not in sys.modules


def test_a_part_of_another_package_is_loaded(parts: Registry) -> None:
    """By the name of its entry point."""
    assert parts.load("z_part").__module__ == "theirs"


def test_our_own_part_cannot_be_replaced(parts: Registry) -> None:
    """A package that takes the name of a built-in part is not heard."""
    assert parts.load("path") is Path


def test_an_unknown_name_is_refused_with_those_that_are_known(parts: Registry) -> None:
    """So that a misspelt one is seen."""
    with pytest.raises(SettingsError, match=r"model\.engine.*'nothing'.*path, a_part, z_part"):
        parts.load("nothing")


def test_a_part_that_cannot_be_imported_names_its_package(parts: Registry) -> None:
    """The user did not write it, and must know whom to ask."""
    with pytest.raises(SettingsError, match=r"their-package brings it as theirs:Missing"):
        parts.load("a_part")
