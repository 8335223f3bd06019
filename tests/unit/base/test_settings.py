"""Tables of a file as settings records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from headrace.base.errors import SettingsError
from headrace.base.settings import build, check


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field of every type."""

    workers: int = 1
    ratio: float = 0.5
    name: str | None = None
    mode: Literal["auto", "full"] = "auto"
    on: bool = False
    wait_seconds: float = 0.0
    limit_seconds: float | None = None
    max_bytes: int = 10
    options: dict[str, Any] = field(default_factory=dict)
    anything: Any = None

    def __post_init__(self) -> None:
        """Check one value."""
        check(self.workers >= 1, "workers", self.workers, "a whole number >= 1")


def test_every_type() -> None:
    """Values of the right types are taken; quantities may carry a unit."""
    table = {
        "workers": 3,
        "ratio": 1,
        "name": "x",
        "mode": "full",
        "on": True,
        "wait_seconds": "300ms",
        "limit_seconds": 2,
        "max_bytes": "1kB",
        "options": {"a": 1},
        "anything": [1],
    }
    built = build(Settings, table, "[here]")
    assert built == Settings(**{**table, "wait_seconds": 0.3, "max_bytes": 1000})


def test_what_is_left_out_has_its_default() -> None:
    """An empty table gives the defaults."""
    assert build(Settings, {}, "[here]") == Settings()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("workers", "3", "a whole number"),
        ("workers", 3.0, "a whole number"),
        ("workers", True, "a whole number"),
        ("ratio", "x", "a number"),
        ("ratio", False, "a number"),
        ("name", 5, "text"),
        ("mode", "half", "'auto' or 'full'"),
        ("mode", ["auto"], "'auto' or 'full'"),
        ("on", 1, "true or false"),
        ("on", "yes", "true or false"),
        ("options", [1], "a table"),
    ],
)
def test_wrong_types(key: str, value: object, expected: str) -> None:
    """The error names place, key, value and the type expected."""
    with pytest.raises(SettingsError) as caught:
        build(Settings, {key: value}, "[here]")
    assert str(caught.value) == f"[here]: {key} = {value!r} has the wrong type; expected {expected}"


@pytest.mark.parametrize(
    ("key", "value"), [("wait_seconds", "soon"), ("limit_seconds", -1), ("max_bytes", "1s"), ("wait_seconds", True)]
)
def test_wrong_quantities(key: str, value: object) -> None:
    """The error names place, key, value and an example."""
    with pytest.raises(SettingsError, match=rf"^\[here\]: {key} = {value!r}: expected a (duration|size) such as "):
        build(Settings, {key: value}, "[here]")


def test_an_impossible_value_names_its_place() -> None:
    """The record's own check is told with the place in the file."""
    with pytest.raises(SettingsError) as caught:
        build(Settings, {"workers": 0}, "[here]")
    assert str(caught.value) == "[here]: workers = 0 is not possible; allowed: a whole number >= 1"


def test_an_unknown_key_names_the_nearest() -> None:
    """A mistyped key is an error with the one that was meant, and all that exist."""
    with pytest.raises(SettingsError) as caught:
        build(Settings, {"wrokers": 3}, "[here]")
    assert str(caught.value).startswith("[here]: unknown key 'wrokers'. Did you mean 'workers'? Allowed: anything, ")


def test_an_unknown_key_far_from_all_names_all() -> None:
    """Where nothing is near nothing is guessed."""
    with pytest.raises(SettingsError, match=r"unknown key 'zzz'\. Allowed: "):
        build(Settings, {"zzz": 3}, "[here]")


@pytest.mark.parametrize("table", [5, "x", [1], None])
def test_not_a_table(table: object) -> None:
    """A value where a table belongs is an error that shows it."""
    with pytest.raises(SettingsError, match=r"\[here\] must be a table, got "):
        build(Settings, table, "[here]")
