"""Which processes belong to a server that is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from benchmarks.serve.usage import descendants


def test_a_process_that_leaves_its_group_is_known_as_a_descendant() -> None:
    """A server's workers that do so would go on after it, beside the servers that are measured next."""
    command = "import subprocess, sys; subprocess.run(['sleep', '60'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", command]) as process:
        try:
            while len(found := descendants(process.pid)) < 2:
                assert process.poll() is None
            assert process.pid in found
        finally:
            for pid in descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
