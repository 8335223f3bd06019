"""The documents of the unit tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

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
