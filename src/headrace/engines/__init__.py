"""What runs a model: one module per engine, each the only place that imports its library.

    onnx_engine.py       ONNX Runtime on the CPU (the default)
    openvino_engine.py   OpenVINO on the CPU, precision pinned
    emulated.py          an accelerator that only takes time: a + b*n per batch of n

A new engine implements `headrace.base.protocols.Engine` and is named in `ENGINES`.
"""

from __future__ import annotations

import importlib

from headrace.base.protocols import Engine
from headrace.base.settings import check

#: Engine name in a Plan -> module and class; the module is imported when a Plan names it.
ENGINES = {
    "onnx": ("headrace.engines.onnx_engine", "OnnxEngine"),
    "openvino": ("headrace.engines.openvino_engine", "OpenVinoEngine"),
    "emulated": ("headrace.engines.emulated", "EmulatedEngine"),
}


def engine(name: str) -> Engine:
    """Return the engine of this name.

    Raises:
        SettingsError: If there is none.
        MissingExtra: If its library is not installed.
    """
    check(name in ENGINES, "model.engine", name, ", ".join(ENGINES))
    module, cls = ENGINES[name]
    found: Engine = getattr(importlib.import_module(module), cls)()
    return found
