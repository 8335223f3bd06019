"""A browser, and the documents of the unit tests."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]


def _load(name: str, folder: Path) -> ModuleType:
    # Test folders are not packages.
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    """Return the documents that the unit tests draw."""
    return _load("report_documents", TESTS / "unit" / "report")


@pytest.fixture(scope="session")
def searches() -> ModuleType:
    """Return the searches that the unit tests draw."""
    return _load("variants_documents", TESTS / "unit" / "report")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a headless Chromium; where there is none, skip, but fail in CI."""
    chromium = _load("chromium", Path(__file__).parent)
    command = chromium.find_chromium()
    if command is None:
        assert not os.environ.get("CI"), "chromium is missing; apt-get install chromium"
        pytest.skip("chromium is not installed; apt-get install chromium")
    opened = chromium.Chromium(command, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Return where screenshots are kept for people to look at."""
    folder = TESTS.parent / "build" / "report-screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
