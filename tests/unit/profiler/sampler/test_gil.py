"""Where the GIL lies in a real process."""

from __future__ import annotations

import ctypes
import os
import sys

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
