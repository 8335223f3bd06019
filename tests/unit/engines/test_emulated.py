"""An accelerator that only takes time. Times are bounded from below alone: a busy machine may be late."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.protocols import Model
from headrace.engines.emulated import EmulatedEngine


def device(**options: Any) -> Model:
    """An open device."""
    return EmulatedEngine().open(None, threads=1, options=options)


@pytest.mark.parametrize("batch", [np.ones((3, 2, 2), np.float32), ["a", "b", "c"]], ids=["array", "list"])
def test_a_zero_for_each_input(batch: Any) -> None:
    """The result has one row per input, whatever the inputs are."""
    result = device()(batch)
    np.testing.assert_array_equal(result, np.zeros((3, 1), np.float32))
    assert result.dtype == np.float32


@pytest.mark.parametrize("size", [1, 8])
def test_a_call_takes_its_time(size: int) -> None:
    """A call takes at least a + b*n."""
    model = device(launch_seconds="4ms", item_seconds=0.002)
    start = time.monotonic()
    model(np.zeros((size, 1)))
    assert time.monotonic() - start >= 0.004 + 0.002 * size


def test_one_call_at_a_time() -> None:
    """Calls of several threads, to several models too, take as long as one after another: the process has one device."""
    models = [device(launch_seconds=0.01), device(item_seconds=0.01)]
    threads = [threading.Thread(target=model, args=([0],)) for model in models * 2]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start >= 0.04


def test_the_device_leaves_the_cpu_alone() -> None:
    """A call sleeps: the thread uses next to none of the time as CPU."""
    model = device(launch_seconds=0.3)
    start = time.thread_time()
    model([0])
    assert time.thread_time() - start < 0.15


def test_every_output_says_so() -> None:
    """The variant stored with a run names the emulation and its costs."""
    assert device(launch_seconds=0.0136, item_seconds="34ms").variant == {
        "engine": "emulated",
        "launch_seconds": 0.0136,
        "item_seconds": 0.034,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch_second": 1}, r"\[model\.options\]: unknown key 'launch_second'\. Did you mean 'launch_seconds'\?"),
        ({"item_seconds": -1}, r"\[model\.options\]: item_seconds = -1: expected a duration"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    """Unknown and impossible options are errors."""
    with pytest.raises(SettingsError, match=message):
        device(**options)
