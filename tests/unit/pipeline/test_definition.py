"""What a pipeline is made of."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.delivery.collect import Collect


class DeliversOnly:
    """A delivery of which most was forgotten."""

    def deliver(self, job: Any, result: Any) -> bool:
        """Take anything."""
        return True


class ReceivesOnly:
    """A source of which most was forgotten."""

    def receive(self, limit: int, wait_seconds: float) -> None:
        """Give nothing."""


class Wrapper:
    """Passes everything on to what it wraps; has nothing of its own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Empty(Collect):
    """A delivery that is false, as what has a length is while nothing is in it."""

    def __len__(self) -> int:
        """Return how many results there are."""
        return 0


def same(value: Any) -> Any:
    """Change nothing."""
    return value


def test_a_delivery_that_lacks_members_names_them_all() -> None:
    """One error rather than one at each run until the last is there."""
    lacks = (
        r"delivery is .*has no flush_items, flush_seconds, default_workers, open\(\), flush\(\), close\(\); .*Delivery"
    )
    with pytest.raises(SettingsError, match=lacks):
        hr.Pipeline(hr.items([1]), stages=[hr.stage("same", same)], delivery=DeliversOnly())  # type: ignore[arg-type]


def test_a_source_that_lacks_members_names_them_all() -> None:
    """And says where it can have them from."""
    lacks = (
        r"source is .*has no is_remote, is_endless, is_exhausted, shown_address, visibility_seconds, open\(\), tend\(\), "
        r"in_flight_limit\(\), close\(\); .*Source names; a class that derives from it has them"
    )
    with pytest.raises(SettingsError, match=lacks):
        hr.Pipeline(ReceivesOnly(), stages=[hr.stage("same", same)])  # type: ignore[arg-type]


def test_parts_that_pass_everything_on_are_complete() -> None:
    """What is asked is whether a member is there when it is wanted, not where it is defined."""
    results = Collect()
    hr.run(hr.Pipeline(Wrapper(hr.items([1])), stages=[hr.stage("same", same)], delivery=Wrapper(results)))  # type: ignore[arg-type]
    assert [result for _, result in results.results] == [1]


def test_a_delivery_that_is_false_is_used() -> None:
    """Only one that is not given is replaced."""
    results = Empty()
    hr.run(hr.Pipeline(hr.items([1]), stages=[hr.stage("same", same)], delivery=results))
    assert [result for _, result in results.results] == [1]
