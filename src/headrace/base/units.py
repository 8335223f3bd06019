"""Quantities as people write them in a Plan or on a command line, and as they read them in a table."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Mapping

_DURATIONS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_BITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*([a-zA-Z]+)\s*")
# Space is matched in one place only between two parts: strangers' text comes here.
_SUM = re.compile(rf"\s*(?:{_NUMBER}\s*[a-zA-Z]+\s*){{2,}}")


def parse_duration(text: str | float) -> float:
    """Return seconds from a number of seconds or from text such as `300ms`, `2s`, `1.5 min`, `3m30s`.

    Raises:
        ValueError: If the text is not a duration or the value is negative or not finite.
    """
    # A text without its unit is refused: the reason must not offer a number.
    expected = "a duration such as '300ms', '2s', '3m30s'" + (
        "" if isinstance(text, str) else " or a number of seconds"
    )
    if not isinstance(text, str) or not _SUM.fullmatch(text):
        return _parse(text, _DURATIONS, expected)
    parts = [match[0] for match in _QUANTITY.finditer(text)]
    units = [_parse(f"1{match[2]}", _DURATIONS, expected) for match in _QUANTITY.finditer(text)]
    if any(later >= before for before, later in itertools.pairwise(units)):
        raise ValueError(f"expected {expected}, the longest unit first and each once, got {text!r}")
    return sum(_parse(part, _DURATIONS, expected) for part in parts)


def parse_seconds(text: str) -> float:
    """Return seconds from what is typed where seconds are meant: as `parse_duration`, and a bare number such as `90` too.

    Raises:
        ValueError: If the text is not a duration.
    """
    return parse_duration(float(text) if _is_number(text) else text)


def parse_size(text: str | float) -> int:
    """Return bytes from a number of bytes or from text such as `256MB` (10^6) or `1GiB` (2^30).

    Raises:
        ValueError: If the text is not a size or the value is negative or not finite.
    """
    expected = "a size such as '256MB', '1GiB'" + ("" if isinstance(text, str) else " or a number of bytes")
    return round(_parse(text, _SIZES, expected))  # round: 1.001 * 1000 is a little less than 1001


def parse_bandwidth(text: str | float) -> float:
    """Return bytes per second from a number of them or from text such as `100MB/s`, `1GiB/s`, `10Gbit/s`.

    Raises:
        ValueError: If the text is no bandwidth, or it is not above 0.
    """
    expected = "a bandwidth above 0 such as '100MB/s', '10Gbit/s' or a number of bytes per second"
    given = text.strip().removesuffix("/s").strip() if isinstance(text, str) else text
    value = _parse(float(given) if _is_number(given) else given, _SIZES | _BITS, expected)
    if not value:
        raise ValueError(f"expected {expected}, got {text!r}")
    return value


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.replace(".", "", 1).isdecimal() and text.isascii()


def _parse(text: str | float, scale: Mapping[str, float], expected: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        try:
            value = float(text)
        except OverflowError:
            value = float("inf")
    else:
        match = _QUANTITY.fullmatch(str(text))
        if not match or match[2].lower() not in scale:
            raise ValueError(f"expected {expected}, got {text!r}")
        value = float(match[1]) * scale[match[2].lower()]
    if not 0 <= value < float("inf"):
        raise ValueError(f"expected {expected} that is not negative, got {text!r}")
    return value


def format_duration(seconds: float | None) -> str:
    """Return seconds as people read them: `850 us`, `12.3 ms`, `4.56 s`, `3.2 min`; `-` for None, which is not measured."""
    if not seconds:
        return "-" if seconds is None else "0"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds * 1e6)} us"


def format_size(num_bytes: float | None) -> str:
    """Return bytes as people read them, in powers of ten: `512 B`, `1.25 MB`; `-` for None, which is not measured."""
    if num_bytes is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{_three_digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} B"


def format_number(value: float | None) -> str:
    """Return three significant digits, more where the number is large: `0.0116`, `8.68`, `1,234`; `-` for None."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_rate(per_second: float | None) -> str:
    """Return a rate as people read it: `833/s`, `0.0116/s`; `-` for None."""
    return "-" if per_second is None else f"{format_number(per_second)}/s"


def format_time(unix_seconds: float) -> str:
    """Return a moment in this machine's time zone, to the minute: `2026-11-22 18:05`."""
    return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
