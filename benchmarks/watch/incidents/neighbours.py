"""Programs beside the run that use what it needs too: cores, the memory bus, the disk; and a name server."""

from __future__ import annotations

import contextlib
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
