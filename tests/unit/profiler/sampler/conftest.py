"""What the tests of the sampler share."""

from __future__ import annotations

import psutil
import pytest


@pytest.fixture(autouse=True)
def own_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give psutil its process file system back after a test that made one up."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc")
