"""Child processes of a search, with programs that need no PyTorch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from headrace.train.search import children


def test_ctrl_c_waits_for_the_child_that_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold gigabytes, and who starts the next training has to find them free."""
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(children, "_LOOK_SECONDS", 60.0)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        children._run([sys.executable, "-c", "import time; time.sleep(60)"], None, dict(os.environ))
    interrupt.join()
    assert started[0].returncode == -signal.SIGKILL
