"""Small networks, and sets of items for calibration and for judging."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.validate import measuring
from headrace.validate.golden import Golden, read_golden
from headrace.validate.model_speed import Speed


def _load() -> ModuleType:
    """Return the module `nets` beside this file: test folders are not packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("optimize_nets", Path(__file__).with_name("nets.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def nets() -> ModuleType:
    """What makes networks and items."""
    return _load()


@dataclass(frozen=True)
class Case:
    """A network with what it is calibrated and judged on."""

    model: Path
    folder: Path
    calibration: Golden
    golden: Golden
    inputs: np.ndarray
    """Of the golden set."""


@pytest.fixture(scope="session")
def case(nets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An ordinary network."""
    return _case(nets, tmp_path_factory.mktemp("ordinary"), nets.make_weights())


@pytest.fixture(scope="session")
def twin(nets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The same function with channels of very different sizes, which int8 cannot hold."""
    return _case(nets, tmp_path_factory.mktemp("twin"), nets.imbalanced(nets.make_weights()))


def _case(nets: ModuleType, folder: Path, weights: dict[str, np.ndarray]) -> Case:
    model = nets.save_net(folder / "net.onnx", weights)
    calibration, _ = nets.make_items(model, 64, seed=10)
    inputs, labels = nets.make_items(model, 600, seed=11)
    np.savez(folder / "calibration.npz", inputs=calibration)
    np.savez(folder / "golden.npz", inputs=inputs, labels=labels)
    return Case(model, folder, read_golden(folder / "calibration.npz"), read_golden(folder / "golden.npz"), inputs)


@pytest.fixture(autouse=True)
def _memory_is_known() -> Iterator[None]:
    """A process for each variant takes a second; `tests/unit/validate/test_memory.py` starts real ones."""
    with measuring.using(measure_memory=lambda spec, batch: 40_000_000 if "int8" in spec.text else 60_000_000):
        yield


@pytest.fixture
def speeds() -> Iterator[dict[tuple[str, bool], float]]:
    """Speeds by (engine, is quantized), which a test may change: nothing is timed, what is tested is what is made of it."""
    table = {("onnx", False): 1.0, ("openvino", False): 0.95, ("onnx", True): 2.0, ("openvino", True): 3.0}

    def speed_of(model: Any) -> float:
        quantized = any(name in Path(model.variant["artifact"]).name for name in ("int8", ".qat."))
        speed = table[model.variant["engine"], quantized]
        speed *= 1.5 if model.variant.get("precision") == "bf16" else 1.0
        return speed * (2.0 if any(name in model.variant["artifact"] for name in ("pruned", "other")) else 1.0)

    def measured(a: Any, b: Any, batch: np.ndarray, *, rounds: int | None = None, **_: Any) -> Speed:
        # Candidates are timed against the model as given, of speed 1; head to head, in more rounds, against one another.
        ratio, within = (speed_of(b), 0.02) if rounds is None else (speed_of(b) / speed_of(a), 0.01)
        return Speed(
            ratio=ratio, low=(1 - within) * ratio, high=(1 + within) * ratio, noise=0.01, a_seconds=0.01,
            b_seconds=0.01 / ratio, rounds=rounds or 16,
        )  # fmt: skip

    with measuring.using(measure_speed=measured, census_seconds=0.05):
        yield table
