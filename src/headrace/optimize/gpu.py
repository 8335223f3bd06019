"""The same file on an NVIDIA GPU: named on every machine, tried where the provider can be used.

Running on a GPU was not tested; the messages on a machine without one were.
"""

from __future__ import annotations

from headrace.engines import ONNX, TORCH, reads, why_missing, why_not
from headrace.optimize.techniques import Candidates, Subject, Technique, on_engine


def _by_provider(provider: str, says: str) -> Technique:
    options = {"provider": provider}
    return Technique(
        name=provider, kind="lossless", says=says, why_not=lambda subject: _no_onnx_file(subject) or why_not(ONNX, options),
        candidates=lambda subject: iter([on_engine(subject, subject.original, ONNX, options)]),
    )  # fmt: skip


def _no_onnx_file(subject: Subject) -> str | None:
    return None if reads(ONNX, subject.path) else f"{subject.path.name} is no ONNX file"


def _no_torch_tensorrt(subject: Subject) -> str | None:
    if (missing := why_missing(TORCH)) is not None:
        return f"tensorrt is not available here, because {missing}"
    from headrace.optimize.unconverted import no_network

    return why_not(TORCH, {"provider": "tensorrt"}) or no_network(subject)


def _by_torch_tensorrt(subject: Subject) -> Candidates:
    from headrace.optimize.unconverted import on_torch

    return on_torch({"provider": "tensorrt"})(subject)


#: Tried on the model as given.
GPU = (
    _by_provider("cuda", "the same file by ONNX Runtime on an NVIDIA GPU"),
    _by_provider("tensorrt", "the same file by TensorRT, in the precision that the file is typed in"),
    Technique(
        name="torch-tensorrt", kind="lossless", needs="a recipe", option="--pipeline",
        says="the recipe's network compiled by Torch-TensorRT",
        why_not=_no_torch_tensorrt, candidates=_by_torch_tensorrt,
    ),
)  # fmt: skip
