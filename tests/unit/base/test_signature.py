"""Whether a user's function takes what it will be called with."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.signature import check_takes


def injecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds an argument, and whose own signature is that of the one within."""

    @functools.wraps(function)
    def outer(*args: Any) -> Any:
        return function("session", *args)

    return outer


@injecting
def looked_up(session: Any, value: Any) -> Any:
    """Take more than it is called with."""
    return session, value


class Scaled:
    """Callable by its instances, with methods of each kind."""

    def __call__(self, value: Any, scale: int = 2) -> Any:
        """Take one value."""
        return value, scale

    def of_two(self, value: Any, scale: int) -> Any:
        """Take two."""
        return value, scale

    def without_self(value: Any) -> Any:  # type: ignore[misc]  # noqa: N805 - the mistake itself
        """Forget `self`."""
        return value

    def of_nothing() -> Any:  # type: ignore[misc]
        """Forget everything."""

    @staticmethod
    def static(value: Any) -> Any:
        """Take one value."""
        return value

    @classmethod
    def of_class(cls, value: Any) -> Any:
        """Take one value."""
        return value


def named_only(value: Any, *, scale: int) -> Any:
    """Need an argument by its name."""
    return value, scale


def declared(*args: Any) -> Any:
    """Say something of itself that is not so, as decorators of libraries do."""
    return args


declared.__signature__ = inspect.Signature()  # type: ignore[attr-defined]


class Static:
    """Called without itself."""

    @staticmethod
    def __call__(value: Any) -> Any:
        """Take one value."""
        return value


class OfClass:
    """Called with its class."""

    @classmethod
    def __call__(cls, value: Any) -> Any:
        """Take one value."""
        return value


class Indirect:
    """Called by way of an object of another class."""

    __call__ = Scaled()


class OfPartial:
    """Called by way of a partial, which is no method."""

    __call__ = functools.partial(named_only, scale=1)


def positional(value: Any, /) -> Any:
    """Take one value."""
    return value


TAKES_ONE: list[Any] = [
    Static(), OfClass(), Indirect(), OfPartial(), functools.partial(Static()), functools.partial(Scaled(), scale=3),
    functools.partial(OfClass()), types.MethodType(Scaled(), 1), positional,
    looked_up, declared, Scaled(), Scaled.static, Scaled().static, Scaled.of_class, Scaled().of_class,
    functools.partial(operator.add, 1), functools.partial(named_only, scale=1), lambda value, other=1: (value, other),
    lambda *args: args, len, int, str, np.exp, np.mean, [].append, operator.itemgetter(0), functools.lru_cache(looked_up),
]  # fmt: skip


@pytest.mark.parametrize("function", TAKES_ONE)
def test_what_takes_it_passes(function: Any) -> None:
    """Builtins, C functions, partials, objects and whatever hides its parameters are left to the first call."""
    check_takes(function, ("value",), "stage clean")


WRONG: list[tuple[Any, str]] = [
    (lambda: 0, r"<lambda>\(\) at .*test_signature\.py:\d+ cannot be called with \(value\)"),
    (
        named_only,
        r"named_only\(value, \*, scale\) at .*test_signature\.py:\d+ .*missing a required .*argument: 'scale'",
    ),
    (Scaled().of_two, r"Scaled\.of_two\(self, value, scale\) at .* with \(self, value\), .*'scale'"),
    (Scaled().without_self, r"Scaled\.without_self\(value\) at .* with \(self, value\), .*too many"),
    (Scaled().of_nothing, r"Scaled\.of_nothing\(\) at .*too many"),
    (functools.partial(named_only), r"partial\(value, \*, scale\) at .*test_signature\.py:\d+"),
    (isinstance, r"isinstance\(.*missing a required argument"),
    (None, r"stage clean is None; expected a function of \(value\)"),
]


@pytest.mark.parametrize(("function", "says"), WRONG, ids=range(len(WRONG)))
def test_what_does_not_is_named_with_its_place(function: Any, says: str) -> None:
    """The message has the function, its parameters, file and line, and what it will be called with."""
    with pytest.raises(SettingsError, match=says):
        check_takes(function, ("value",), "stage clean")


async def waits(value: Any) -> Any:
    """Return a coroutine when it is called."""
    return value


def yields(value: Any) -> Any:
    """Return a generator when it is called."""
    yield value


async def streams(value: Any) -> Any:
    """Return an async generator when it is called."""
    yield value


class Waiting:
    """Whose instances return coroutines, called or by a method."""

    async def __call__(self, value: Any) -> Any:
        """Return a coroutine."""
        return value

    async def method(self, value: Any) -> Any:
        """Return a coroutine."""
        return value


LATER: list[tuple[Any, str]] = [
    (waits, r"waits\(\) at .*test_signature\.py:\d+ is async, .*asyncio\.run"),
    (functools.partial(waits), r"waits\(\) at .* is async"),
    (Waiting(), r"Waiting\.__call__\(\) at .* is async"),
    (functools.partial(Waiting()), r"Waiting\.__call__\(\) at .* is async"),
    (Waiting().method, r"Waiting\.method\(\) at .* is async"),
    (yields, r"yields\(\) at .* yields, .*return a list"),
    (streams, r"streams\(\) at .* yields, .*return a list"),
]


@pytest.mark.parametrize(("function", "says"), LATER, ids=range(len(LATER)))
def test_what_returns_before_its_work_is_done_is_refused(function: Any, says: str) -> None:
    """What a coroutine or generator function returns would be taken for the result."""
    with pytest.raises(SettingsError, match=says):
        check_takes(function, ("value",), "stage clean")
