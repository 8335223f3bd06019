"""What would fail on which engine, before anybody deploys: operators, batch sizes, precisions, and what is missing here.

What is installed is asked: the engine opens the file and is called with batches of noise. Of what is not, such as TensorRT on
a machine without a GPU, the file alone tells something: operators that no other engine knows, quantization of a kind that it
does not take.

References:
    NVIDIA TensorRT documentation, "Working with Quantized Types" (QuantizeLinear and DequantizeLinear, symmetric, INT8) and the
    operators' support matrix of onnx-tensorrt; ONNX Runtime, "Contrib operators" (com.microsoft).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.base.errors import EngineError, HeadraceError, MissingExtra
from headrace.base.words import counted
from headrace.engines import engine
from headrace.engines.onnx_engine import why_not
from headrace.optimize.onnx_files import load, numpy_helper, onnx
from headrace.runs.formats.portability import Outcome, Place, PortabilityDocument
from headrace.runs.processor import BFLOAT16_FLAGS, FLOAT16_FLAGS, INT8_FLAGS
from headrace.validate.golden import made_up

#: Batches that a pipeline may form.
_BATCHES = (1, 3, 8)
#: Engine and options of each place that opens ONNX files, in the order of telling; PyTorch comes after them.
PLACES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("onnx", {}),
    ("openvino", {"precision": "f32"}),
    ("openvino", {"precision": "bf16"}),
    ("openvino", {"precision": "f16"}),
    ("onnx", {"provider": "cuda"}),
    ("onnx", {"provider": "tensorrt"}),
)
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_CONTRIBUTED = "com.microsoft"
#: Operators that compute in integers by themselves: each engine has its own, QDQ is what all read.
_INTEGER_OPERATORS = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
)


@dataclass(frozen=True, slots=True)
class _File:
    """What a model file says of itself."""

    path: Path
    opset: int
    foreign: Mapping[str, tuple[str, ...]]
    """{domain: operators} outside the standard."""
    integer: tuple[str, ...]
    """Operators that compute in integers by themselves."""
    fixed_batch: int | None
    precision: str
    unsigned: bool
    """Whether activations are quantized without a sign, or around another number than 0."""


def find_portability(artifact: Path, flags: frozenset[str], *, of_recipe: bool = False) -> PortabilityDocument:
    """Return where an ONNX file can run.

    Args:
        artifact: The file.
        flags: Of the processor.
        of_recipe: Whether a recipe's network was converted to it just now, so that PyTorch has run it.

    Raises:
        EngineError: If it is no ONNX file.
    """
    file = _look(artifact)
    return PortabilityDocument(
        artifact=str(artifact),
        sha256=hashlib.sha256(artifact.read_bytes()).hexdigest(),
        opset=file.opset,
        precision=file.precision,
        places=(*(_place(file, name, options, flags) for name, options in PLACES), _on_pytorch(of_recipe)),
    )


def _look(artifact: Path) -> _File:
    model = load(artifact)
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    foreign: dict[str, set[str]] = {}
    for node in nodes:
        if node.domain not in _STANDARD:
            foreign.setdefault(node.domain, set()).add(node.op_type)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    axis = inputs[0].type.tensor_type.shape.dim[:1] if inputs else []
    integer = sorted({node.op_type for node in nodes} & _INTEGER_OPERATORS)
    quantized = bool(integer) or any(node.op_type == "DequantizeLinear" for node in nodes)
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in weights.values())
    return _File(
        path=artifact,
        opset=max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0),
        foreign={domain: tuple(sorted(names)) for domain, names in foreign.items()},
        integer=tuple(integer),
        fixed_batch=axis[0].dim_value or None if axis else None,
        precision="int8" if quantized else "f16" if half else "f32",
        unsigned=any(_is_unsigned(node, weights) for node in nodes if node.op_type == "QuantizeLinear"),
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Give a graph and those inside its nodes, such as the branches of an If."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)


def _is_unsigned(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> bool:
    zero = weights.get(node.input[2]) if len(node.input) > 2 else None
    return zero is None or zero.data_type != onnx.TensorProto.INT8 or bool(np.any(numpy_helper.to_array(zero)))


def _place(file: _File, name: str, options: Mapping[str, str], flags: frozenset[str]) -> Place:
    fails = list(_seen_in_file(file, name, options))
    outcome: Outcome = "fails"
    try:
        missing = why_not(options["provider"]) if "provider" in options else None
        if missing is None and not fails:
            fails += _tried(file, name, options)
    except MissingExtra as error:
        missing = str(error)
    slow = [] if fails or missing else list(_slow(file, name, options, flags))
    if not fails:
        outcome = "not here" if missing else "poorly" if slow else "runs"
    findings = (*fails, *([missing] if missing else []), *slow)
    return Place(engine=name, options=dict(options), outcome=outcome, findings=findings)


def _on_pytorch(of_recipe: bool) -> Place:
    """Return the place that opens no ONNX file: it runs networks of the user's code."""
    if not of_recipe:
        says = (
            "PyTorch opens weights in a network of your code, not ONNX files; name a recipe as MODULE:ATTRIBUTE in the place "
            "of the file, and the search tries it"
        )
        return Place(engine="torch", outcome="needs a recipe", findings=(says,))
    from headrace.engines.torch_gpu import why_not as why_not_by_torch

    missing = (why_not_by_torch(provider) for provider in ("cuda", "tensorrt"))
    return Place(engine="torch", outcome="runs", findings=tuple(why for why in missing if why))


