"""The helper process: `python -m headrace.profiler.watcher SETTINGS`, started by `control.Watcher`."""

from __future__ import annotations

import contextlib
import signal
import sys

from headrace.profiler.watcher.helper import Helper
from headrace.profiler.watcher.messages import HelperSettings


def main() -> None:
    """Watch, and print the report."""
    # A service manager's SIGTERM goes to all processes of the service, and Ctrl-C to a terminal's: the run drains, and is to be
    # watched at it. The profiled process says when to end, or ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    report = Helper(HelperSettings.decode(sys.argv[1]), sys.stdin.fileno()).run()
    with contextlib.suppress(BrokenPipeError):
        print(report.encode(), flush=True)


main()
