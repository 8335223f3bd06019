"""Lives in an actor and runs one lease at a time, in a process beside it: what the user's code does to that one ends with it.

How this works. A process is there before there is anything to do, with headrace imported, and waits for leases on its
standard input. It forks another one that does them (`cli.leased`), and yet another where that dies or a lease ends badly: so
a lease begins at once, and all but the first find loaded what they need. What they write goes into a file, from which the one
who gave the lease is told (`news`): a pipe would break when the actor dies. The kernel asks the processes to end when the
actor does, so they finish what they have in hand and give the rest back; if they had been killed, items that have nothing to
do with it would be suspected of having killed them. One thread starts all processes, because the kernel takes that thread for
the parent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from headrace.ray.leases import Lease, Outcome, Report, Setting, decode, send_lease

_POLL_SECONDS = 0.02
#: Of what a process wrote, at once.
_MOST_SAID = 32 << 10
#: Beyond the grace period, to close files and leave.
_LEAVE_SECONDS = 10.0
#: The module that a process runs.
PROCESS = "headrace.cli.leased"


class Worker:
    """See above. Its methods are called from several threads of the actor.

    Args:
        setting: What its processes share with the command.

    Raises:
        FileNotFoundError: If the working folder is not on this machine.
    """

    def __init__(self, setting: Setting) -> None:
        if not Path(setting.folder).is_dir():
            raise FileNotFoundError(
                f"the working folder {setting.folder} is not on {socket.gethostname()}: a worker needs the program and its "
                "files under the same path on every node, such as by a shared file system or in the nodes' image"
            )
        self._setting = setting
        self._starter = ThreadPoolExecutor(1, "starter")
        self._lock = threading.Lock()
        self._num_stops = 0
        self._running: _Process | None = None
        self._next: _Process | None = self._start()

    def ready(self) -> str:
        """Return the name of the machine once the process has loaded headrace, or ended: then its lease will tell why."""
        process = self._next
        while process is not None and not process.is_warm and process.poll() is None:
            time.sleep(_POLL_SECONDS)
        return socket.gethostname()

    def work(self, lease: Lease) -> Report:
        """Do a lease to its end, and return what came of it."""
        began = time.monotonic()
        with self._lock:
            process = self._running = self._next or self._start()
            self._next = None
        try:
            process.begin(lease)
            if self._num_stops:  # asked in between
                process.ask_to_stop()
            status = self._wait(process)
            outcome = process.outcome()
            return Report(
                status=status if outcome is None else outcome.status,
                host=socket.gethostname(),
                document=b"" if outcome is None else outcome.document,
                queue="" if outcome is None else outcome.queue,
                interrupted=outcome is None or outcome.interrupted,
                said=process.news(),
                seconds=time.monotonic() - began,
                pid=process.lease_pid,
                # One that never was warm cannot begin, nor would the next.
                is_death=outcome is None and (process.is_warm or not status),
            )
        finally:
            with self._lock:
                self._running = None
                if not self._num_stops:
                    self._next = process if process.is_alive else self._start()
            if self._next is not process:
                process.close()

    def news(self) -> str:
        """Return what the process wrote since the last call."""
        with self._lock:
            return "" if self._running is None else self._running.news()

    def stop(self) -> None:
        """Ask the process to finish what it has; the second time, to give all of it back at once."""
        with self._lock:
            self._num_stops += 1
            if self._running is not None:
                self._running.ask_to_stop()

    def close(self) -> None:
        """End the process that waits."""
        with self._lock:
            self._num_stops += 1
            if self._next is not None:
                self._next.close()
                self._next = None
        self._starter.shutdown(wait=False)

    def _start(self) -> _Process:
        return self._starter.submit(_Process, self._setting).result()

    def _wait(self, process: _Process) -> int:
        """Return its exit status; one that does not heed that it was asked to stop is killed."""
        kill_at: float | None = None
        while (status := process.poll()) is None:
            if self._num_stops and kill_at is None:
                kill_at = time.monotonic() + self._setting.grace_seconds + _LEAVE_SECONDS
            if kill_at is not None and time.monotonic() > kill_at:
                process.kill()
            time.sleep(_POLL_SECONDS)
        return status


class _Process:
    """The process that forks those which do leases, from before the first to after the last."""

    def __init__(self, setting: Setting) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-worker-"))
        self._lock = threading.Lock()
        self._outcome, self._ended = self._folder / "outcome", self._folder / "ended"
        self._said: IO[bytes] = (self._folder / "said").open("ab+")
        self._told = 0
        self._grace_seconds = setting.grace_seconds
        environment = dict(os.environ)
        for name, value in setting.environment.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        environment["HEADRACE_CORES"] = str(setting.cores)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROCESS, str(os.getpid()), str(self._folder)],
                stdin=subprocess.PIPE, stdout=self._said, stderr=self._said, cwd=setting.folder, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        self.pid = self._process.pid

    def begin(self, lease: Lease) -> None:
        """Give it a lease; one that died before will be seen to have."""
        assert self._process.stdin is not None
        for left in (self._outcome, self._ended):
            left.unlink(missing_ok=True)
        with self._lock:
            self._said.truncate(0)
            self._told = 0
        with contextlib.suppress(BrokenPipeError):
            send_lease(self._process.stdin, lease, self._grace_seconds)

    @property
    def is_warm(self) -> bool:
        """Whether it has loaded what it needs."""
        return (self._folder / "warm").exists()

    @property
    def is_alive(self) -> bool:
        """Whether it can take another lease."""
        return self._process.poll() is None

    @property
    def lease_pid(self) -> int:
        """Process of the lease that has ended; its own where it died itself."""
        return self._last()[0]

    def poll(self) -> int | None:
        """Return the exit status of its lease, or its own; None: it runs."""
        return self._last()[1]

    def _last(self) -> tuple[int, int | None]:
        with contextlib.suppress(OSError):
            pid, status = self._ended.read_text().split()
            return int(pid), int(status)
        return self.pid, self._process.poll()

    def ask_to_stop(self) -> None:
        """Send what a service manager sends."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, with all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def _wait_for_others(self) -> None:
        """Wait until all that it started have ended, as long as a lease that is asked to stop may take."""
        until = time.monotonic() + self._grace_seconds + _LEAVE_SECONDS
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                os.killpg(self.pid, 0)
                time.sleep(_POLL_SECONDS)

    def outcome(self) -> Outcome | None:
        """Return what it left; None: it died."""
        try:
            return decode(self._outcome.read_bytes())
        except OSError:
            return None

    def news(self) -> str:
        """Return what it wrote since the last call; where that is much, the end of it."""
        with self._lock:
            if self._said.closed:
                return ""
            size = os.fstat(self._said.fileno()).st_size
            start = max(self._told, size - _MOST_SAID)
            text = os.pread(self._said.fileno(), size - start, start).decode(errors="replace")
            left_out = start - self._told
            self._told = size
        return f"({left_out:,} bytes are left out)\n{text}" if left_out else text

    def close(self) -> None:
        """End it, and remove its files."""
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()  # there are no more leases: both processes leave
            if process.poll() is not None:  # if it died alone, the process of its lease finishes what it has in hand
                self._wait_for_others()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVE_SECONDS)
            self.kill()
            process.wait()
        with self._lock:
            self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)
