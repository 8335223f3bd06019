"""Reads this machine's files and limits; where something cannot be known, the error says why."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.base.handoff import HandoffCost, handoff_cost
from headrace.runs.hardware import Hardware, find_hardware, find_versions

#: Status bit of adjtimex(2): nobody corrects this clock.
_STA_UNSYNC = 0x0040


class CannotTell(Exception):
    """A fact is not known; the message says why."""


class _Timex(ctypes.Structure):
    """The first fields of `struct timex` of adjtimex(2), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 512),
    )  # fmt: skip


def is_clock_synchronized() -> bool:
    """Return whether the kernel says that somebody corrects the wall clock; raises CannotTell where it does not tell."""
    timex = _Timex()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError) as error:
        raise CannotTell(f"the system has no adjtimex: {error}") from None
    if answer < 0:
        raise CannotTell(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return not timex.status & _STA_UNSYNC


def free_and_total_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes that this user may still write to a folder's disk, and the disk's size; raises CannotTell."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        raise CannotTell(f"{folder}: {error.strerror}") from None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


@dataclass(frozen=True)
class Machine:
    """This machine; tests give other roots and answers."""

    root: Path = Path("/")
    """Where `proc`, `sys` and `dev` are."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    folder: Path = Path()
    """Where runs and results are written."""
    disk: Callable[[Path], tuple[int, int]] = free_and_total_bytes
    clock: Callable[[], bool] = is_clock_synchronized
    handoff: Callable[[], HandoffCost] = handoff_cost
    python: str = field(default_factory=platform.python_version)
    packages: Collection[str] = ()
    """Distributions to look for beside those that can change what a run measures."""

    @cached_property
    def hardware(self) -> Hardware:
        """What this process may use of it."""
        return find_hardware(self.root)

    @cached_property
    def versions(self) -> dict[str, str]:
        """{distribution: version} of what is installed."""
        return find_versions(self.packages)

    @cached_property
    def meminfo(self) -> dict[str, int]:
        """{name: bytes} of /proc/meminfo."""
        lines = (line.split() for line in self.text("proc/meminfo").splitlines())
        return {
            words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdecimal()
        }

    def text(self, path: str) -> str:
        """Return what one of the system's files holds; raises CannotTell if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except PermissionError:
            raise CannotTell(f"no permission to read /{path}") from None
        except FileNotFoundError:
            raise CannotTell(f"this system has no /{path}") from None
        except OSError as error:
            raise CannotTell(f"/{path}: {error.strerror}") from None

    def number(self, path: str) -> int:
        """Return the whole number that a file holds; raises CannotTell."""
        text = self.text(path).strip()
        try:
            return int(text)
        except ValueError:
            raise CannotTell(f"/{path} holds {text[:40]!r}, expected a number") from None

    def limit(self, name: str) -> int | None:
        """Return a soft limit of /proc/self/limits; None: there is none."""
        for line in self.text("proc/self/limits").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                with contextlib.suppress(ValueError):
                    return None if soft == "unlimited" else int(soft)
        raise CannotTell(f"/proc/self/limits does not name {name!r}")

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""
        try:
            return (self.root / path).exists()
        except OSError:
            return False
