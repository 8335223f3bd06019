"""The pipelines that `benchmarks.tuner` tunes, each with its base Plan and the grid of Plans that it is held against.

In a module of its own: worker processes import the stages' functions from here.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import headrace as hr
from headrace.base.plan import Plan
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.sources.finite import Entry, FiniteSource
from headrace.stages.module import Module, ProcessStage


class Numbers(FiniteSource):
    """Two hundred items without content."""

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(str(number), b"x" * 64) for number in range(200))


class Device(Module):
    """A model on the engine that the Plan names."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open it."""
        self.model = context.open_model()

    def preprocess(self, value: Any) -> Any:
        """Pass it on."""
        return value

    def process(self, batch: Any) -> list[int]:
        """Run it."""
        return [0] * len(self.model(batch))


class Pictures(Device):
    """The model of the sample photographs, over a picture for each item that is there already: it alone takes time."""

    model = str(SCENES_MODEL_PATH)

    def process(self, batch: Any) -> list[int]:
        """Run it."""
        return [0] * len(self.model(_PICTURES[: len(batch)]))


_PICTURES = np.zeros((64, 3, 224, 224), np.float32)


@dataclass(frozen=True)
class Case:
    """A pipeline to tune."""

    name: str
    why: str
    make: Callable[[], hr.Pipeline]
    fixed: Sequence[str]
    """Settings of every Plan."""
    base: Mapping[str, Any]
    """The Plan that is tuned: a value for each axis."""
    grid: Mapping[str, Sequence[Any]]
    """{setting: values}; all combinations are measured."""

    def plan(self, point: Mapping[str, Any]) -> Plan:
        """Return the Plan of a point."""
        return Plan().with_settings([*self.fixed, *(f"{key}={_toml(value)}" for key, value in point.items())])

    def points(self, *, thin: bool = False) -> list[dict[str, Any]]:
        """Return the grid; thinned out to the first and last value of each axis for a smoke run."""
        axes = [(key, (values[0], values[-1]) if thin else values) for key, values in self.grid.items()]
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*(values for _, values in axes))
        ]


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


# --- work ------------------------------------------------------------------------------------------------------------


def spin(value: Any) -> Any:
    """Hold the GIL for some 3 ms."""
    total = 0
    for number in range(60_000):
        total += number
    return value


_MATRIX = np.ones((192, 192), np.float32)


def multiply(value: Any) -> Any:
    """Compute for some milliseconds without the GIL, on one core."""
    product = _MATRIX
    for _ in range(12):
        product = np.sqrt(product * product + 1.0)
    return value


def superlinear(batch: Sequence[Any]) -> list[int]:
    """Take 2 ms for one item and more than n times as much for n, as where a batch no longer fits a cache."""
    time.sleep(0.002 * len(batch) ** 1.25)
    return [0] * len(batch)


# --- pipelines -------------------------------------------------------------------------------------------------------


def _downloads() -> hr.Pipeline:
    stages = [
        hr.emulated("fetch", kind="io", seconds=0.04),
        hr.emulated("preprocess", seconds=0.01),
        ProcessStage("process", Device()),
    ]
    return hr.Pipeline(Numbers(), stages=stages, name="downloads")


def _batch_one() -> hr.Pipeline:
    stages = [
        hr.emulated("fetch", kind="io", seconds=0.02),
        hr.stage("process", superlinear, kind="device", releases_gil=True),
    ]
    return hr.Pipeline(Numbers(), stages=stages, name="batch one")


def _python() -> hr.Pipeline:
    stages = [hr.emulated("fetch", kind="io", seconds=0.02), hr.stage("spin", spin), ProcessStage("process", Device())]
    return hr.Pipeline(Numbers(), stages=stages, name="python")


def _crowded() -> hr.Pipeline:
    stages = [
        hr.emulated("fetch", kind="io", seconds=0.005),
        hr.stage("spin", spin),
        hr.emulated("store", kind="io", seconds=0.004),
    ]
    return hr.Pipeline(Numbers(), stages=stages, name="crowded")


def _compute() -> hr.Pipeline:
    stages = [
        hr.emulated("fetch", kind="io", seconds=0.03),
        hr.stage("compute", multiply, releases_gil=True),
        ProcessStage("process", Device()),
    ]
    return hr.Pipeline(Numbers(), stages=stages, name="compute")


def _instances() -> hr.Pipeline:
    return hr.Pipeline(Numbers(), module=Pictures(), name="instances")


def _device(launch_seconds: float, item_seconds: float) -> list[str]:
    return [
        'model.engine="emulated"',
        f"model.options.launch_seconds={launch_seconds}",
        f"model.options.item_seconds={item_seconds}",
    ]


CASES = (
    Case(
        "downloads",
        "waits for a network; a device that wants batches",
        _downloads,
        _device(0.004, 0.002),
        {"fetch.workers": 4, "preprocess.workers": 1, "process.batch": 1},
        {"fetch.workers": (4, 8, 16, 32), "preprocess.workers": (1, 2, 4, 8), "process.batch": (1, 4, 16, 32)},
    ),
    Case(
        "batch one",
        "a device whose cost grows faster than the batch: batch 1 wins",
        _batch_one,
        (),
        {"fetch.workers": 4, "process.workers": 1, "process.batch": 8},
        {"fetch.workers": (2, 4, 8, 16, 32), "process.workers": (1, 2, 3), "process.batch": (1, 2, 4, 8)},
    ),
    Case(
        "python",
        "a pure Python stage: processes win",
        _python,
        _device(0.001, 0.0005),
        {"fetch.workers": 8, "spin.executor": "thread", "spin.workers": 2, "process.batch": 1},
        {
            "fetch.workers": (2, 4, 8, 16),
            "spin.executor": ("thread", "process"),
            "spin.workers": (1, 2, 3, 4),
            "process.batch": (1, 4),
        },
    ),
    Case(
        "crowded",
        "too many threads that hold the GIL: fewer workers win",
        _crowded,
        ('spin.executor="thread"',),
        {"fetch.workers": 2, "spin.workers": 8, "store.workers": 2},
        {"fetch.workers": (1, 2, 4, 16), "spin.workers": (1, 2, 4, 8, 16), "store.workers": (1, 2, 4)},
    ),
    Case(
        "compute",
        "real work on all cores before a device",
        _compute,
        _device(0.003, 0.001),
        {"fetch.workers": 4, "compute.workers": 1, "process.batch": 1},
        {"fetch.workers": (2, 4, 8, 16, 32), "compute.workers": (1, 2, 3, 4), "process.batch": (1, 4, 16)},
    ),
    Case(
        "instances",
        "a small model that computes on the cores: instances times threads",
        _instances,
        (),
        {"process.workers": 1, "model.threads": 2, "process.batch": 1},
        {"process.workers": (1, 2), "model.threads": (1, 2), "process.batch": (1, 2, 4, 8)},
    ),
)
