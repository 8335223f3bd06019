"""Where in the user's code an error comes from: file, line and a short traceback, in a form that can be kept.

An exception's own traceback holds the frames, and with them the item and all that was computed from it. What is taken from it
here is text: the frames of the user's code and of what it called, without headrace's own, and never their variables.
"""

from __future__ import annotations

import contextlib
import linecache
import traceback
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.base.formatting import encodable
from headrace.base.redaction import hide_secrets_in_text

#: Frames of a traceback that are shown: a recursion without end has a thousand. The first and the last say most.
MOST_FRAMES = 12
#: Characters of a traceback: a line of code may be long.
MOST_CHARACTERS = 4_000

#: As frames name their files: where the way to it leads through a link, by that link.
_OWN_FOLDER = f"{Path(__file__).parent.parent}/"
_STANDARD_FOLDER = f"{Path(traceback.__file__).parent}/"
#: Python's own machinery of imports, which says nothing.
_FROZEN = "<frozen "


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an error was raised, as far as the user's code had a part in it."""

    error: str
    """Type of the exception, such as `AttributeError`."""
    file: str
    """The innermost file of the user's own code: none of an installed package where there is a choice."""
    line: int
    function: str
    traceback: str = ""
    """The frames as Python shows them, the innermost last; empty where they are kept elsewhere."""

    @property
    def place(self) -> str:
        """File and line, as editors and terminals take them."""
        return f"{self.file}:{self.line}"

    @property
    def key(self) -> tuple[str, str, int]:
        """What errors of one kind have in common."""
        return self.error, self.file, self.line

    def brief(self) -> Origin:
        """Return the same without the frames."""
        return Origin(self.error, self.file, self.line, self.function)


def text_of(error: BaseException) -> str:
    """Return type and message of an exception, without secrets in it; the type alone where there is none."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException as second:  # the user's own `__str__`, which may be as broken as the rest
        return f"{name} (its message cannot be shown: {type(second).__name__} in __str__)"
    return f"{name}: {hide_secrets_in_text(message)}" if message else name


def describe(error: BaseException, origin: Origin | None) -> str:
    """Return type, message and place of an exception, in one line where its message is one."""
    return text_of(error) if origin is None else f"{text_of(error)} ({origin.place})"


def is_of_user(error: BaseException) -> bool:
    """Return whether an exception was raised by the user's code, or by what it called, rather than by headrace."""
    for frame in reversed([frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]):
        if frame.startswith(_OWN_FOLDER):
            return False
        if not _is_installed(frame) and not frame.startswith(_FROZEN):
            return True
    return False


def find_origin(error: BaseException, *, own_too: bool = False) -> Origin | None:
    """Return where an exception comes from; None where no code but headrace's had a part in it.

    Args:
        error: As raised; its traceback must still be there.
        own_too: Where that is so, return headrace's own place instead of None. Not the place that caught it: what is raised
            there comes from a function without frames (a builtin, a library in C), or from a call that never got into one.
    """
    frames = [
        _Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_FROZEN)
    ]
    outside = [frame for frame in frames if not frame.file.startswith(_OWN_FOLDER)]
    if not own_too and all(_is_standard(frame.file) for frame in outside):
        return None  # headrace's own error, by way of a Future of the standard library
    shown = outside or (frames[1:] if own_too else [])
    if not shown:
        return None
    place = next((frame for frame in reversed(shown) if not _is_installed(frame.file)), shown[-1])
    return Origin(type(error).__name__, _short(place.file), place.line, place.function, _format_frames(shown))


def place_of(function: object) -> str:
    """Return file and line where a function is defined; empty where there is no Python code."""
    code = getattr(function, "__code__", None)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code else ""


def _is_installed(file: str) -> bool:
    return _is_package(file) or "/lib/python3" in file


def _is_standard(file: str) -> bool:
    return file.startswith(_STANDARD_FOLDER) and not _is_package(file)


def _is_package(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


def _short(file: str) -> str:
    """Return a path as seen from the working folder, where it is below it."""
    with contextlib.suppress(ValueError, OSError):  # elsewhere; or the working folder is gone
        file = str(Path(file).relative_to(Path.cwd()))
    return encodable(file)


def _format_frames(frames: list[_Frame]) -> str:
    half = MOST_FRAMES // 2
    if len(frames) > MOST_FRAMES:
        left_out = f"  ... {len(frames) - MOST_FRAMES} more frames ..."
        lines = [*map(_format_frame, frames[:half]), left_out, *map(_format_frame, frames[-half:])]
    else:
        lines = list(map(_format_frame, frames))
    text = "\n".join(lines)
    text = hide_secrets_in_text(encodable(text))  # lines of code may hold the same text as the message
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _format_frame(frame: _Frame) -> str:
    where = f'  File "{_short(frame.file)}", line {frame.line}, in {frame.function}'
    code = linecache.getline(frame.file, frame.line).strip()
    return f"{where}\n    {code}" if code else where
