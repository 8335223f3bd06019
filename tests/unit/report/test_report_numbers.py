"""Numbers as people read them, with the exact value beside them."""

from __future__ import annotations

import math

import pytest

from headrace.report.numbers import count, data, digits, scale, seconds, show_value, time_scale


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "seconds", "12.3 ms"),
        (4.5e-5, "seconds", "45.0 µs"),
        (0.0, "seconds", "0 s"),
        (1.5e-8, "seconds", "15.0 ns"),
        (-0.002, "seconds", "\N{MINUS SIGN}2.00 ms"),
        (0.943, "ratio", "94.3 %"),
        (1.25e6, "bytes/s", "1.25 MB/s"),
        (28.4, "items/s", "28.4/s"),
        (7.0, "items", "7"),
        (7.81, "items", "7.81"),
        (1.59e9, "hertz", "1.59 GHz"),
        (9.1e10, "flops/s", "91.0 GFLOP/s"),
        (52.0, "celsius", "52 °C"),
        (1.31, "", "1.31"),
        (1.02, "times", "1.02 times"),
    ],
)
def test_values_have_three_digits_and_a_unit(value: float, unit: str, text: str) -> None:
    """Each unit is written as people write it."""
    assert show_value(value, unit) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_no_number_is_not_shown_as_one(value: float | None) -> None:
    """None, NaN and infinity are "not measured"."""
    assert show_value(value, "seconds") is None
    assert data(value, "bytes") is None


def test_the_exact_value_stands_beside_the_shown_one() -> None:
    """A program reads from the page what was measured, not what was rounded."""
    assert seconds(0.012345678901234567) == f'<data value="{0.012345678901234567!r}">12.3 ms</data>'
    assert count(1234567) == '<data value="1234567">1,234,567</data>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.0123"),
        (4.567, "4.57"),
        (99.5, "99.5"),
        (1234.5, "1,234"),
        (2e-7, "2.00e-07"),
        (-3.14159, "-3.14"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    """Large numbers are whole, small ones keep three digits, tiny ones have a power of ten."""
    assert digits(value) == text


@pytest.mark.parametrize(
    ("values", "factor", "unit"),
    [
        ([0.0005, 0.0012], 1e6, "µs"),
        ([0.004, 0.9], 1e3, "ms"),
        ([3.0], 1.0, "s"),
        ([600.0, None], 1 / 60, "min"),
        ([], 1e6, "µs"),
    ],
)
def test_an_axis_of_times_has_one_unit_that_fits_its_largest_value(
    values: list[float | None], factor: float, unit: str
) -> None:
    """The unit follows the largest value; what was not measured does not count."""
    found = time_scale(values)
    assert found == (pytest.approx(factor), unit)


def test_an_axis_of_bytes_and_of_shares() -> None:
    """Bytes get a prefix, shares become percent."""
    assert scale([4.1e8], "bytes") == (pytest.approx(1e-6), "MB")
    assert scale([0.4], "ratio") == (100.0, "%")