def _seen_in_file(file: _File, name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Give what an engine will refuse, as far as the file tells."""
    provider = options.get("provider")
    for domain, operators in file.foreign.items():
        known = name == "onnx" and domain == _CONTRIBUTED and provider != "tensorrt"
        if provider == "tensorrt" or (name == "onnx" and not known):
            yield (
                f"{', '.join(operators)} of {domain} {'is' if len(operators) == 1 else 'are'} not among the standard "
                "operators; export without ONNX Runtime's own fusions, or write it in standard operators"
            )
    if provider == "tensorrt":
        if file.integer:
            yield (
                f"{', '.join(file.integer)}: TensorRT reads quantization as QuantizeLinear and DequantizeLinear alone; "
                "quantize as QDQ"
            )
        elif file.precision == "int8" and file.unsigned:
            yield (
                "its activations are quantized without a sign: TensorRT takes int8 around 0 alone; quantize with signed, "
                "symmetric activations for it (slow on ONNX Runtime's CPU: keep both files)"
            )


def _tried(file: _File, name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Open the file and give what went wrong with it, at several batch sizes."""
    try:
        model = engine(name).open(file.path, threads=1, options=options)
        if len(model.inputs) != 1:
            return  # nothing can be made up that fits together
        noise = made_up(model.inputs[0], max(_BATCHES)).inputs
    except MissingExtra:
        raise
    except HeadraceError as error:
        yield str(error)
        return
    refused = {}
    for size in _BATCHES:
        try:
            _check_answer(model(np.ascontiguousarray(noise[:size])), size)
        except Exception as error:  # engines raise their own types
            refused[size] = " ".join(str(error).split())[:200]
    if refused and file.fixed_batch is not None and file.fixed_batch not in refused:
        yield (
            f"it takes batches of {file.fixed_batch} alone, and a pipeline forms any: export it with a dynamic first axis "
            "(dynamic_axes, or a Dim), or set the stage's batch to that and pad"
        )
    elif refused:
        sizes = ", ".join(map(str, refused))
        yield f"it refuses {'a batch' if len(refused) == 1 else 'batches'} of {sizes}: {next(iter(refused.values()))}"


def _check_answer(answer: object, size: int) -> None:
    for array in answer.values() if isinstance(answer, Mapping) else (np.asarray(answer),):
        if not array.ndim or len(array) != size:
            raise EngineError(f"{counted(size, 'item')} give an answer of the shape {list(array.shape)}")


def _slow(file: _File, name: str, options: Mapping[str, str], flags: frozenset[str]) -> Iterator[str]:
    """Give what would run, and not well."""
    if "provider" in options:
        return
    precision = options.get("precision")
    if precision == "bf16" and not flags.intersection(BFLOAT16_FLAGS):
        yield f"this processor does not compute in bfloat16 (none of {', '.join(BFLOAT16_FLAGS)}): slower than float32"
    if (precision == "f16" or file.precision == "f16") and not flags.intersection(FLOAT16_FLAGS):
        yield (
            f"this processor does not compute in half precision (none of {', '.join(FLOAT16_FLAGS)}): 0.66 times the speed of "
            "float32 was measured, and numbers above 65,504 overflow"
        )
    if file.precision == "int8" and not flags.intersection(INT8_FLAGS):
        yield (
            f"this processor has no instructions for int8 (none of {', '.join(INT8_FLAGS)}): little is gained, and sums of two "
            "products can overflow; quantize with reduced range for it"
        )
    if name == "onnx" and file.precision == "int8" and not file.unsigned and not file.integer:
        yield (
            "its activations are signed: on ONNX Runtime's CPU half of it falls back to float32; quantize with unsigned ones, "
            "or run it on OpenVINO"
        )
