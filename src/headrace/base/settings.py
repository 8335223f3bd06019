"""Turns tables of a file into settings records, with errors that name the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.base.errors import SettingsError
from headrace.base.units import parse_duration, parse_size

T = TypeVar("T")

#: Longest time that a setting may ask for: what waits for a child process or a server takes no more than 24 days.
MAX_SECONDS = 1_000_000
#: Names that an error lists in full, and how many it lists of more.
_MOST_LISTED, _NEAREST = 30, 5


def check(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise SettingsError that names key, value and what is allowed unless the condition holds."""
    if not condition:
        raise SettingsError(f"{key} = {value!r} is not possible; allowed: {allowed}")


def list_names(names: Sequence[str], wanted: str) -> str:
    """Return the names that are known, for an error: all, or the nearest to the wanted one and how many others there are."""
    if len(names) <= _MOST_LISTED:
        return ", ".join(names)
    near = difflib.get_close_matches(wanted, names, n=_NEAREST, cutoff=0.0)
    return f"{', '.join(near)} and {len(names) - len(near):,} others"


def unknown_key(key: str, where: str, allowed: Iterable[str]) -> SettingsError:
    """Return the error for a key that does not exist, with the nearest that does."""
    names = sorted(allowed)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"{where}: unknown key {key!r}.{hint} Allowed: {list_names(names, key) or 'none'}.")


def refuse_options(options: Mapping[str, Any], stage: str) -> None:
    """Raise SettingsError if a stage that has no options of its own is given some: they would be lost in silence."""
    for key in options:
        raise unknown_key(key, f"[stages.{stage}.options]", ())


def build(cls: type[T], table: object, where: str) -> T:
    """Return the settings record `cls` filled from a table.

    Values of keys that end in `seconds` or `bytes` may be written with a unit (`"300ms"`, `"256MB"`).

    Args:
        cls: A dataclass whose `__post_init__` checks values.
        table: What the file holds at this place.
        where: Its name in the file, such as `[stages.fetch]`, for errors.

    Raises:
        SettingsError: If a key is unknown, a value has the wrong type or is impossible.
    """
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} must be a table, got {table!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise unknown_key(str(key), where, fields)
        parse = _parser(key)
        if parse:
            try:
                parsed = parse(value)
            except ValueError as error:
                raise SettingsError(f"{where}: {key} = {value!r}: {error}") from None
            if parse is parse_duration and parsed > MAX_SECONDS:
                raise SettingsError(
                    f"{where}: {key} = {value!r} is too long; allowed: up to {MAX_SECONDS:,} s (11 days)"
                )
            value = parsed
        if not _fits(value, fields[key]):
            raise SettingsError(f"{where}: {key} = {value!r} has the wrong type; expected {_readable(fields[key])}")
        values[key] = value
    try:
        return cls(**values)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def _parser(key: str) -> Callable[[Any], float] | None:
    return parse_duration if key.endswith("seconds") else parse_size if key.endswith("bytes") else None


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:  # of one type, any length; a file writes it as a list
        return isinstance(value, list | tuple) and all(_fits(part, arguments[0]) for part in value)
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _readable(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_readable(option) for option in arguments if option is not type(None))
    if origin is typing.Literal:
        return " or ".join(repr(option) for option in arguments)
    if origin is tuple:
        return f"a list of {'whole numbers' if arguments[0] is int else _readable(arguments[0])}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if origin is list:
        return f"a list of {'whole numbers' if arguments == (int,) else 'texts'}"
    return names.get(
        hint, "a table" if origin in (dict, Mapping) or hint is dict else getattr(hint, "__name__", str(hint))
    )
