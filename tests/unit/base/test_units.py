"""Quantities as people write and read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.units import format_duration, format_size, parse_duration, parse_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300ms", 0.3),
        ("2s", 2.0),
        (" 1.5 min ", 90.0),
        ("1m", 60.0),
        (".5h", 1800.0),
        ("7us", 7e-6),
        ("80ns", 8e-8),
        ("2S", 2.0),
        ("3m30s", 210.0),
        (" 1h 2.5 min 3s ", 3753.0),
        (3, 3.0),
        (0.25, 0.25),
        (0, 0.0),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    """Text with a unit and bare numbers are durations in seconds."""
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512b", 512),
        ("256MB", 256 * 10**6),
        ("1GiB", 2**30),
        ("1.5 kib", 1536),
        ("2gb", 2 * 10**9),
        ("1.001kB", 1001),
        (64, 64),
        (1e6, 10**6),
    ],
)
def test_sizes(text: str | float, num_bytes: int) -> None:
    """Text with a unit, decimal or binary, and bare numbers are sizes in whole bytes."""
    size = parse_size(text)
    assert size == num_bytes
    assert isinstance(size, int)


BAD = [
    "",
    "5",
    "ms",
    "5 parsecs",
    "-1s",
    "1,5s",
    "1e3s",
    "five s",
    "1s 2s",
    "30s3m",
    "1m 60min",
    "1h" + " " * 50_000 + "!",
    "٣s",
    "9" * 400 + "s",
    None,
    True,
    [1],
    -1,
    10**400,
]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), (".5", 0.5), ("3m30s", 210.0)])
def test_typed_seconds(text: str, seconds: float) -> None:
    """Where seconds are typed a bare number is enough."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("value", [*BAD, float("nan"), float("inf")])
def test_bad_durations(value: object) -> None:
    """What is no duration is refused with what was expected."""
    with pytest.raises(ValueError, match=r"expected a duration such as '300ms'.*got "):
        parse_duration(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("parse", [parse_duration, parse_size])
def test_a_reason_offers_nothing_that_would_be_refused(parse: Callable[[str | float], float]) -> None:
    """Text without its unit is refused, so the reason does not speak of a number; a number is told of one."""
    with pytest.raises(ValueError, match="got '2'") as refused:
        parse("2")
    assert "a number" not in str(refused.value)
    with pytest.raises(ValueError, match="or a number of"):
        parse(-1)


@pytest.mark.parametrize("value", [*(value for value in BAD if value != "9" * 400 + "s"), "1ms", "9" * 400 + "gb"])
def test_bad_sizes(value: object) -> None:
    """What is no size is refused with what was expected; a duration is none."""
    with pytest.raises(ValueError, match=r"expected a size such as '256MB'.*got "):
        parse_size(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (8.5e-4, "850 us"),
        (0.0123, "12.3 ms"),
        (4.56, "4.56 s"),
        (61, "61.0 s"),
        (192, "3.2 min"),
    ],
)
def test_durations_shown(seconds: float, shown: str) -> None:
    """A duration is shown with three digits, in the unit that suits it."""
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"), [(0, "0 B"), (512, "512 B"), (1.25e6, "1.25 MB"), (43_200, "43.2 kB"), (2.56e11, "256 GB")]
)
def test_sizes_shown(num_bytes: float, shown: str) -> None:
    """A size is shown with three digits, in powers of ten."""
    assert format_size(num_bytes) == shown


@given(st.floats(1e-6, 119))
def test_a_shown_duration_can_be_written(seconds: float) -> None:
    """What is shown is read back, to three digits."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.0051)


@given(st.integers(0, 10**12))
def test_a_shown_size_can_be_written(num_bytes: int) -> None:
    """What is shown is read back, to three digits."""
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.0051)
