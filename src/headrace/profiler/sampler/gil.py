"""Where the GIL lies in the memory of a process: inside `_PyRuntime`, the interpreter's one global variable.

A thread that waits for the GIL is blocked in the system call `futex` on an address inside that variable: the GIL's mutex and
condition are fields of `_PyRuntime` (3.11) or of the main interpreter's state, which is itself a field of it (from 3.12).
Sub-interpreters with a GIL of their own (3.12) keep it elsewhere; their waits count as `lock`.

The profiled process finds the variable once, as a distance from the object that holds it (the executable, or libpython). Where
that object is mapped in some other process stands in `/proc/PID/maps`.

Who has the GIL stands in its state, where `switch interval, thread that had it last, whether it has it` follow one another in
all versions since 3.2. Where that is differs, so it is looked for: a thread that looks has the GIL itself, so these three are
known. Two threads that find them in one and the same place, and in no other, have found it.

References:
    CPython: Python/ceval_gil.c, Include/internal/pycore_gil.h, pycore_runtime.h. dladdr1(3). proc_pid_maps(5).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from pathlib import Path

from headrace.profiler.sampler.messages import GilPlace

_RTLD_DL_SYMENT = 1
#: Of a thread's state, which is longer: its two numbers stand in the first half.
_STATE_BYTES = 256


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


def find_gil(*, with_holder: bool = False) -> GilPlace:
    """Return where this process's interpreter has its GIL.

    Args:
        with_holder: Also where it says who has it: for another process, as a thread that asks has it itself.

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
    holder, number = _find_holder(address, size) if with_holder else (None, 0)
    offset = address - _lowest(mappings, *file)
    return GilPlace(device=file[0], inode=file[1], offset=offset, size=size, holder=holder, number=number)


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


def _find_holder(address: int, size: int) -> tuple[int | None, int]:
    """Return `holder` and `number` of `GilPlace`: where two threads find what they know of themselves, and nowhere else."""
    found = [_find_own(address, size)]
    other = threading.Thread(target=lambda: found.append(_find_own(address, size)), name="headrace-gil")
    other.start()
    other.join()
    (holders, numbers), (again, numbers_again) = found
    if holders != again or len(holders) != 1 or numbers != numbers_again or len(numbers) != 1:
        return None, 0
    return holders[0], numbers[0]


def _find_own(address: int, size: int) -> tuple[list[int], list[int]]:
    """Return where in `_PyRuntime` the GIL says that this thread has it, and where in this thread's state its number stands.

    Both calls keep the GIL while they copy.
    """
    own_state = ctypes.pythonapi["PyThreadState_Get"]  # ours alone: as an attribute all share it, with its `restype`
    own_state.restype = ctypes.c_void_p
    state = own_state()
    interval = round(sys.getswitchinterval() * 1e6)
    holders = _find_all(ctypes.string_at(address, size), struct.pack("=QQi", interval, state, 1))
    numbers = _find_all(
        ctypes.string_at(state, _STATE_BYTES), struct.pack("=QQ", threading.get_ident(), threading.get_native_id())
    )
    return [place + 8 for place in holders], [place + 8 for place in numbers]


def _find_all(content: bytes, wanted: bytes) -> list[int]:
    places, place = [], content.find(wanted)
    while place >= 0:
        places.append(place)
        place = content.find(wanted, place + 1)
    return places


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
