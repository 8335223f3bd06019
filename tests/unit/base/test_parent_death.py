"""A process that dies with its parent, in whatever way that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import os, sys, time
from headrace.base.parent_death import die_with_parent

assert die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or dead and only waits to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_parent_that_is_killed_takes_its_child_along() -> None:
    """SIGKILL leaves the parent no time to end anything; the child is gone nevertheless."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not has_ended(child)
        parent.kill()
    give_up_at = time.monotonic() + 60
    while not has_ended(child) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert has_ended(child)


def test_a_parent_that_died_before_is_noticed() -> None:
    """The kernel was asked too late: the process has another parent by then."""
    code = "from headrace.base.parent_death import *; import sys; sys.exit(not die_with_parent(int(sys.argv[1])))"
    ours, of_nobody = str(os.getpid()), "999999999"
    statuses = [subprocess.run([sys.executable, "-c", code, one], check=False).returncode for one in (ours, of_nobody)]
    assert statuses == [0, 1]
