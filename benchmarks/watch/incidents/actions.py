"""What a stage, or a thread beside the stages, can do in an incident; one method each."""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import work

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
