"""Programs beside the run that use what it needs too: cores, the memory bus, the disk; and a name server."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.outside import OutsideProgram

_BEGIN = """
import os, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(flush=True)
"""
_BURSTS = """
while True:
    ends = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < ends:
        pass
    time.sleep(float(sys.argv[2]))
"""
_COPIES = """
source, target = bytearray(1 << 26), bytearray(1 << 26)
while True:
    target[:] = source
"""
_SYNCS = """
name = os.path.join(sys.argv[1], f".headrace-neighbour-{os.getpid()}")
file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
os.unlink(name)
block = os.urandom(1 << 20)
while True:
    os.pwrite(file, block, 0)
    os.fsync(file)
"""
#: Programs that start and end all the time: each is gone before anybody has looked at it.
_STARTS = """
while True:
    pid = os.fork()
    if not pid:
        os.execv("/bin/true", ["true"])
    os.waitpid(pid, 0)
"""
_COMPRESSES = """
import zlib
name = os.path.join(sys.argv[1], f".headrace-backup-{os.getpid()}")
file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
os.unlink(name)
block = bytes(range(256)) * 256 + os.urandom(1 << 18)
while True:
    os.pwrite(file, zlib.compress(block, 6), 0)
    os.fdatasync(file)
"""
_LOCKS = """
import fcntl
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
while True:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(float(sys.argv[2]))
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(float(sys.argv[3]))
"""
#: The file that `lock_file` locks.
LOCKED = Path(tempfile.gettempdir()) / f"headrace-locked-{os.getpid()}"
#: Answers each request after as many seconds as it says.
_NAMES = """
import os, socket, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    seconds, client = server.recvfrom(64)
    threading.Timer(float(seconds), server.sendto, (b"127.0.0.1", client)).start()
"""


def compute_in_bursts(number: float, busy_seconds: float, pause_seconds: float) -> contextlib.ExitStack:
    """Run programs that compute for a while and pause, again and again."""
    return _programs(number, _BURSTS, busy_seconds, pause_seconds)


def copy_memory(number: float) -> contextlib.ExitStack:
    """Run programs that copy more memory than caches hold."""
    return _programs(number, _COPIES)


def sync_files(number: float) -> contextlib.ExitStack:
    """Run programs that write and sync files where the run has its own."""
    return _programs(number, _SYNCS, Path.home())


def start_programs(number: float) -> contextlib.ExitStack:
    """Run programs that start other programs, one after the other."""
    return _programs(number, _STARTS)


def compress_files(number: float) -> contextlib.ExitStack:
    """Run programs that compress and write files where the run has its own."""
    return _programs(number, _COMPRESSES, Path.home())


def lock_file(held_seconds: float, pause_seconds: float) -> contextlib.ExitStack:
    """Run a program that locks a file, holds it and pauses, again and again."""
    return _programs(1, _LOCKS, LOCKED, held_seconds, pause_seconds)


@contextlib.contextmanager
def name_server() -> Iterator[int]:
    """Run a server of names; the value is its port on the loopback network."""
    with OutsideProgram("-S", "-c", _NAMES) as program:
        yield int(program.answer)


def _programs(number: float, code: str, *arguments: object) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for _ in range(round(number)):
        stack.enter_context(OutsideProgram("-S", "-c", _BEGIN + code, *map(str, arguments)))
    return stack
