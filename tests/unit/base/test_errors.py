"""The tree of errors."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from headrace.base import errors
from headrace.base.errors import (
    DecodeRejected,
    HeadraceError,
    ItemError,
    ItemFailed,
    ItemRejected,
    MissingExtra,
    ResultsRefused,
    StageFailed,
    as_item_error,
)

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, HeadraceError)]


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Class -> (parent, builtin in parentheses), as the module's docstring draws them."""
    found: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:[│ ]   )*)(?:[├└]── )?([A-Z]\w+)(?:\s|$)", line)
        if not match or (match[2] != "HeadraceError" and "──" not in line):
            continue
        depth = len(match[1]) // 4 + ("──" in line)
        path[depth:] = [match[2]]
        also = re.search(r"\(also (\w+)\)", line)
        found[match[2]] = (path[depth - 1] if depth else None, also[1] if also else None)
    return found


def test_the_drawn_tree_is_the_real_one() -> None:
    """Every class is drawn, under its parent, with the builtin that it is as well."""
    real = {}
    for cls in CLASSES:
        headrace = [base.__name__ for base in cls.__bases__ if issubclass(base, HeadraceError)]
        builtin = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
        real[cls.__name__] = (headrace[0] if headrace else None, builtin[0] if builtin else None)
    assert drawn_tree() == real


def test_rejected_and_failed_do_not_overlap() -> None:
    """No error is both permanent and worth another try."""
    assert not [cls for cls in CLASSES if issubclass(cls, ItemRejected) and issubclass(cls, ItemFailed)]


def test_an_item_error_tells_where() -> None:
    """Once it is known, stage and item stand before the reason."""
    error = DecodeRejected("no image")
    assert str(error) == "no image"
    assert str(error.locate("decode", "job-1")) == "decode: item job-1: no image"
    assert error.reason == "no image"


def test_the_first_place_stays() -> None:
    """Stages further up do not claim an error that was located before."""
    error = ItemError("x").locate("decode", "job-1").locate("process", "job-2")
    assert (error.stage, error.item_id) == ("decode", "job-1")


def test_any_exception_becomes_an_item_error() -> None:
    """A user's exception is named and chained; an item error stays itself."""
    cause = KeyError("label")
    error = as_item_error(cause)
    assert isinstance(error, StageFailed)
    assert error.reason == "KeyError: 'label'"
    assert error.__cause__ is cause
    assert as_item_error(error) is error


def test_a_missing_extra_says_how_to_install_it() -> None:
    """The message holds the command."""
    assert "pip install 'headrace[redis]'" in str(MissingExtra("the Redis queue", "redis"))


#: What errors are made of that are not made of a message.
_PARTS: dict[type[HeadraceError], tuple[Any, ...]] = {
    MissingExtra: ("a", "b"),
    ResultsRefused: ({"job-1": "sql.refused: a check"},),
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_can_be_pickled(cls: type[HeadraceError]) -> None:
    """An error keeps class, message and place on its way between processes."""
    error = cls(*_PARTS.get(cls, ("what happened",)))
    if isinstance(error, ItemError):
        error.locate("decode", "job-1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
