"""What runs a model: one module per engine, each the only place that imports its library.

    onnx_engine.py       ONNX Runtime on the CPU (the default)
    openvino_engine.py   OpenVINO on the CPU, precision pinned
    torch_engine.py      PyTorch, weights in a network that the user's code registered in networks.py; `torch_compile.py` has
                         it compiled, `torch_gpu.py` says whether a GPU can be used, and records CUDA graphs
    emulated.py          an accelerator that only takes time: a + b*n per batch of n
    model_files.py       the gate before every model file; `onnx_references.py` reads which files an ONNX file refers to, and
                         `safetensors_header.py` whether weights are where they are said to be

A new engine implements `headrace.base.protocols.Engine` and is named in `ENGINES`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from headrace.base.plan import ModelPlan
from headrace.base.protocols import Engine, Model
from headrace.base.settings import check
from headrace.engines.model_files import check_trust

#: Engine name in a Plan -> module and class; the module is imported when a Plan names it.
ENGINES = {
    "onnx": ("headrace.engines.onnx_engine", "OnnxEngine"),
    "openvino": ("headrace.engines.openvino_engine", "OpenVinoEngine"),
    "torch": ("headrace.engines.torch_engine", "TorchEngine"),
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


def open_model(plan: ModelPlan, default: str | None, threads: int, calls: int = 1) -> Model:
    """Return the model that a Plan names, opened by its engine, if it is the one that the Plan pins.

    Args:
        plan: `[model]`, or `[models.TASK]`.
        default: The file that the module names; the Plan's goes before it.
        threads: Threads inside one call, where the Plan does not say.
        calls: Workers that will share the model.

    Raises:
        EngineError: If the file is missing, unreadable, not for this engine, or not the one that the Plan pins.
        MissingExtra: If the engine's library is not installed.
        SettingsError: If the engine or an option is unknown or impossible.
    """
    name = plan.artifact or default
    artifact = None if name is None else Path(name)
    if artifact is not None:
        check_trust(artifact, plan.sha256)
    return engine(plan.engine).open(artifact, threads=plan.threads or threads, options=plan.options, calls=calls)
