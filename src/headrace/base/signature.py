"""Whether a user's function takes what it will be called with, asked before the first item rather than found out with it.

Only what is surely wrong is refused: what has a way of its own to be called, such as a static `__call__`, passes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.error_origin import place_of
from headrace.base.errors import SettingsError


def check_takes(function: Callable[..., Any], arguments: Sequence[str], what: str) -> None:
    """Raise SettingsError unless a function can be called with these arguments, by position, and returns what it computed.

    A function that does not say what it takes passes: a builtin, a C function, one whose decorator hides it. One that is
    `async`, or that yields, does not: nothing waits for what it returns.

    Args:
        function: Of the user's.
        arguments: A name for each, for the message.
        what: Whose function it is, such as `stage clean`, for the message.
    """
    if not callable(function):
        raise SettingsError(f"{what} is {function!r}; expected a function of ({', '.join(arguments)})")
    _check_returns(function, what)
    own, bound = _find_callable(function)
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


def _check_returns(function: Any, what: str) -> None:
    """Raise SettingsError for a function that returns a coroutine or generator when it is called, and has done nothing yet."""
    inner = _unwrap_partial(function)
    if not (inspect.isroutine(inner) or inspect.isclass(inner)):
        inner = type(inner).__call__
    if inspect.iscoroutinefunction(inner):
        kind, advice = "is async, and nothing would await it", "call what it awaits with asyncio.run(...)"
    elif inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        kind, advice = "yields, and nothing would go through what it yields", "return a list"
    else:
        return
    where = place_of(inner)
    raise SettingsError(
        f"{what}: {inner.__qualname__}(){f' at {where}' if where else ''} {kind}; expected a plain function that returns its "
        f"result: {advice}"
    )


def _unwrap_partial(function: Any) -> Any:
    """Return what `functools.partial` was given."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _find_callable(function: Any) -> tuple[Any, int]:
    """Return what says how a function is called, None if nothing surely does; and the arguments that come in front: `self`."""
    inner = _unwrap_partial(function)
    if inspect.ismethod(inner):
        is_sure, own, bound = inspect.isfunction(inner.__func__), inner.__func__, 1
    elif inspect.isclass(inner):
        is_sure, own, bound = type(inner).__call__ is type.__call__, inner, 0
    elif inspect.isroutine(inner):
        is_sure, own, bound = True, inner, 0
    else:
        call = inspect.getattr_static(type(inner), "__call__")
        is_sure, own, bound = inspect.isfunction(call), call, 1
    if inner is function:
        return (own if is_sure else None), bound
    # Python itself works out what a partial leaves over, and is wrong about objects with a `__call__` of another kind.
    return (function if is_sure else None), 0


def _signature(function: Any) -> inspect.Signature | None:
    # A decorator may pass more than it gets, and copy what is said of the function within: what counts is the outermost.
    if function is None or getattr(function, "__signature__", None) is not None:
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
