"""Static quantization to int8, with the one combination of types that is fast on x86.

Activations unsigned (UInt8), weights signed (Int8) for each output channel, written as pairs of QuantizeLinear and
DequantizeLinear: ONNX Runtime's own defaults, signed activations for a tensor as a whole, were measured at 1.04 times the
speed of float32 (ResNet-18, one thread), these at 2.9, and the same file on OpenVINO at 8.0.

ONNX Runtime fails on some networks, and writes files for others that nobody can open. So a file is checked, opened and called
before it counts, and where one way of quantizing fails the next is tried.

References:
    ONNX Runtime, "Quantize ONNX Models"; B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", CVPR 2018.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.engines.onnx_engine import make_session_options, open_session
from headrace.optimize.onnx_files import LEAST_OPSET, load, onnx, opset_of
from headrace.optimize.presets import X86_VNNI, Preset
from headrace.validate.golden import spread
from headrace.validate.items import Items, fed, find_fixed_batch

# onnxruntime.quantization warns of what is done here on purpose, through the root logger.
_NOISY = logging.getLogger()

#: Items that calibration looks at; more made no difference on photographs.
CALIBRATION_ITEMS = 256
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Calibrator:
    """How the values of a tensor become its range."""

    method: str
    """ONNX Runtime's name of it."""
    items: int
    """That it looks at."""


#: Share of the values that `percentile` keeps, in percent.
_PERCENTILE = 99.99
#: All values, or all but the outermost 1 in 10,000; for the latter every tensor of every item is kept in memory. ONNX Runtime's
#: Entropy is none: it has as many bins as steps (128, in 1.31), so that it leaves nothing out and gives what MinMax gives.
CALIBRATORS = {"minmax": Calibrator("MinMax", CALIBRATION_ITEMS), "percentile": Calibrator("Percentile", 64)}


def quantize(
    artifact: Path,
    calibration: Items,
    output: Path,
    *,
    signed: bool = False,
    preset: Preset = X86_VNNI,
    calibrator: str = "minmax",
) -> dict[str, Any]:
    """Write the int8 twin of an ONNX model and return how it was made.

    Args:
        artifact: The model, float32; best folded (`onnx_files.fold`).
        calibration: Items as it takes them; their ranges become the ranges of int8.
        output: Where to.
        signed: Signed activations, whatever the preset says: ONNX Runtime's own default, and slow there.
        preset: Types that fit the target.
        calibrator: One of `CALIBRATORS`: how values become ranges.

    Raises:
        EngineError: If the items are of other inputs, or ONNX Runtime makes no file of it that can be called.
    """
    signed = signed or preset.signed
    inputs = inputs_of(artifact)
    fixed_size = find_fixed_batch(inputs)
    items = calibration[spread(len(calibration), CALIBRATORS[calibrator].items)]
    whole = feed_of(inputs, items[np.arange(fixed_size or 1) % len(items)])
    size = fixed_size or _BATCH
    refused: dict[str, str] = {}
    for way in _WAYS if opset_of(load(artifact)) >= LEAST_OPSET else _WAYS[-1:]:
        try:
            with _quiet():
                _write(
                    artifact, output, _Reader(inputs, items, size), way, signed, preset, CALIBRATORS[calibrator].method
                )
            _check(output, whole)
        except Exception as error:  # ONNX Runtime raises its own types, none of them public
            refused[way.weights] = " ".join(str(error).split())[:_LONGEST_WORDS]
            continue
        return {
            "activations": "int8" if signed else "uint8", "weights": way.weights, "preset": preset.name,
            "calibrator": calibrator, "calibration_items": len(items),
        }  # fmt: skip
    why = "; ".join(f"{weights}: {words}" for weights, words in refused.items())
    raise EngineError(f"ONNX Runtime cannot quantize {artifact.name} in any way that can be opened ({why})")


@dataclass(frozen=True, slots=True)
class _Way:
    """How ONNX Runtime quantizes weights."""

    weights: str
    """As the ledger has it."""
    per_channel: bool
    options: Mapping[str, Any] = field(default_factory=dict)


#: In the order of trying. ONNX Runtime 1.31 cannot fit scales of weights to a bias of two axes, which Gemm may have.
_WAYS = (
    _Way("int8 per channel", per_channel=True),
    _Way("int8 per channel, biases as they are", True, {"QDQDisableWeightAdjustForInt32Bias": True}),
    _Way("int8 per tensor", per_channel=False),
)
_LONGEST_WORDS = 200


def _write(artifact: Path, output: Path, reader: _Reader, way: _Way, signed: bool, preset: Preset, method: str) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    # Else a ReLU is left to the ranges of int8, and is missing where its tensor goes back to float32.
    keep = {"QDQKeepRemovableActivations": True, "CalibPercentile": _PERCENTILE}
    quantize_static(
        str(artifact),
        str(output),
        reader,
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=way.per_channel,
        reduce_range=preset.reduce_range,
        calibrate_method=CalibrationMethod[method],
        extra_options={**keep, **way.options, **preset.options},
    )


def _check(output: Path, feed: Mapping[str, np.ndarray]) -> None:
    """Raise what a file is that is not valid, cannot be opened, or cannot be called."""
    onnx.checker.check_model(load(output))
    options = make_session_options(threads=1, options={})
    open_session(output, options).run(None, dict(feed))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what calibrators print of their progress, and warnings of what is done on purpose."""
    level = _NOISY.level
    _NOISY.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        _NOISY.setLevel(level)


def inputs_of(artifact: Path) -> list[TensorSpec]:
    """Return what a model takes.

    Raises:
        EngineError: If it is no ONNX file.
    """
    return graph_inputs(load(artifact))


def graph_inputs(model: Any) -> list[TensorSpec]:
    """Return what an ONNX model takes; free axes are words."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [
        TensorSpec(
            value.name,
            onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower(),
            tuple(
                axis.dim_value if axis.HasField("dim_value") else axis.dim_param or "?"
                for axis in value.type.tensor_type.shape.dim
            ),
        )
        for value in model.graph.input
        if value.name not in weights
    ]


def feed_of(inputs: Sequence[TensorSpec], items: Items) -> dict[str, np.ndarray]:
    """Return {input: array} for one call with all of some items.

    Raises:
        EngineError: If the items are of other inputs.
    """
    batch = fed(items)
    feed = dict(batch) if isinstance(batch, Mapping) else {inputs[0].name: batch}
    names = [spec.name for spec in inputs]
    if set(feed) != set(names):
        raise EngineError(
            f"the model takes {len(names)} inputs ({', '.join(names)}), and the items have {', '.join(feed)}; give an .npz "
            "file with an array (items, ...) for each, by its name"
        )
    return feed


class _Reader:
    """Hands calibration data to ONNX Runtime, batch by batch."""

    def __init__(self, inputs: Sequence[TensorSpec], items: Items, size: int) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = (
            feed_of(inputs, items[start : start + size])
            for start in range(0, len(items) - len(items) % size or len(items), size)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next feed; None at the end."""
        return next(self._batches, None)
