"""What holds for every test."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that measures two more tries.

    Other users of the machine spoil a measurement now and then, and the answer is then rightly "cannot be told". What is
    wrong is wrong three times; `-ra` lists whatever needed another try.
    """
    for item in items:
        if item.get_closest_marker("measures"):
            item.add_marker(pytest.mark.flaky(reruns=2))
