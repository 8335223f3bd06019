"""Whether a user's function takes what it will be called with, asked before the first item rather than found out with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.origin import place_of


def check_takes(function: Callable[..., Any], arguments: Sequence[str], what: str) -> None:
    """Raise SettingsError unless a function can be called with these arguments, by position.

    A function that does not say what it takes passes: a builtin, a C function, one whose decorator hides it.

    Args:
        function: Of the user's.
        arguments: A name for each, for the message.
        what: Whose function it is, such as `stage clean`, for the message.
    """
    if not callable(function):
        raise SettingsError(f"{what} is {function!r}; expected a function of ({', '.join(arguments)})")
    own, bound = _behind(function)
    signature = _signature(own)
    if signature is None:
        return
    try:
        signature.bind(*[None] * (bound + len(arguments)))
    except TypeError as error:
        name = getattr(own, "__qualname__", type(own).__name__)
        where = place_of(getattr(own, "func", own))
        expected = ["self"] * bound + list(arguments)
        raise SettingsError(
            f"{what}: {name}({', '.join(_parameters(signature))}){f' at {where}' if where else ''} cannot be called with "
            f"({', '.join(expected)}), as it will be: {error}"
        ) from None


def _behind(function: Any) -> tuple[Any, int]:
    """Return the function behind a method or an object that can be called, and how many arguments come in front: `self`."""
    call = function if inspect.ismethod(function) else getattr(function, "__call__", None)  # noqa: B004
    if inspect.ismethod(call) and not isinstance(function, type):
        return call.__func__, 1
    return function, 0


def _signature(function: Any) -> inspect.Signature | None:
    # A decorator may pass more than it gets, and copy what is said of the function within: what counts is the outermost.
    if getattr(function, "__signature__", None) is not None:
        return None
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return None


def _parameters(signature: inspect.Signature) -> list[str]:
    """Return the parameters' names as they are written, without annotations and defaults, which may be long."""
    shown = [str(one.replace(annotation=one.empty, default=one.empty)) for one in signature.parameters.values()]
    keyword_only = [i for i, one in enumerate(signature.parameters.values()) if one.kind is one.KEYWORD_ONLY]
    has_star = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
    if keyword_only and not has_star:
        shown.insert(keyword_only[0], "*")
    return shown
