"""A browser, and where its pictures go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.report.chromium import Chromium, find_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Return a headless Chromium; where there is none, skip, but fail in CI."""
    command = find_chromium()
    if command is None:
        assert not os.environ.get("CI"), "chromium is missing; apt-get install chromium"
        pytest.skip("chromium is not installed; apt-get install chromium")
    opened = Chromium(command, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Return where screenshots are kept for people to look at."""
    folder = Path(__file__).resolve().parents[2] / "build" / "report-screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
