"""What the machine keeps from being opened waits; what is the file's own is said at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from headrace.base import patient_open
from headrace.base.patient_open import open_patiently


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_open, "_PAUSE_SECONDS", 0.0)


def failing(number: int, times: int, kind: type[OSError] = OSError) -> tuple[Callable[[], str], list[int]]:
    """Return what opens after some failures, and the list of its calls."""
    calls: list[int] = []

    def opening() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise kind(number, os.strerror(number))
        return "open"

    return opening, calls


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_it_waits_for_a_file_handle_however_long(number: int) -> None:
    """Others give theirs back some time."""
    opening, calls = failing(number, 100)
    assert open_patiently(opening, "a file") == "open"
    assert len(calls) == 101


def test_who_holds_files_waits_some_seconds_for_a_handle() -> None:
    """None comes free where all are its own."""
    opening, calls = failing(errno.EMFILE, 100)
    with pytest.raises(OSError, match="Too many open files"):
        open_patiently(opening, "a file", holds_others=True)
    assert len(calls) == 10


def test_it_waits_some_seconds_for_a_disk_that_is_away() -> None:
    """Then it says so."""
    assert open_patiently(failing(errno.ESTALE, 9)[0], "a file") == "open"
    opening, calls = failing(errno.ESTALE, 100)
    with pytest.raises(OSError, match="Stale"):
        open_patiently(opening, "a file")
    assert len(calls) == 10


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_what_is_the_files_own_is_said_at_once(number: int) -> None:
    """Waiting would not help."""
    opening, calls = failing(number, 100)
    with pytest.raises(OSError, match=os.strerror(number)):
        open_patiently(opening, "a file")
    assert len(calls) == 1


def test_a_librarys_own_numbers_mean_damage() -> None:
    """FFmpeg says EIO of a damaged file."""

    class OfLibrary(OSError):
        pass

    opening, calls = failing(errno.EIO, 100, OfLibrary)
    with pytest.raises(OfLibrary):
        open_patiently(opening, "a file", (OfLibrary,))
    assert len(calls) == 1
