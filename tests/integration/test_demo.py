"""`headrace demo` as a user meets it, who loses patience."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path


def test_ctrl_c_ends_the_whole_demonstration(tmp_path: Path) -> None:
    """Ctrl-C in the first rung runs no second one, and exits with 130."""
    command = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())", "demo"]
    out = tmp_path / "out"
    demo = subprocess.Popen([*command, "--count", "40", "-o", str(out)], stderr=subprocess.PIPE)
    give_up_at = time.monotonic() + 90
    while not list(out.glob("runs/*/run.json")) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    time.sleep(0.5)
    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate(timeout=90)
    assert demo.returncode == 130, told.decode()
    assert f"interrupted; what ran until then is in {out}" in told.decode()
    assert len(list(out.glob("runs/*"))) == 1
