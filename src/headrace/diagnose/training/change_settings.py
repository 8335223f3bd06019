"""Changes of a training, by the keys that users type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.settings import unknown_key
from headrace.base.units import parse_bandwidth, parse_duration, parse_size
from headrace.diagnose.training.simulation_needs import LOADING, PER_BATCH, PER_STEP
from headrace.runs.formats.prediction import Change

#: Parts of a training that `--speedup` and `--drop` name.
NAMES = tuple(str(one) for one in (*PER_BATCH, *PER_STEP[:3], *LOADING))
#: Loader processes more than this are a slip of the hand.
_MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingChange:
    """The settings of a change, checked; None: as recorded."""

    workers: int | None = None
    prefetch: int | None = None
    in_order: bool | None = None
    persistent: bool | None = None
    batch: int | None = None
    accumulate: int | None = None
    cache: str | None = None
    format: str | None = None
    ranks: int | None = None
    bandwidth: float | None = None
    latency: float | None = None
    byte_cpu: float | None = None
    message_cpu: float | None = None
    bucket: int | None = None
    gradients: str | None = None

    @property
    def link(self) -> tuple[float | None, ...]:
        """What is said of the link between ranks."""
        return self.bandwidth, self.latency, self.byte_cpu, self.message_cpu


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return parse


def _yes_or_no(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError("expected true or false")
    return known[text.lower()]


def _in_memory(text: str) -> str:
    if text != "ram":
        raise ValueError("expected ram: each item is kept in memory once it was read and decoded")
    return text


def _named(text: str) -> str:
    if not text:
        raise ValueError("expected a format such as tar")
    return text


def _half(text: str) -> str:
    if text not in ("bfloat16", "float16"):
        raise ValueError("expected bfloat16 or float16: gradients are exchanged in two bytes each")
    return text


def _bucket(text: str) -> int:
    if not (found := parse_size(int(text) if text.isdecimal() else text)):
        raise ValueError("expected a size above 0 such as 25MB")
    return found


def _seconds_per_gigabyte(text: str) -> float:
    return parse_duration(text) / 1e9


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "loader.workers": ("workers", _whole(0, _MOST_WORKERS)),
    "loader.prefetch": ("prefetch", _whole(1, 4096)),
    "loader.in_order": ("in_order", _yes_or_no),
    "loader.persistent": ("persistent", _yes_or_no),
    "batch": ("batch", _whole(1, 10**7)),
    "accumulate": ("accumulate", _whole(1, 10**5)),
    "cache": ("cache", _in_memory),
    "format": ("format", _named),
    "ranks": ("ranks", _whole(1, 65_536)),
    "link.bandwidth": ("bandwidth", parse_bandwidth),
    "link.latency": ("latency", parse_duration),
    "link.cpu": ("byte_cpu", _seconds_per_gigabyte),
    "link.message_cpu": ("message_cpu", parse_duration),
    "bucket": ("bucket", _bucket),
    "gradients": ("gradients", _half),
}
#: Keys of `--set` for a run whose unit is `step`.
KEYS = tuple(_PARSERS)


def parse_change(change: Change) -> TrainingChange:
    """Return the settings of a change, and check what it speeds up or drops.

    Raises:
        SettingsError: If a key or name is not one of a training, or a value is impossible.
    """
    found: dict[str, Any] = {}
    for setting in change.settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in _PARSERS:
            raise unknown_key(key, "--set: keys of a training run", KEYS)
        if not equals:
            raise SettingsError(f"--set {setting}: expected {key}=VALUE")
        name, parse = _PARSERS[key]
        try:
            found[name] = parse(value)
        except ValueError as error:
            raise SettingsError(f"--set {setting}: {error}") from None
    for name in (*change.speedups, *change.drop):
        if name not in NAMES:
            raise unknown_key(name, "--speedup and --drop: parts of a training", NAMES)
    return TrainingChange(**found)
