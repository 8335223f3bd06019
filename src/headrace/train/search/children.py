"""Tries one thing in a process of its own, and outlives it: lack of memory, a kill by the kernel, a crash of a library.

How this works: each trial is a fresh Python that imports the user's file, so no trial sees what another one left in memory. It
writes its results to a file of the parent's folder, a line each; what it wrote before it died counts. The parent looks at its
resident memory every few milliseconds and kills it above the limit; if the parent itself is killed, the kernel kills the child.
A limit of the kernel (RLIMIT_DATA, RLIMIT_AS) would be exact, but it counts memory that libraries reserve and never touch:
Arrow's allocator alone takes a gigabyte of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.units import format_size
from headrace.train.program import name_signal
from headrace.train.search.process_memory import resident_bytes

#: A trial that takes longer hangs.
PATIENCE_SECONDS = 1800.0
#: A process fills some 20 MB in this time.
_LOOK_SECONDS = 0.01


class TrainingFailed(HeadraceError):
    """The user's training failed in a child process, and not for want of memory."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child process wrote before it ended."""

    results: list[dict[str, Any]] = field(default_factory=list)
    shortage: str = ""
    """Why it did not finish, if memory ran out or something killed it; empty: it finished."""

    def check_finished(self, recipe: str) -> None:
        """Raise TrainingFailed if it did not finish."""
        if self.shortage:
            raise TrainingFailed(
                f"{recipe}: a trial did not finish: {self.shortage}; try less data, or give it more memory"
            )


def run_child(
    task: str,
    recipe: str,
    *,
    seed: int = 0,
    limit_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Answer:
    """Run one task of `child` and return what it found.

    Args:
        task: Its name in `child.TASKS`.
        recipe: FILE.py:make.
        seed: Of the recipe's random numbers.
        limit_bytes: Of resident memory of the child; None: none but the machine's.
        environment: Variables besides those of this process; None: none.
        arguments: Of the task.

    Raises:
        SettingsError: If the recipe is none.
        TrainingFailed: If the user's code failed, with its traceback.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-train-") as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.jsonl"
        request.write_bytes(encode_document({"task": task, "recipe": recipe, "seed": seed, "arguments": arguments}))
        answer.touch()
        command = [sys.executable, "-m", "headrace.train.search.child", str(request), str(answer), str(os.getpid())]
        status, shortage = _run(command, limit_bytes, {**os.environ, **(environment or {})})
        found = _read(answer, status, recipe)
        return Answer(found.results, shortage) if shortage else found


def ask_child(task: str, recipe: str, seed: int, **arguments: Any) -> dict[str, Any]:
    """Run a task that gives one result, and return it; raises what `run_child` raises, and TrainingFailed without a result."""
    answer = run_child(task, recipe, seed=seed, **arguments)
    answer.check_finished(recipe)
    return answer.results[0]


def _run(command: list[str], limit_bytes: int | None, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its exit status, and why it was killed here, if so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=environment) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_SECONDS), ""
                resident = resident_bytes(process.pid)
                if limit_bytes is not None and resident > limit_bytes:
                    return -signal.SIGKILL, f"it took {format_size(resident)}, more than {format_size(limit_bytes)}"
                if time.monotonic() > deadline:
                    raise TrainingFailed(
                        f"a trial was still at work after {PATIENCE_SECONDS:.0f} s, and was ended; try less data"
                    )
        finally:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()  # after a Ctrl-C, leaving `with` does not


def _read(answer: Path, status: int, recipe: str) -> Answer:
    lines = []
    for line in answer.read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # the last one may be cut off by a kill
            lines.append(decode_document(line, dict[str, Any]))
    failures = [line for line in lines if "error" in line]
    results = [line for line in lines if "error" not in line]
    if failures:
        failure = failures[0]
        if failure["kind"] == "settings":
            raise SettingsError(f"{recipe}: {failure['error']}")
        if failure["kind"] == "error":
            raise TrainingFailed(f"{recipe} failed: {failure['error']}\n{failure['traceback']}".rstrip())
        return Answer(results, failure["error"])
    if status == 0 and results:
        return Answer(results)
    if status < 0:
        return Answer(results, f"killed by {name_signal(-status)}")
    raise TrainingFailed(
        f"{recipe}: the process that tried it ended with status {status} and said nothing; see what it printed above"
    )
