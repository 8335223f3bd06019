"""What would fail on which engine, before anybody deploys: operators, batch sizes, precisions, and what is missing here.

What is installed is asked: the engine opens the file and is called with batches of what the caller gave, or of noise, in a
process of its own, for a crash is an answer too. Of what is not, such as TensorRT on a machine without a GPU, the file alone
tells something: operators that no other engine knows, quantization of a kind that it does not take.

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

from headrace.base.errors import EngineError, MissingExtra, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.plan import ModelPlan
from headrace.engines import TORCH, file_engines, open_model, reads, traits_of, why_not
from headrace.optimize.onnx_files import load, numpy_helper, onnx, opset_of
from headrace.runs.cpu_features import BFLOAT16_FLAGS, FLOAT16_FLAGS, INT8_FLAGS
from headrace.runs.formats.portability import Outcome, Place, PortabilityDocument
from headrace.validate.items import Items, batch_of
from headrace.validate.synthetic_inputs import Shapes, make_up
from headrace.validate.trials import Feed, ModelTrial, try_calls

#: Batches that a pipeline may form.
_BATCHES = (1, 3, 8)
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
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
    has_states: bool
    """Whether it takes several inputs: then all but the first, and all but the first output, may be states without items."""
    batch_axes: tuple[int, ...]
    """Of each output: where the file names the batch of the first input there, else the first."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What engines are called with."""

    feeds: Mapping[int, Feed]
    """{batch size: what one call is given}; empty: nothing is known that the model takes."""
    why_none: str = ""
    """Why there is nothing."""


def find_portability(
    artifact: Path,
    flags: frozenset[str],
    *,
    of_recipe: bool = False,
    items: Items | None = None,
    prepared: tuple[int, ...] | None = None,
) -> PortabilityDocument:
    """Return where an ONNX file can run.

    Args:
        artifact: The file.
        flags: Of the processor.
        of_recipe: Whether a recipe's network was converted to it just now, so that PyTorch has run it.
        items: As the model takes them; None: noise.
        prepared: Shape of an item as the pipeline prepares it, for noise; None: not known.

    Raises:
        EngineError: If it is no ONNX file.
    """
    file = _look(artifact)
    asked = _prepare_asked(artifact, items, prepared)
    return PortabilityDocument(
        artifact=str(artifact),
        sha256=hashlib.sha256(artifact.read_bytes()).hexdigest(),
        opset=file.opset,
        precision=file.precision,
        places=(
            *(_place(file, asked, name, options, flags) for name, options in _places(artifact)),
            _on_pytorch(of_recipe),
        ),
    )


