"""The sampler process: `python -m headrace.profiler.sampler SETTINGS`, started by `control.Sampler`."""

from __future__ import annotations

import contextlib
import signal
import sys

from headrace.profiler.sampler.messages import SamplerSettings
from headrace.profiler.sampler.process import SamplerProcess


def main() -> None:
    """Watch, and print the report."""
    # A service manager's SIGTERM goes to all processes of the service, and Ctrl-C to a terminal's: the run drains, and is to be
    # watched at it. The profiled process says when to end, or ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    report = SamplerProcess(SamplerSettings.decode(sys.argv[1]), sys.stdin.fileno()).run()
    with contextlib.suppress(BrokenPipeError):
        print(report.encode(), flush=True)


main()
