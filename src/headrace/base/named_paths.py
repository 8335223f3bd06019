"""Paths that a program names: one, or several in a list; what else it may give by mistake is refused by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.base.errors import SettingsError, SourceError
from headrace.base.settings import check

Named = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def read_path(value: object, key: str, *, addresses: str = "") -> Path:
    """Return the path that was named.

    Args:
        value: A text or a path.
        key: What the parameter is called.
        addresses: What to do with an address such as `s3://photos`, for the error; empty: there is nothing else to say.

    Raises:
        SettingsError: If it is another value, or an address.
    """
    is_path = isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)
    check(is_path, key, _shown(value), "a path, as text or pathlib.Path")
    assert isinstance(value, str | os.PathLike)
    if "://" in (text := os.fspath(value)) or (isinstance(value, Path) and _was_address(text)):
        scheme = text.partition(":")[0]
        raise SettingsError(f"{key}: {scheme}://... is an address, and no path of this machine{addresses}")
    return Path(text)


def list_paths(value: object, key: str, *, addresses: str = "") -> list[Path]:
    """Return the path that was named, or those of a list, each once and sorted, as `glob.glob` has another order everywhere.

    Raises:
        SettingsError: If it is empty, or one of them is no path.
    """
    if isinstance(value, str | bytes | os.PathLike | Mapping) or not isinstance(value, Iterable):
        return [read_path(value, key, addresses=addresses)]
    found = sorted({read_path(one, key, addresses=addresses) for one in value})
    check(bool(found), key, "an empty list", "a path, or a list of paths")
    return found


def list_addresses(value: object, schemes: Iterable[str] | None) -> list[str] | None:
    """Return the addresses of these schemes that were named, each once and sorted; None: not all that was named is one.

    Where the schemes are None any text counts.
    """
    named = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    are_addresses = all(
        isinstance(one, str) and (schemes is None or one.partition("://")[0].lower() in schemes) for one in named
    )
    return sorted(set(named)) if named and are_addresses else None


def show_paths(paths: list[Path]) -> str:
    """Return paths for a message: one, or the first and how many others there are."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"


def refuse_unreachable(path: Path) -> None:
    """Raise SourceError if the system does not say whether there is such a file, as in a folder that may not be entered."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass  # a pattern, or nothing at all: the caller says what it expected
    except OSError as error:
        raise SourceError(f"{str(path)[:200]} cannot be read: {error.strerror}") from None


def _shown(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__


def _was_address(text: str) -> bool:
    """Return whether a path was an address: `Path` makes one slash of two."""
    return text.partition(":/")[0] in ("s3", "gs", "az", "http", "https")
