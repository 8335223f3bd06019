"""A recipe's network as PyTorch runs it, without conversion: eager, compiled, and compiled in bfloat16.

A worker opens a Plan's weights in a network that the pipeline's module registered (`headrace.engines.networks`). So these are
tried only where such a network takes the recipe's weights: a variant that no Plan can name could not be recommended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.base.plan import ModelPlan
from headrace.engines import TORCH, traits_of, why_missing
from headrace.engines.networks import registered
from headrace.optimize.expected_speedup import ExpectedSpeedup
from headrace.optimize.recipe import source_of
from headrace.optimize.techniques import (
    Candidates,
    Subject,
    Technique,
    keep_file,
    on_engine,
    why_no_bfloat16_instructions,
)
from headrace.runs.formats.optimization import Artifact


def no_network(subject: Subject) -> str | None:
    """Return why no Plan could name the recipe's network; None if one can."""
    if subject.recipe is None:
        return "it needs the network: name a recipe, MODULE:ATTRIBUTE, instead of a model file"
    if (missing := why_missing(TORCH)) is not None:
        return missing
    if not subject.networks:
        return (
            "a Plan can name only a network that the pipeline's module registers, and there is none: call "
            "headrace.engines.networks.register there, and name the pipeline with --pipeline"
        )
    return None


def _not_compiled(subject: Subject) -> str | None:
    missing = no_network(subject)
    if missing is not None:
        return missing
    from headrace.engines.torch_compile import why_no_compiler  # torch

    return why_no_compiler()


def _eager(subject: Subject) -> Candidates:
    assert subject.recipe is not None
    pictures = np.ndim(subject.recipe.example) == 4
    yield from on_torch({"channels_last": True} if pictures else {})(subject)


def on_torch(options: dict[str, Any]) -> Callable[[Subject], Candidates]:
    """Return what gives the recipe's weights as the torch engine runs them with these options."""

    def candidates(subject: Subject) -> Candidates:
        weights = _weights(subject)
        yield on_engine(subject, weights, TORCH, {"network": _name(subject, Path(weights.file)), **options})

    return candidates


def _weights(subject: Subject) -> Artifact:
    """Return the file of the recipe's weights."""
    from headrace.optimize.torch_files import torch

    assert subject.recipe is not None
    build = subject.recipe.build

    def make(output: Path) -> dict[str, Any]:
        torch.save(build().state_dict(), output)
        return {}

    return keep_file(subject, TORCH, subject.original, make, suffix=".pt")


def _name(subject: Subject, weights: Path) -> str:
    """Return the name of the registered network that takes these weights.

    Raises:
        EngineError: If there is none, with what each of them refuses.
    """
    from headrace.optimize.torch_files import torch

    assert subject.recipe is not None
    wanted, refused = np.shape(subject.recipe.example)[1:], []
    for name in subject.networks:
        network = registered(name)
        taken = np.shape(network.example)[1:]
        if taken != wanted:
            refused.append(f"{name!r} takes items of {list(taken)}, the recipe's of {list(wanted)}")
            continue
        try:
            network.make().load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except Exception as error:  # the user's own code runs here
            refused.append(f"{name!r}: {' '.join(str(error).split())[:200]}")
        else:
            return name
    raise EngineError(
        "no network that the pipeline's module registers takes the recipe's weights, so no Plan could name it: "
        + "; ".join(refused)
    )


def network_code(model: ModelPlan) -> tuple[str, ...]:
    """Return the SHA-256 of the files that define what an engine of networks runs; nothing for other engines.

    They are those of the function that was registered and of the classes of the network's modules. What their code calls in
    other files is not among them.
    """
    if not traits_of(model.engine).runs_networks:
        return ()
    make = registered(str(model.options.get("network"))).make
    kinds = {type(module) for module in make().modules()}
    return (hashlib.sha256(b"".join(sorted({source_of(one) for one in (make, *kinds)}))).hexdigest(),)


#: Tried with a recipe, after what its ONNX file allows.
UNCONVERTED = (
    Technique(
        name=TORCH, kind="lossless", needs="a recipe", option="--pipeline", expected=ExpectedSpeedup(0.3, 0.7),
        says="PyTorch's own kernels, channels last (0.3 to 0.7 times measured on ResNet-18 and MobileNetV2)",
        why_not=no_network, candidates=_eager,
    ),
    Technique(
        name="torch-compiled", kind="lossless", needs="a recipe", option="--pipeline", expected=ExpectedSpeedup(0.6, 0.9),
        says="torch.compile with constant weights (0.6 to 0.9 times measured on ResNet-18 and MobileNetV2)",
        why_not=_not_compiled, candidates=on_torch({"compile": True}),
    ),
    Technique(
        name="torch-bf16", kind="numeric", needs="a recipe", option="--pipeline", expected=ExpectedSpeedup(0.8, 3.7),
        says="torch.compile with constant weights in bfloat16 by autocast (0.8 to 3.7 times measured with AMX)",
        why_not=lambda subject: _not_compiled(subject) or why_no_bfloat16_instructions(subject),
        candidates=on_torch({"compile": True, "precision": "bf16"}),
    ),
)  # fmt: skip
