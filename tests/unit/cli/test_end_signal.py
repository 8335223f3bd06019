"""SIGTERM as Ctrl-C."""

from __future__ import annotations

import signal

import pytest

from headrace.cli.end_signal import ended_by_sigterm


def test_sigterm_interrupts_what_measures_and_nothing_after_it() -> None:
    """What was measured is kept as after Ctrl-C; behind the measurement SIGTERM is what it was."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
