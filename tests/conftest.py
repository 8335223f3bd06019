"""What holds for every test."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that measures, or that counts on a real clock, two more tries.

    Other users of the machine spoil a measurement now and then, and the answer is then rightly "cannot be told"; and they may
    keep a worker from its core for longer than a loan of a second lasts. What is wrong is wrong three times; `-ra` lists
    whatever needed another try.
    """
    for item in items:
        if item.get_closest_marker("measures") or item.get_closest_marker("real_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
