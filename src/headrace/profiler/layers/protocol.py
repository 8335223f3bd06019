"""What an engine must offer so that its layers can be measured.

An engine's adapter opens the model twice, once as the pipeline runs it and once with the engine's own profiler on; the
timing loop calls both in turn; afterwards the adapter hands over what its profiler recorded. ONNX Runtime writes a file at
the end, OpenVINO answers after each call, PyTorch records a block of calls: all three fit.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.base.errors import MissingExtra
from headrace.base.protocols import TensorSpec
from headrace.profiler.layers.operations import Work

#: {name of the model's input: array}
Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What is known of a layer apart from its time."""

    key: str
    """Unique within the model; layers of the same name have different keys."""
    name: str
    operator: str
    provider: str
    work: Work
    output_shape: str = ""
    precision: str = ""
    """Type of the data that it computes with, as NumPy names it."""
    num_events: int = 1
    """How often a call runs it; more than once inside loops."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the engine's profiler saw."""

    layers: tuple[LayerFacts, ...]
    """In the order of execution."""
    raw_seconds: np.ndarray
    """float64, (layers,); mean of each layer per call."""
    num_calls: int
    """Calls that were averaged."""
    num_missing: int = 0
    """Calls that were made and that the profile does not hold."""
    warnings: tuple[str, ...] = ()


class ProfiledModel(Protocol):
    """A model opened both ways. Used by one thread."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """What it takes."""
        ...

    @property
    def max_profiled_calls(self) -> int:
        """Profiled calls that the engine's profiler can hold; known after `describe`."""
        ...

    def describe(self, feed: Feed) -> None:
        """Find out the layers' shapes for these inputs; called once, before the others.

        Raises:
            EngineError: If the model refuses the inputs.
        """
        ...

    def run(self, feed: Feed) -> None:
        """Run the model as the pipeline would."""
        ...

    def run_profiled(self, feed: Feed) -> None:
        """Run the model with the engine's profiler on."""
        ...

    def read_recording(self, kept: Sequence[int]) -> Recording:
        """Return what was recorded since `describe`; no calls after it.

        Args:
            kept: Numbers of the profiled calls that are worth averaging, counted from 0 at the first after `describe`, rising.
                An engine that tells no single calls averages all, and says so by `num_calls`.
        """
        ...

    def close(self) -> None:
        """Free the sessions and remove temporary files; may be called twice."""
        ...


class LayerProfiler(Protocol):
    """The adapter of one engine."""

    @property
    def engine(self) -> str:
        """The engine's name in a Plan."""
        ...

    def open(self, artifact: Path, *, threads: int, options: Mapping[str, Any]) -> ProfiledModel:
        """Open an artifact both ways.

        Raises:
            EngineError: If the file is missing, unreadable or not for this engine.
            MissingExtra: If the engine's library is not installed.
            SettingsError: If an option is unknown or impossible.
        """
        ...

    def matrix_product_seconds(self, side: int, *, threads: int) -> float:
        """Return the best time of a float32 product of two square matrices of this side, by the engine's own library."""
        ...


def optional_module(name: str, what: str, extra: str) -> Any:
    """Return an optional package's module.

    Raises:
        MissingExtra: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(what, extra) from error
