"""Static quantization to int8, with the one combination of types that is fast on x86.

Activations unsigned (UInt8), weights signed (Int8) for each output channel, written as pairs of QuantizeLinear and
DequantizeLinear: ONNX Runtime's own defaults, signed activations for a tensor as a whole, were measured at 1.04 times the
speed of float32 (ResNet-18, one thread), these at 2.9, and the same file on OpenVINO at 8.0.

References:
    ONNX Runtime, "Quantize ONNX Models"; B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", CVPR 2018.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.optimize.onnx_files import load
from headrace.optimize.presets import X86_VNNI, Preset
from headrace.validate.golden import spread

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
    calibration: np.ndarray,
    output: Path,
    *,
    signed: bool = False,
    preset: Preset = X86_VNNI,
    calibrator: str = "minmax",
) -> dict[str, Any]:
    """Write the int8 twin of an ONNX model and return how it was made.

    Args:
        artifact: The model, float32, with one input; best folded (`onnx_files.fold`).
        calibration: (items, ...) as its input takes them; their ranges become the ranges of int8.
        output: Where to.
        signed: Signed activations, whatever the preset says: ONNX Runtime's own default, and slow there.
        preset: Types that fit the target.
        calibrator: One of `CALIBRATORS`: how values become ranges.

    Raises:
        EngineError: If the model is quantized already, takes several inputs, or ONNX Runtime cannot quantize it.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    signed = signed or preset.signed
    name, fixed_size = only_input(artifact)
    items = calibration[spread(len(calibration), CALIBRATORS[calibrator].items)]
    level = _NOISY.level
    _NOISY.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # where calibrators tell of their progress
            quantize_static(
                str(artifact),
                str(output),
                _Reader(name, items, fixed_size or _BATCH),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=preset.reduce_range,
                calibrate_method=CalibrationMethod[CALIBRATORS[calibrator].method],
                # Else a ReLU is left to the ranges of int8, and is missing where its tensor goes back to float32.
                extra_options={"QDQKeepRemovableActivations": True, "CalibPercentile": _PERCENTILE, **preset.options},
            )
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(f"ONNX Runtime cannot quantize {artifact.name}: {error}") from error
    finally:
        _NOISY.setLevel(level)
    return {
        "activations": "int8" if signed else "uint8",
        "weights": "int8 per channel",
        "preset": preset.name,
        "calibrator": calibrator,
        "calibration_items": len(items),
    }


def only_input(artifact: Path) -> tuple[str, int]:
    """Return the name of a model's input, and the batch size that it is fixed to; 0 if it takes any.

    Raises:
        EngineError: If it takes several inputs, or is no ONNX file.
    """
    model = load(artifact)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise EngineError(
            f"{artifact.name} takes {len(inputs)} inputs ({names}); calibration data are for models with one"
        )
    return inputs[0].name, inputs[0].type.tensor_type.shape.dim[0].dim_value


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
