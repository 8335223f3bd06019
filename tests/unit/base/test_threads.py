"""Where the system gives no thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.threads import start_thread


def test_what_to_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the thread, the limits and the way out."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(HeadraceError) as told:
        start_thread(threading.Thread(name="decode-3"), "lower stages.decode.workers")
    for part in ("thread decode-3", "can't start new thread", "ulimit -u", "ulimit -v", "lower stages.decode.workers"):
        assert part in str(told.value)


PROGRAM = """
import resource, threading
import numpy, headrace as hr
from headrace.testing import ListSource
source = ListSource(range(3))
pipeline = hr.Pipeline(source, stages=[hr.stage("work", str)], delivery=hr.collect())
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
threading.stack_size(64 * 2**20)
resource.setrlimit(resource.RLIMIT_AS, (mapped + 600 * 2**20, resource.RLIM_INFINITY))
try:
    hr.run(pipeline, hr.Plan().with_settings(["work.workers=100"]))
except hr.HeadraceError as error:
    print("told:", error, source.in_flight)
"""


def test_a_run_that_gets_no_threads_ends_with_the_reason() -> None:
    """Under a limit of address space, a batch system's for instance, the stage and its setting are named."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert "told: thread work-" in done.stdout, done.stderr
    assert "lower stages.work.workers []" in done.stdout
