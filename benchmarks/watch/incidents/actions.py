"""What a stage, or a thread beside the stages, can do in an incident; one method each."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.faults import work
from benchmarks.watch.incidents.neighbours import LOCKED

_LINE_BYTES, _NOTE_BYTES, _BLOCK_BYTES = 8_192, 1 << 14, 1 << 19


class Actions:
    """The actions, and what they share.

    Args:
        now: Returns a knob's value at this moment, or another before it takes effect; see `World.now`.
        names: Port of the name server; 0: there is none.
    """

    def __init__(self, now: Callable[[str, Any], Any], names: int = 0) -> None:
        self._now, self._names = now, names
        self._lock = threading.Lock()
        self._kept: list[Any] = []
        self._calls = 0
        self._log: logging.Handler | None = None
        self._large: IO[bytes] | None = None

    def do(self, what: str, much: float = 0.0) -> None:
        """Do one of them; `much` is seconds, bytes or a number, as its method says."""
        getattr(self, what)(much)

    def keep_heap(self, num_objects: int) -> None:
        """Keep objects that the collector looks at each time."""
        self._kept.append([[number] for number in range(num_objects)])

    def start_thread(self, what: str, much: float, pause_seconds: float, *, locked: bool = False) -> None:
        """Do something again and again in a thread of its own; holding the lock of `lock` meanwhile."""
        threading.Thread(target=self._repeat, args=(what, much, pause_seconds, locked), daemon=True).start()

    def _repeat(self, what: str, much: float, pause_seconds: float, locked: bool) -> None:
        while True:
            if locked:
                with self._lock:
                    self.do(what, much)
            else:
                self.do(what, much)
            time.sleep(pause_seconds)

    # --- the actions

    def burn(self, seconds: float) -> None:
        """Compute in C, without the GIL."""
        work.burn(seconds)

    def spin(self, seconds: float) -> None:
        """Compute in Python."""
        work.spin(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait for nothing."""
        time.sleep(seconds)

    def lock(self, _: float) -> None:
        """Wait for a lock that others hold."""
        with self._lock:
            pass

    def collect(self, _: float) -> None:
        """Have Python collect garbage."""
        gc.collect()

    def leak(self, num_bytes: float) -> None:
        """Keep memory for ever."""
        self._kept.append(bytearray(os.urandom(1024) * int(num_bytes / 1024)))

    def disk(self, num_blocks: float) -> None:
        """Write and sync blocks of half a megabyte."""
        with tempfile.NamedTemporaryFile(dir=Path.home()) as file:
            for _ in range(round(num_blocks)):
                file.write(bytes(_BLOCK_BYTES))
                file.flush()
                os.fsync(file.fileno())

    def note(self, _: float) -> None:
        """Write and sync a small file."""
        with tempfile.NamedTemporaryFile(dir=Path.home()) as file:
            file.write(bytes(_NOTE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def match(self, length: float) -> None:
        """Match a text for which a regular expression tries two to the power of its length ways; every fifth call."""
        self._calls += 1
        if self._calls % 5 == 0:
            re.match(r"(a+)+$", "a" * round(length) + "b")

    def name(self, _: float) -> None:
        """Ask the name server."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(str(self._now("names", 0.002)).encode(), ("127.0.0.1", self._names))
            client.recv(64)

    def poll(self, _: float) -> None:
        """Ask the name server, which answers at once, every 20 ms until a service would be done."""
        ends = time.monotonic() + self._now("service", 0.0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            while True:
                client.sendto(b"0", ("127.0.0.1", self._names))
                client.recv(64)
                if time.monotonic() >= ends:
                    return
                time.sleep(0.02)

    def lock_file(self, _: float) -> None:
        """Lock a file that another program may have locked."""
        with LOCKED.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def read(self, num_blocks: float) -> None:
        """Read blocks of half a megabyte of a file that is not in the system's cache."""
        with self._lock:
            file = self._large = self._large or self._make_large()
        for number in range(round(num_blocks)):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES)

    def _make_large(self) -> IO[bytes]:
        file = tempfile.NamedTemporaryFile(dir=Path.home())  # noqa: SIM115 - open until the run is killed
        for _ in range(64):
            file.write(os.urandom(_BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return file

    def run_program(self, _: float) -> None:
        """Start a program and wait for its end."""
        subprocess.run([sys.executable, "-S", "-c", "import json"], check=True)

    def start_threads(self, number: float) -> None:
        """Start threads that do nothing, and wait for their end."""
        threads = [threading.Thread(target=int) for _ in range(round(number))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def touch(self, num_bytes: float) -> None:
        """Write to each page of fresh memory."""
        np.ones(round(num_bytes / 8))

    def build(self, num_objects: float) -> None:
        """Build Python objects that the collector looks at."""
        [{"number": number} for number in range(round(num_objects))]

    def sort(self, num_objects: float) -> None:
        """Sort numbers, without giving Python's lock to anybody meanwhile."""
        numbers = list(map(float, range(round(num_objects))))
        random.shuffle(numbers)
        numbers.sort()

    def stutter(self, seconds: float) -> None:
        """Sleep at every fourth call."""
        self._calls += 1
        if self._calls % 4 == 0:
            time.sleep(seconds)

    def log(self, _: float) -> None:
        """Write a line of a log to a pipe, whose reader takes its time."""
        with self._lock:
            handler = self._log = self._log or self._open_log()
        handler.handle(logging.LogRecord("user", logging.INFO, "", 0, "x" * _LINE_BYTES, None, None))

    def _open_log(self) -> logging.Handler:
        reader, writer = os.pipe()
        threading.Thread(target=self._read_log, args=(reader,), daemon=True).start()
        return logging.StreamHandler(os.fdopen(writer, "w"))

    def _read_log(self, reader: int) -> None:
        while os.read(reader, _LINE_BYTES):
            time.sleep(self._now("reader", 0.0))
