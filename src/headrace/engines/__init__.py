"""What runs a model: one module per engine, each the only place that imports its library.

    onnx_engine.py       ONNX Runtime on the CPU (the default)
    openvino_engine.py   OpenVINO on the CPU, precision pinned
    torch_engine.py      PyTorch, weights in a network that the user's code registered in networks.py; `torch_compile.py` has
                         it compiled, `torch_gpu.py` says whether a GPU can be used, and records CUDA graphs
    emulated.py          an accelerator that only takes time: a + b*n per batch of n
    traits.py            what the rest of headrace asks of each engine, known without its library
    model_files.py       the gate before every model file; `onnx_references.py` reads which files an ONNX file refers to, and
                         `safetensors_header.py` whether weights are where they are said to be

A new engine implements `headrace.base.protocols.Engine`. One of another package is named by an entry point, and says what it
can do by a class attribute:

    [project.entry-points."headrace.engines"]
    tflite = "their_package.engine:TfLiteEngine"

    class TfLiteEngine:
        traits = EngineTraits(title="TensorFlow Lite", reads=(".tflite",))

No other folder knows an engine by its name: they ask here.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.base.plan import DEFAULT_ENGINE, ModelPlan
from headrace.base.protocols import Engine, Model, SaysWhyNot
from headrace.base.registry import Registry
from headrace.engines.model_files import check_trust
from headrace.engines.traits import BUILT_IN, EMULATED, ONNX, OPENVINO, TORCH, EngineTraits
from headrace.runs.hardware import find_versions

__all__ = [
    "EMULATED", "ENGINES", "ONNX", "OPENVINO", "TORCH", "EngineTraits", "check_engine", "engine", "engine_for", "file_engines",
    "open_model", "reads", "traits_of", "versions_of", "why_missing", "why_not",
]  # fmt: skip

logger = logging.getLogger("headrace")

ENGINES = Registry(
    "headrace.engines",
    {
        ONNX: "headrace.engines.onnx_engine:OnnxEngine",
        OPENVINO: "headrace.engines.openvino_engine:OpenVinoEngine",
        TORCH: "headrace.engines.torch_engine:TorchEngine",
        EMULATED: "headrace.engines.emulated:EmulatedEngine",
    },
    "model.engine",
)


def check_engine(name: str, setting: str = "model.engine") -> None:
    """Raise SettingsError unless there is an engine of this name; imports none."""
    ENGINES.check(name, setting)


def engine(name: str) -> Engine:
    """Return the engine of this name.

    Raises:
        SettingsError: If there is none, or another package's cannot be imported.
        MissingExtra: If its library is not installed.
    """
    found: Engine = ENGINES.make(name, Engine)
    return found


def traits_of(name: str) -> EngineTraits:
    """Return what an engine reads, needs and can do; imports another package's engine, and none of headrace's own.

    Raises:
        SettingsError: If there is none, or another package's cannot be imported.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = getattr(ENGINES.load(name), "traits", EngineTraits())
    if not isinstance(found, EngineTraits):
        raise ENGINES.refuse(name, f"has traits = {found!r}", "a headrace.engines.EngineTraits")
    return found


def versions_of(*names: str) -> dict[str, str]:
    """Return {package: version} of what decides these engines' numbers and times."""
    packages = {package for name in names for package in (*traits_of(name).packages, *ENGINES.packages(name))}
    return {package: version for package, version in find_versions(packages).items() if package in packages}


def why_missing(name: str) -> str | None:
    """Return why an engine's library cannot be used; None if it is installed."""
    known = traits_of(name)
    return None if not known.module or importlib.util.find_spec(known.module) else known.missing


def why_not(name: str, options: Mapping[str, Any]) -> str | None:
    """Return why an engine cannot be used here with these options; None: it can, or shows that when it opens a file.

    Raises:
        MissingExtra: If its library is not installed.
        SettingsError: If there is no such engine, or an option is unknown or impossible.
    """
    found = engine(name)
    return found.why_not(options) if isinstance(found, SaysWhyNot) else None


def file_engines() -> Iterator[str]:
    """Give the engines that open model files without the user's code, the default one first, installed or not.

    One of another package that cannot be imported is left out with a warning: nobody has asked for it.
    """
    for name in ENGINES.names():
        try:
            known = traits_of(name)
        except Exception as error:  # another package's code runs here
            logger.warning("the engine %s is left out: %s", name, error)
            continue
        if known.reads and not known.runs_networks:
            yield name


def reads(name: str, file: str | Path) -> bool:
    """Return whether an engine opens files of this kind."""
    return Path(file).suffix.lower() in traits_of(name).reads


def engine_for(file: str | Path) -> str:
    """Return the first engine that opens files of this kind; the default one if none does."""
    return next((name for name in file_engines() if reads(name, file)), DEFAULT_ENGINE)


def open_model(plan: ModelPlan, default: str | None, threads: int, calls: int = 1) -> Model:
    """Return the model that a Plan names, opened by its engine, if it is the one that the Plan pins.

    Args:
        plan: `[model]`, or `[models.TASK]`; of several `devices` it is opened on the first.
        default: The file that the module names; the Plan's goes before it.
        threads: Threads inside one call, where the Plan does not say.
        calls: Workers that will share the model.

    Raises:
        EngineError: If the file is missing, unreadable, not for this engine, or not the one that the Plan pins.
        MissingExtra: If the engine's library is not installed.
        SettingsError: If the engine or an option is unknown or impossible.
    """
    plan = plan.on_device(plan.device_of(0))
    name = plan.artifact or default
    artifact = None if name is None else Path(name)
    if artifact is not None:
        check_trust(artifact, plan.sha256)
    opener = engine(plan.engine)
    options = plan.options
    if plan.uses and traits_of(plan.engine).is_emulated:
        options = {"exclusive": False, **options}  # whoever calls it has what it uses
    model = opener.open(artifact, threads=plan.threads or threads, options=options, calls=calls)
    ENGINES.check_made(plan.engine, "opened", model, Model)
    return model
