"""What makes a recipe another one, and what becomes of a recipe that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import EngineError
from headrace.optimize.recipe import called, source_hash


class Small:
    """Builds nothing."""

    example = np.zeros((1, 3), np.float32)

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def build(self) -> Any:
        """Return no network."""


class Large(Small):
    """Another recipe of the same file."""


def test_two_recipes_of_one_file_are_told_apart() -> None:
    """By their classes, and by settings that are plain values; the same settings are the same recipe."""
    recipes = [Small(), Large(), Small(rate=0.1), Small(rate=0.2), Small(sizes=[1, 2]), Small(name="rate")]
    assert len({source_hash(one) for one in recipes}) == len(recipes)
    assert source_hash(Small(rate=0.1, name="a")) == source_hash(Small(name="a", rate=0.1))


def test_what_is_no_plain_value_is_left_out() -> None:
    """Arrays and functions have no text that is the same in another process."""
    assert source_hash(Small(weights=np.ones(3), make=len, rate=1)) == source_hash(Small(weights=np.zeros(3), rate=1))


def test_the_users_code_that_fails_ends_a_technique() -> None:
    """With what failed on what, in one line."""

    def fit(network: Any) -> None:
        raise RuntimeError("out of\nmemory")

    recipe: Any = SimpleNamespace(fit=fit)
    with pytest.raises(
        EngineError, match="the recipe's `fit` failed on the pruned network: RuntimeError: out of memory"
    ):
        called(recipe, "fit", None, on="the pruned network")
