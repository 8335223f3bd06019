"""Static quantization to int8, with the one combination of types that is fast on x86.

Activations unsigned (UInt8), weights signed (Int8) for each output channel, written as pairs of QuantizeLinear and
DequantizeLinear: ONNX Runtime's own defaults, signed activations for a tensor as a whole, were measured at 1.04 times the
speed of float32 (ResNet-18, one thread), these at 2.9, and the same file on OpenVINO at 8.0.

References:
    ONNX Runtime, "Quantize ONNX Models"; B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", CVPR 2018.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.optimize.onnx_files import load
from headrace.validate.golden import spread

# onnxruntime.quantization warns of what is done here on purpose, through the root logger.
_NOISY = logging.getLogger()

#: Items that calibration looks at; more made no difference on photographs.
CALIBRATION_ITEMS = 256
_BATCH = 8


def quantize(artifact: Path, calibration: np.ndarray, output: Path, *, signed: bool = False) -> dict[str, Any]:
    """Write the int8 twin of an ONNX model and return how it was made.

    Args:
        artifact: The model, float32, with one input; best folded (`onnx_files.fold`).
        calibration: (items, ...) as its input takes them; their ranges become the ranges of int8.
        output: Where to.
        signed: Signed activations: what TensorRT wants, and slow on ONNX Runtime.

    Raises:
        EngineError: If the model is quantized already, takes several inputs, or ONNX Runtime cannot quantize it.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model = load(artifact)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise EngineError(
            f"{artifact.name} takes {len(inputs)} inputs ({names}); calibration data are for models with one"
        )
    first = inputs[0].type.tensor_type.shape.dim[0]
    size = first.dim_value or _BATCH
    items = calibration[spread(len(calibration), CALIBRATION_ITEMS)]
    level = _NOISY.level
    _NOISY.setLevel(logging.ERROR)
    try:
        quantize_static(
            str(artifact),
            str(output),
            _Reader(inputs[0].name, items, size),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Else a ReLU is left to the ranges of int8, and is missing where its tensor goes back to float32.
            extra_options={"QDQKeepRemovableActivations": True},
        )
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(f"ONNX Runtime cannot quantize {artifact.name}: {error}") from error
    finally:
        _NOISY.setLevel(level)
    return {
        "activations": "int8" if signed else "uint8",
        "weights": "int8 per channel",
        "calibration_items": len(items),
    }


class _Reader:
    """Hands calibration data to ONNX Runtime, batch by batch."""

    def __init__(self, name: str, items: np.ndarray, size: int) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = (
            {name: np.ascontiguousarray(items[start : start + size])}
            for start in range(0, len(items) - len(items) % size or len(items), size)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next feed; None at the end."""
        return next(self._batches, None)
