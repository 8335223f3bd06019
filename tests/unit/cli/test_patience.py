"""What a command says while it takes long."""

from __future__ import annotations

import threading

from headrace.cli.patience import patience


def test_what_takes_long_is_said() -> None:
    """A line says what is done and for how long, while it is done."""
    lines: list[object] = []
    spoken = threading.Event()

    def speak(line: object) -> None:
        lines.append(line)
        spoken.set()

    with patience("diagnose", "simulating the run", first_seconds=0.0, speak=speak):
        assert spoken.wait(60)
    assert str(lines[0]).startswith("simulating the run; ")


def test_what_is_over_soon_is_not_said() -> None:
    """Nothing is said of what is over before its time."""
    lines: list[object] = []
    with patience("diagnose", "simulating the run", first_seconds=3600.0, speak=lines.append):
        pass
    assert lines == []