def _places(artifact: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Give engine and options of each place that opens the file, other hardware last; PyTorch comes after them."""
    engines = [name for name in file_engines() if reads(name, artifact)]
    for name in engines:
        yield from ((name, {"precision": one}) for one in traits_of(name).precisions)
        if not traits_of(name).precisions:
            yield name, {}
    yield from ((name, {"provider": one}) for name in engines for one in traits_of(name).providers)


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
        opset=opset_of(model),
        foreign={domain: tuple(sorted(names)) for domain, names in foreign.items()},
        integer=tuple(integer),
        fixed_batch=axis[0].dim_value or None if axis else None,
        precision="int8" if quantized else "f16" if half else "f32",
        unsigned=any(_is_unsigned(node, weights) for node in nodes if node.op_type == "QuantizeLinear"),
        has_states=len(inputs) > 1,
        batch_axes=tuple(_batch_axis(value, axis[0].dim_param if axis else "") for value in model.graph.output),
    )


def _batch_axis(output: onnx.ValueInfoProto, batch: str) -> int:
    """Return the axis of an output that bears the batch's name; recognisers of text may have it second, after time."""
    names = [axis.dim_param for axis in output.type.tensor_type.shape.dim]
    return names.index(batch) if batch and batch in names else 0


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


def _prepare_asked(artifact: Path, items: Items | None, prepared: tuple[int, ...] | None) -> _Asked:
    """Return what engines are called with: what was given, else noise that ONNX Runtime answers."""
    plan = ModelPlan(artifact=str(artifact), threads=1)
    try:
        model = open_model(plan, None, 1)
    except EngineError as error:
        return _Asked({}, str(error))
    first = model.inputs[0]
    if items is not None:
        feeds = {size: batch_of(items, size) for size in _BATCHES}
        return _Asked({size: feed if isinstance(feed, Mapping) else {first.name: feed} for size, feed in feeds.items()})
    known: list[Shapes] = [{first.name: ("batch", *prepared)}] if prepared else []
    try:
        made = make_up(plan, model.inputs, model.metadata, known)
    except SettingsError as error:
        return _Asked({}, str(error))
    return _Asked({size: made.feed(size) for size in _BATCHES})


def _place(file: _File, asked: _Asked, name: str, options: Mapping[str, str], flags: frozenset[str]) -> Place:
    fails = list(_look_into_file(file, name, options))
    outcome: Outcome = "fails"
    called = True
    try:
        missing = why_not(name, options)
        if missing is None and not fails:
            wrong, called, missing = _try_engine(file, asked, name, options)
            fails += wrong
    except MissingExtra as error:
        missing = str(error)
    slow = [] if fails or missing else list(_slow(file, name, options, flags))
    if not fails:
        outcome = "not here" if missing else "opens" if not called else "poorly" if slow else "runs"
    notes = [missing] if missing else []
    if outcome == "opens":
        notes.append(f"it was not called: {asked.why_none}")
    return Place(engine=name, options=dict(options), outcome=outcome, findings=(*fails, *notes, *slow))


def _on_pytorch(of_recipe: bool) -> Place:
    """Return the place that opens no ONNX file: it runs networks of the user's code."""
    if not of_recipe:
        says = (
            "PyTorch opens weights in a network of your code, not ONNX files; name a recipe as MODULE:ATTRIBUTE in the place "
            "of the file, and the search tries it"
        )
        return Place(engine=TORCH, outcome="needs a recipe", findings=(says,))
    missing = (why_not(TORCH, {"provider": provider}) for provider in traits_of(TORCH).providers)
    return Place(engine=TORCH, outcome="runs", findings=tuple(why for why in missing if why))


def _look_into_file(file: _File, name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Give what an engine will refuse, as far as the file tells."""
    provider, known = options.get("provider"), traits_of(name).domains
    for domain, operators in file.foreign.items():
        if provider == "tensorrt" or (known is not None and domain not in known):
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


def _try_engine(
    file: _File, asked: _Asked, name: str, options: Mapping[str, str]
) -> tuple[list[str], bool, str | None]:
    """Open the file and call it, elsewhere; return what went wrong, whether it was called, and what is missing."""
    plan = ModelPlan(artifact=str(file.path), engine=name, threads=1, options=dict(options))
    tried = try_calls(plan, list(asked.feeds.values()))
    if tried.missing or tried.refused:
        return [tried.refused] if tried.refused else [], False, tried.missing or None
    refused = {
        size: why
        for size, trial in zip(asked.feeds, tried.calls, strict=True)
        if (why := _why_no_answer(trial, size, file, asked))
    }
    if refused and file.fixed_batch is not None and file.fixed_batch not in refused:
        wrong = (
            f"it takes batches of {file.fixed_batch} alone, and a pipeline forms any: export it with a dynamic first axis "
            "(dynamic_axes, or a Dim), or set the stage's batch to that and pad"
        )
        return [wrong], True, None
    sizes = ", ".join(map(str, refused))
    wrong = f"it refuses {'a batch' if len(refused) == 1 else 'batches'} of {sizes}: {next(iter(refused.values()), '')}"
    return [wrong] if refused else [], bool(asked.feeds), None


def _why_no_answer(trial: ModelTrial, size: int, file: _File, asked: _Asked) -> str:
    """Return what is wrong with an answer; empty: nothing. Of several inputs some may be states, and so may outputs."""
    if trial.shapes is None:
        return trial.why
    for shape, axis in list(zip(trial.shapes.values(), file.batch_axes, strict=False))[
        : 1 if file.has_states else None
    ]:
        if len(shape) <= axis or shape[axis] != size:
            return f"{pluralize(size, 'item')} give an answer of the shape {shape}"
    return ""


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
    if traits_of(name).prefers_unsigned and file.precision == "int8" and not file.unsigned and not file.integer:
        yield (
            "its activations are signed: on ONNX Runtime's CPU half of it falls back to float32; quantize with unsigned ones, "
            "or run it on OpenVINO"
        )
