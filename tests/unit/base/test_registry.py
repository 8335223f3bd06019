"""The registry of parts: headrace's own and those of other packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.base.protocols import Engine
from headrace.base.registry import SCHEME_OR_SUFFIX, Registry, installed_packages

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


def test_a_part_whose_module_ends_the_process_names_its_package(parts: Registry, tmp_path: Path) -> None:
    """Whatever the module raises: else one package could end every command without a word."""
    (tmp_path / "theirs.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(SettingsError, match=r"their-package brings it as theirs:Part, .* SystemExit: 3") as caught:
        parts.load("z_part")
    assert caught.value.origin is not None
    assert caught.value.origin.place.endswith("theirs.py:1")


def test_a_name_that_two_packages_bring_is_refused(parts: Registry, tmp_path: Path) -> None:
    """The order of the path would decide what a Plan means."""
    install(tmp_path, "rival", f"[{GROUP}]\nz_part = pathlib:Path\n")
    with pytest.raises(SettingsError, match=r"'z_part': .* bring a part of this name; remove all but one") as caught:
        parts.load("z_part")
    assert all(package in str(caught.value) for package in ("their-package", "rival"))


def test_metadata_that_cannot_be_read_hides_no_other(parts: Registry, tmp_path: Path) -> None:
    """What a half-removed package left, which may have nothing to do with headrace."""
    install(tmp_path, "foreign", "[console_scripts]\nno equals sign\n")
    (install(tmp_path, "bytes", "[headrace.queues]\na = b:c\n") / "METADATA").write_bytes(b"\xff\xfe")
    (install(tmp_path, "removed", "[headrace.queues]\na = b:c\n") / "METADATA").unlink()
    assert parts.names() == ["path", "a_part", "z_part"]
    assert {"foreign", "bytes", "removed", None}.isdisjoint(installed_packages())


@pytest.mark.parametrize("name", ["Kafka", "my_queue", "zürich", "1st", ".CSV", ".tar.gz"])
def test_a_name_that_cannot_be_written_is_left_out(
    parts: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """With a warning that names the package: only its author can change the name."""
    install(tmp_path, "shouting", f"[{GROUP}]\n{name} = theirs:Part\n")
    registry = Registry(GROUP, {}, "--source", SCHEME_OR_SUFFIX)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert name not in registry.names()
    assert f"shouting brings theirs:Part by the name {name!a}, which cannot be used" in caplog.text


def test_of_very_many_names_the_nearest_are_shown(parts: Registry) -> None:
    """And how many others there are: nobody reads a thousand."""
    many = parts.with_parts({f"engine{number}": "pathlib:Path" for number in range(1000)})
    with pytest.raises(SettingsError, match=r"allowed: engine77, .* and 998 others$") as caught:
        many.load("engin77")
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("Part = None", "which is None; expected a function or class that makes a headrace.base.protocols.Engine"),
        ("def Part(): pass", "which returned None; expected a headrace.base.protocols.Engine"),
        ("def Part(): return 3", "which returned 3, which has no open(); expected a headrace.base.protocols.Engine"),
        ("def Part(one): pass", "which failed: TypeError: Part() missing 1 required positional argument"),
        ("def Part(): raise SystemExit(3)", "which failed: SystemExit: 3 ("),
    ],
)
def test_a_part_that_makes_nothing_useful_names_its_package(
    parts: Registry, tmp_path: Path, code: str, said: str
) -> None:
    """With what it gave and what was expected: the user's own line is not to blame."""
    (tmp_path / "theirs.py").write_text(f"{code}\n")
    with pytest.raises(SettingsError) as caught:
        parts.make("z_part", Engine)
    assert f"model.engine = 'z_part': their-package brings it as theirs:Part, {said}" in str(caught.value)


def install(site: Path, name: str, entry_points: str) -> Path:
    """Make an installed package without a module, and return the folder of its metadata."""
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    return metadata
