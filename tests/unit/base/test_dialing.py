"""Which judgement an address falls under."""

from __future__ import annotations

import contextlib

import pytest

from headrace.base.calls import run_call
from headrace.base.dialing import Dialer, Judged, Refused
from headrace.base.network_rules import NetworkPlan, NetworkRules

JUDGED = "http://127.0.0.1:8080"


@pytest.fixture
def dialer() -> Dialer:
    """A dialer that has judged one origin."""
    made = Dialer(NetworkRules(NetworkPlan(allow=["127.0.0.1:8080"])))
    run_call(made.judging(f"{JUDGED}/first", 0.0, 1.0))
    return made


def find(dialer: Dialer, url: str) -> Judged | None:
    """Return what is known of an address, while it holds."""
    return dialer.find(url, 1.0)


@pytest.mark.parametrize("rest", ["", "/", "/a/b", "//b", "?a=/b", "#a/b", "/@evil.test/"])
def test_one_origin_is_judged_once(dialer: Dialer, rest: str) -> None:
    """Whatever comes after it."""
    assert find(dialer, JUDGED + rest) is not None


@pytest.mark.parametrize(
    "url",
    [
        f"{JUDGED}0",
        f"{JUDGED}0/a",
        f"{JUDGED}@evil.test",
        f"{JUDGED}@evil.test/a",
        f"{JUDGED}@evil.test?/a",
        "http://127.0.0.1/a",
        "http://127.0.0.1:808/a",
        "https://127.0.0.1:8080/a",
        "http://127.0.0.1:8080.evil.test/a",
        "http://evil.test/http://127.0.0.1:8080/a",
    ],
)
def test_another_origin_is_not_taken_for_one_that_was_judged(dialer: Dialer, url: str) -> None:
    """Though it begins like it, or holds it: it is judged for itself."""
    with contextlib.suppress(Refused):  # at once, where it is not plain
        assert find(dialer, url) is None
