"""Where the GIL lies in a real process."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

import pytest

from headrace.profiler.sampler.gil import GilNotFound, find_gil, gil_range


def test_the_runtime_variable_is_found_in_this_process() -> None:
    """The range begins at the address that the dynamic linker gives _PyRuntime."""
    found = gil_range(find_gil(), os.getpid())
    assert found is not None
    address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    assert found[0] == address
    # It holds the state of the main interpreter, at least from 3.11 on; `sizeof` is about 160 KiB there.
    assert 10_000 < found[1] - found[0] < 10_000_000


def test_a_python_without_a_gil_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free-threaded Python has no GIL to wait for."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(GilNotFound, match="free-threaded"):
        find_gil()


def test_who_has_the_gil_is_found_in_this_process() -> None:
    """A thread that copies the place while it has the GIL finds its own state there, and in it its own number."""
    place = find_gil(with_holder=True)
    found = gil_range(place, os.getpid())
    assert found is not None
    assert place.holder is not None
    state, has_it = struct.unpack("=Qi", ctypes.string_at(found[0] + place.holder, 12))
    (number,) = struct.unpack("=Q", ctypes.string_at(state + place.number, 8))
    assert (number, has_it) == (threading.get_native_id(), 1)


def test_looking_for_it_leaves_the_functions_of_ctypes_as_they_are() -> None:
    """The program that is profiled may use the same one, with a type of its own."""
    shared = ctypes.pythonapi.PyThreadState_Get
    before, shared.restype = shared.restype, ctypes.c_ssize_t
    try:
        find_gil(with_holder=True)
        assert shared.restype is ctypes.c_ssize_t
    finally:
        shared.restype = before


def test_another_switch_interval_is_no_hindrance() -> None:
    """The place is found by the interval that holds now."""
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.0012)
        assert find_gil(with_holder=True).holder is not None
    finally:
        sys.setswitchinterval(before)


def test_who_has_it_is_not_looked_for_unasked() -> None:
    """A thread of the process itself that asks has it, so it need not know."""
    assert find_gil().holder is None
