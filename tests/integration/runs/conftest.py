"""The kernel's word on which files were opened."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def watch_files() -> Callable[..., Any]:
    """Return `Watch` of tests/unit/engines/outside.py: test folders are not packages, so it is loaded by its path."""
    path = Path(__file__).parents[2] / "unit" / "engines" / "outside.py"
    spec = importlib.util.spec_from_file_location("outside", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    watch: Callable[..., Any] = module.Watch
    return watch
