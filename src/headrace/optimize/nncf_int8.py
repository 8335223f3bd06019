"""A second opinion on int8: NNCF quantizes the same ONNX file, and corrects the biases for what rounding shifts on average.

It needs no PyTorch. Its files are fast on OpenVINO, and on ONNX Runtime for some networks slower than float32 (0.4 times was
measured on MobileNetV2), which the gates find. So it is asked only where our own int8 was wrong.

References:
    NNCF 3.4, `nncf.quantize` on the ONNX backend, with fast bias correction (its default).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
from pathlib import Path
from typing import Any

from headrace.base.errors import EngineError, MissingExtra
from headrace.optimize.int8 import CALIBRATION_ITEMS, feed_of, inputs_of
from headrace.optimize.onnx_files import load, save
from headrace.validate.golden import spread
from headrace.validate.items import Items, find_fixed_batch

#: Set while NNCF is imported: it reports its use to a server otherwise.
_NO_TELEMETRY = "NNCF_CI"


def why_no_nncf() -> str | None:
    """Return why NNCF cannot be asked; None if it can."""
    if importlib.util.find_spec("nncf") is None:
        return "NNCF is not installed: pip install 'headrace[nncf]'"
    return None


def quantize_by_nncf(artifact: Path, calibration: Items, output: Path) -> dict[str, Any]:
    """Write the int8 twin of an ONNX model by NNCF, and return how it was made.

    Args:
        artifact: The model, float32.
        calibration: Items as it takes them.
        output: Where to.

    Raises:
        EngineError: If NNCF cannot quantize it.
        MissingExtra: If NNCF is not installed.
    """
    nncf = _import()
    inputs = inputs_of(artifact)
    size = find_fixed_batch(inputs) or 1
    items = calibration[spread(len(calibration), CALIBRATION_ITEMS)]
    batches = [items[at : at + size] for at in range(0, len(items) - size + 1, size)]
    data = nncf.Dataset(batches, lambda batch: feed_of(inputs, batch))
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # where it draws its progress
            made = nncf.quantize(load(artifact), data, subset_size=len(batches))
    except Exception as error:  # it raises types of several libraries
        raise EngineError(f"NNCF cannot quantize {artifact.name}: {' '.join(str(error).split())[:300]}") from error
    save(made, output)
    return {"by": f"NNCF {nncf.__version__}", "calibration_items": len(batches) * size}


def _import() -> Any:
    before = os.environ.get(_NO_TELEMETRY)
    os.environ[_NO_TELEMETRY] = "1"
    try:
        import nncf
    except ImportError as missing:
        raise MissingExtra("a second opinion on int8", "nncf") from missing
    finally:
        if before is None:
            del os.environ[_NO_TELEMETRY]
        else:
            os.environ[_NO_TELEMETRY] = before
    logging.getLogger("nncf").setLevel(logging.ERROR)
    return nncf
