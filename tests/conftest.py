"""What holds for every test."""

from __future__ import annotations

import gc

import pytest

#: Tests between two collections of everything.
_TESTS_PER_COLLECTION = 500
_num_tests = 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep what was there before a test out of the garbage collector's sight.

    A run of a pipeline begins with a full collection. Here it would walk thousands of collected tests each time, which took
    half of the CPU time of some folders. What earlier tests left is collected now and then.
    """
    global _num_tests
    _num_tests += 1
    if _num_tests % _TESTS_PER_COLLECTION == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that measures, or that counts on a real clock, two more tries.

    Other users of the machine spoil a measurement now and then, and the answer is then rightly "cannot be told"; and they may
    keep a worker from its core for longer than a loan of a second lasts. What is wrong is wrong three times; `-ra` lists
    whatever needed another try.
    """
    for item in items:
        if item.get_closest_marker("measures") or item.get_closest_marker("real_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
