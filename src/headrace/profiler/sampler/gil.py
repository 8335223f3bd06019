"""Where the GIL lies in the memory of a process: inside `_PyRuntime`, the interpreter's one global variable.

A thread that waits for the GIL is blocked in the system call `futex` on an address inside that variable: the GIL's mutex and
condition are fields of `_PyRuntime` (3.11) or of the main interpreter's state, which is itself a field of it (from 3.12).
Sub-interpreters with a GIL of their own (3.12) keep it elsewhere; their waits count as `lock`.

The profiled process finds the variable once, as a distance from the object that holds it (the executable, or libpython). Where
that object is mapped in some other process stands in `/proc/PID/maps`.

References:
    CPython: Python/ceval_gil.c, Include/internal/pycore_runtime.h. dladdr1(3). proc_pid_maps(5).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from headrace.profiler.sampler.messages import GilPlace

_RTLD_DL_SYMENT = 1


class GilNotFound(Exception):
    """Why waiting for the GIL cannot be told from waiting for another lock."""


class _DlInfo(ctypes.Structure):
    """`Dl_info` of dladdr1(3)."""

    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


class _Symbol(ctypes.Structure):
    """`Elf64_Sym` of elf(5)."""

    _fields_ = (
        ("st_name", ctypes.c_uint32),
        ("st_info", ctypes.c_ubyte),
        ("st_other", ctypes.c_ubyte),
        ("st_shndx", ctypes.c_uint16),
        ("st_value", ctypes.c_uint64),
        ("st_size", ctypes.c_uint64),
    )


def find_gil() -> GilPlace:
    """Return where this process's interpreter has its GIL.

    Raises:
        GilNotFound: If it has none, or does not tell.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise GilNotFound("this Python runs without a GIL (free-threaded)")
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        raise GilNotFound("only 64-bit Pythons are known")
    address, size, object_base = _runtime_variable()
    mappings = _mappings(os.getpid())
    # By the object's base, not by the address: the variable may lie in the object's .bss, which is a mapping without a file.
    file = next(((device, inode) for start, _, device, inode in mappings if start == object_base and inode), None)
    if file is None:
        raise GilNotFound("the object that defines _PyRuntime has no mapping with a file in /proc/self/maps")
    return GilPlace(device=file[0], inode=file[1], offset=address - _lowest(mappings, *file), size=size)


def gil_range(place: GilPlace, process: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Return the first address of `_PyRuntime` in a process and the first after it, or None if it is no such interpreter.

    Raises:
        OSError: If the process's mappings cannot be read.
    """
    try:
        start = _lowest(_mappings(process, proc), place.device, place.inode) + place.offset
    except ValueError:
        return None
    return start, start + place.size


def _lowest(mappings: list[tuple[int, int, str, int]], device: str, inode: int) -> int:
    return min(start for start, _, *file in mappings if file == [device, inode])


def _runtime_variable() -> tuple[int, int, int]:
    """Return address and size of `_PyRuntime` in this process, and where the object that defines it is mapped."""
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except ValueError:
        raise GilNotFound(f"{sys.executable} does not export its variable _PyRuntime") from None
    info, symbol = _DlInfo(), ctypes.POINTER(_Symbol)()
    try:
        dladdr1 = ctypes.CDLL(None).dladdr1
    except AttributeError:
        raise GilNotFound("the C library has no dladdr1 (glibc has)") from None
    found = dladdr1(ctypes.c_void_p(address), ctypes.byref(info), ctypes.byref(symbol), _RTLD_DL_SYMENT)
    if not found or not symbol or info.dli_saddr != address or not symbol.contents.st_size:
        raise GilNotFound(f"the dynamic linker does not tell the size of _PyRuntime in {sys.executable}")
    return address, symbol.contents.st_size, info.dli_fbase


def _mappings(process: int, proc: Path = Path("/proc")) -> list[tuple[int, int, str, int]]:
    """Return (start, end, device, inode) of each mapping."""
    found = []
    with (proc / str(process) / "maps").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            addresses, _, _, device, inode = line.split(maxsplit=5)[:5]
            start, end = addresses.split("-")
            found.append((int(start, 16), int(end, 16), device, int(inode)))
    return found
