"""Starts a script on several ranks of this machine, as torchrun does; survives a rank that dies or hangs, and Ctrl-C.

How this works: each rank is a process and a group of its own, with the variables that torchrun sets. The caller's thread looks
at them every few milliseconds. If one fails, the others get a moment to say what they saw of it, and are ended; so they are if
time is up, or this process is interrupted. What a rank prints goes to a file, whose end is part of the error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import HeadraceError, SettingsError
from headrace.train.program import name_signal

_LOOK_SECONDS = 0.05
#: Seconds that other ranks have to end once one has failed: their last lines may say more.
_GRACE_SECONDS = 3.0
#: How a line begins that says nothing: Python lists every module with C code after a crash.
_NOISE = "Extension modules: "
_MEMORY = " (as the kernel ends a process when memory runs out)"
#: Lines of a rank's output that an error repeats.
_LINES = 12
#: Bytes at the end of its output in which they are looked for.
_TAIL_BYTES = 20_000
_PORT_IN_USE = ("EADDRINUSE", "ddress already in use")
#: What a rank prints that fails because another one has gone: gloo, the store, pipes; then NCCL's `ncclRemoteError` and its
#: text (https://github.com/NVIDIA/nccl/issues/2076), and PyTorch's watchdog, which ends who waits for a rank that has gone
#: (`NCCL communicator was aborted`, torch/csrc/distributed/c10d/NCCLUtils.cpp).
_OTHER_GONE = (
    "onnection closed", "onnection reset", "onnection was likely closed", "onnection refused", "roken pipe", "ncclRemoteError",
    "remote process exited or there was a network error", "NCCL communicator was aborted",
    "caught collective operation timeout",
)  # fmt: skip


class RanksFailed(HeadraceError):
    """A script did not train on several ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is to be started.

    Attributes:
        argv: Program and arguments of each rank.
        ranks: How many.
        environment: Variables of each, besides those that tell a rank who it is.
        logs: Folder for what they print; exists.
        patience: Seconds until they are taken to hang.
        keeps_logs: Whether that folder is there afterwards: errors name its files then.
        advice: What to look at if they hang.
    """

    argv: tuple[str, ...]
    ranks: int
    environment: Mapping[str, str]
    logs: Path
    patience: float
    keeps_logs: bool = True
    advice: str = (
        "Do all ranks make the same number of steps? One that has no batch left leaves the others waiting for it."
    )


def run_group(group: Group) -> None:
    """Start the ranks, and wait until all have ended well.

    Raises:
        SettingsError: If the program cannot be started.
        RanksFailed: If a rank fails or hangs; all of them are ended then.
    """
    try:
        _run(group)
    except _PortTakenError:  # another program took the port between its choice and its use
        try:
            _run(group)
        except _PortTakenError as error:
            raise RanksFailed(
                f"{error}\nIts address is in use: does the script listen on a port of its own? It should take the launcher's: "
                'torch.distributed.init_process_group("gloo") without init_method, or with "env://"'
            ) from None


class _PortTakenError(RanksFailed):
    """A rank could not listen."""


def _run(group: Group) -> None:
    port = _find_port()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(group.ranks):
            processes.append(_start(group, rank, port))  # noqa: PERF401  what was started is ended if the next one cannot be
        _wait_all(group, processes)
    finally:
        _end_all(processes)


def _start(group: Group, rank: int, port: int) -> subprocess.Popen[bytes]:
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": group.ranks,
        "LOCAL_WORLD_SIZE": group.ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "HEADRACE_TRAIN_PARENT": os.getpid(),
    }
    environment = {**group.environment, **{name: str(value) for name, value in place.items()}}
    with open(_log(group, rank), "wb") as log:
        try:
            return subprocess.Popen(
                group.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise SettingsError(f"{group.argv[0]!r} cannot be started: {error.strerror}") from error


def _wait_all(group: Group, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + group.patience
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            _wait_quietly(processes, _GRACE_SECONDS)
            raise _describe_failure(group, [process.poll() for process in processes])
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            late = [rank for rank, code in enumerate(codes) if code is None]
            raise RanksFailed(
                f"{_name(late)} of {group.ranks} still ran after {group.patience:.0f} s, and all were ended. "
                f"{_describe_leavers(codes)}{group.advice} A longer time: --patience{_tail(group, late[0])}"
            )
        time.sleep(_LOOK_SECONDS)


def _describe_failure(group: Group, codes: Sequence[int | None]) -> RanksFailed:
    """Name the rank that failed by itself: the others fail soon after, because it has gone."""
    tails = {rank: _tail(group, rank) for rank, code in enumerate(codes) if code}
    by_itself = [rank for rank, tail in tails.items() if not any(sign in tail for sign in _OTHER_GONE)]
    rank = (by_itself or list(tails))[0]
    code, tail = codes[rank] or 0, tails[rank]
    how = (
        f"was ended by {name_signal(-code)}{_MEMORY * (code == -signal.SIGKILL)}"
        if code < 0
        else f"ended with exit status {code}"
    )
    left = "" if by_itself else _describe_leavers(codes)
    why = f". {left}Do all ranks make the same number of steps?" if left else ""
    kind = _PortTakenError if any(sign in tail for sign in _PORT_IN_USE) else RanksFailed
    return kind(f"rank {rank} of {group.ranks} {how}, and the others were ended{why}{tail}")


def _describe_leavers(codes: Sequence[int | None]) -> str:
    """Say which ranks ended well, be it before the others or meanwhile; empty: none did."""
    left = [rank for rank, code in enumerate(codes) if code == 0]
    return f"{_name(left).capitalize()} ended with exit status 0. " if left else ""


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _tail(group: Group, rank: int) -> str:
    """Return the last lines that a rank printed."""
    file = _log(group, rank)
    place = f" ({file})" if group.keeps_logs else ""
    with contextlib.suppress(OSError):
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            told = log.read().decode("utf-8", "replace").splitlines()
        lines = [line for line in told if line and not line.startswith(_NOISE)][-_LINES:]
        if lines:
            return f"; the last that it printed{place}:\n" + "\n".join(f"    {line}" for line in lines)
    return f"; it printed nothing{place}"


def _log(group: Group, rank: int) -> Path:
    return group.logs / f"rank-{rank}.log"


def _wait_quietly(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, loader workers of ranks that ended included; at once after another Ctrl-C, which goes on then."""
    is_interrupted = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(OSError):  # the whole group is gone
                os.killpg(process.pid, number)
        try:
            _wait_quietly(processes, _GRACE_SECONDS)
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted:
        raise KeyboardInterrupt


def _find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
