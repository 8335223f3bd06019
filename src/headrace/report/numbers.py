"""Numbers as the report shows them: three digits and a unit, the exact value beside it for whoever reads by program.

None means "not measured" and stays None: the table shows a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from headrace.base.units import format_duration, format_size, format_time
from headrace.report.markup import DASH, Html, tag

#: How each unit of a `formats.profile.Series` is written.
_WRITTEN: dict[str, Callable[[float], str]] = {
    "ratio": lambda value: f"{value:.1%}".replace("%", " %"),
    "bytes": lambda value: _write_signed(format_size, value),
    "bytes/s": lambda value: f"{_write_signed(format_size, value)}/s",
    "seconds": lambda value: _write_signed(_duration, value),
    "items": lambda value: _whole_or_digits(value),
    "count": lambda value: _whole_or_digits(value),
    "items/s": lambda value: f"{digits(value)}/s",
    "1/s": lambda value: f"{digits(value)}/s",
    "celsius": lambda value: f"{value:.0f} °C",
    "watts": lambda value: f"{digits(value)} W",
    "hertz": lambda value: f"{add_prefix(value)}Hz",
    "flops": lambda value: f"{add_prefix(value)}FLOP",
    "flops/s": lambda value: f"{add_prefix(value)}FLOP/s",
}


def show_value(value: float | None, unit: str) -> str | None:
    """Return a value with its unit as text; None for what was not measured or is not a number."""
    if value is None or not math.isfinite(value):
        return None
    if unit in _WRITTEN:
        return _WRITTEN[unit](value)
    return f"{digits(value)} {unit}".rstrip()


def data(value: float | None, unit: str) -> Html | None:
    """Return `<data value="0.0123">12.3 ms</data>`: as people read it, with the exact value for programs."""
    text = show_value(value, unit)
    return None if text is None else tag("data", text, value=repr(value))


def seconds(value: float | None) -> Html | None:
    """Return a time."""
    return data(value, "seconds")


def moment(unix_seconds: float) -> Html:
    """Return when something was, for a cell that is not to break it into lines."""
    return tag("time", format_time(unix_seconds))


def count(value: int | float | None) -> Html | None:
    """Return a whole number with separators."""
    return None if value is None else tag("data", f"{value:,.0f}", value=repr(value))


def ratio(value: float | None) -> Html | None:
    """Return a share as percent."""
    return data(value, "ratio")


def rate(value: float | None) -> Html | None:
    """Return items per second."""
    return data(value, "items/s")


def size(value: float | None) -> Html | None:
    """Return bytes."""
    return data(value, "bytes")


def digits(value: float) -> str:
    """Return a number with three significant digits, whole above a hundred: `0.0123`, `78.9`, `1,234`; a dash for NaN."""
    magnitude = abs(value)
    if not math.isfinite(value):
        return DASH
    if magnitude >= 1e15 or 0 < magnitude < 1e-4:
        return f"{value:.2e}"
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude == 0:
        return "0"
    return f"{value:.{2 - math.floor(math.log10(magnitude))}f}"


def add_prefix(value: float) -> str:
    """Return a number with an SI prefix before the unit that follows: `1.82 G`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{digits(value / scale)} {prefix}"
    return f"{digits(value)} "


def time_scale(values: Iterable[float | None]) -> tuple[float, str]:
    """Return (factor, unit) that makes these seconds easy to read on one axis."""
    return _scale(values, ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min")), above=2.0)


def scale(values: Iterable[float | None], unit: str) -> tuple[float, str]:
    """Return (factor, unit) for an axis of values in `unit`; each value is to be multiplied by the factor."""
    if unit == "seconds":
        return time_scale(values)
    if unit == "ratio":
        return 100.0, "%"
    prefixes = {
        "bytes": ("B", "kB", "MB", "GB"),
        "bytes/s": ("B/s", "kB/s", "MB/s", "GB/s"),
        "hertz": ("Hz", "kHz", "MHz", "GHz"),
    }
    if unit in prefixes:
        return _scale(values, tuple((1000.0**power, name) for power, name in enumerate(prefixes[unit])), above=1.0)
    return 1.0, {"celsius": "°C", "watts": "W", "count": ""}.get(unit, unit)


def _scale(values: Iterable[float | None], units: tuple[tuple[float, str], ...], above: float) -> tuple[float, str]:
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    chosen = units[0]
    for size_of_unit, name in units:
        if largest >= above * size_of_unit:
            chosen = (size_of_unit, name)
    return 1 / chosen[0], chosen[1]


def _duration(seconds: float) -> str:
    if 0 < seconds < 1e-7:
        return f"{digits(seconds * 1e9)} ns"
    return format_duration(seconds).replace(" us", " µs") if seconds else "0 s"


def _whole_or_digits(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else digits(value)


def _write_signed(write: Callable[[float], str], value: float) -> str:
    return f"\N{MINUS SIGN}{write(-value)}" if value < 0 else write(value)
