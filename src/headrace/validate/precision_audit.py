"""What an engine really made of a model: the precision its layers run in, and what converting between precisions costs.

A quantized file has no speed of its own: one and the same was 0.64 times as fast as its original on ONNX Runtime and 8.2
times on OpenVINO. The reason stands in the graph that the engine executes, and can be read there before anything is compared.

References:
    ONNX Runtime, "Quantize ONNX Models", section "Data type selection": on x86-64, unsigned activations with signed weights;
    measured with ResNet-18: 20 of 20 convolutions in int8 and 1 dequantization so, 9 of 20 and 51 with signed activations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.base.settings import list_names
from headrace.engines import traits_of
from headrace.engines.model_files import check_trust
from headrace.profiler.layers.table import PROFILERS, measure_layers
from headrace.runs.formats.census import CensusDocument, LayerGroup, LayerKind
from headrace.runs.formats.layers import Layer, LayersDocument
from headrace.validate.items import Items, fed
from headrace.validate.variant_spec import VariantSpec

#: Of the convolutions and products that a file has quantized, the least share that must run in int8: with a quarter of them in
#: float, and conversions around each, the rest could be free and the whole would hardly be three times as fast.
LEAST_INT8_SHARE = 0.75
#: Share of the time from which on conversions are named as a reason.
_MUCH_CONVERSION = 0.15
#: Share of the time below which products are not what the model's time goes to.
_FEW_PRODUCTS = 0.5
_PRODUCT = re.compile(r"conv(?!ert)|gemm|matmul|fullyconnected|attention|addmm|^aten::(linear|mm|bmm)$", re.IGNORECASE)
_CONVERSION = re.compile(r"quantizelinear|reorder|^convert$|^cast$|fakequantize|^transpose$", re.IGNORECASE)
_DYNAMIC = re.compile(r"integer|dynamicquantize", re.IGNORECASE)
#: Operators that a quantized model file holds.
_QUANTIZED = (b"DequantizeLinear", b"QLinearConv", b"QLinearMatMul", b"ConvInteger", b"MatMulInteger", b"FakeQuantize")
_INTEGER = re.compile(r"^QLinear|Integer")


def is_quantized(artifact: Path) -> bool:
    """Return whether a model file holds quantized layers."""
    content = artifact.read_bytes()
    return any(name in content for name in _QUANTIZED)


def check_can_tell(spec: VariantSpec) -> None:
    """Raise SettingsError if a variant's engine does not tell of its layers."""
    if spec.model.artifact is None or spec.model.engine not in PROFILERS:
        raise SettingsError(
            f"{spec.text}: the engine tells nothing of its layers; expected {list_names(PROFILERS.names(), spec.model.engine)}"
        )


def audit_precision(spec: VariantSpec, batch: Items, *, seconds: float = 1.0) -> CensusDocument:
    """Return how a variant really runs: what its layers compute in, and what takes its time.

    Args:
        spec: The variant.
        batch: Items of a call.
        seconds: Of calls, about.

    Raises:
        EngineError: If it cannot be opened, or its engine gives no profile.
        SettingsError: If its engine does not tell of its layers.
    """
    check_can_tell(spec)
    artifact = Path(spec.model.artifact or "")
    check_trust(artifact, spec.model.sha256)
    layers = measure_layers(
        artifact,
        engine=spec.model.engine,
        threads=spec.model.threads or 1,
        batch_size=len(batch),
        inputs=fed(batch),
        options=spec.model.options,
        seconds=seconds,
        with_ceilings=False,
    )
    return judge_layers(layers, quantized=is_quantized(artifact), written=_read_written(artifact))


@dataclass(frozen=True, slots=True)
class WrittenPrecision:
    """What a quantized file asks for."""

    num_products: int | None = None
    """Convolutions and products that it has quantized; None: it cannot be read."""
    is_signed: bool = False
    """Whether its activations are signed."""


def judge_layers(layers: LayersDocument, *, quantized: bool, written: WrittenPrecision | None = None) -> CensusDocument:
    """Return the census of a table of layers.

    Args:
        layers: As measured.
        quantized: Whether the model file is quantized.
        written: What it asks for.
    """
    written = written or WrittenPrecision()
    groups = _groups(layers.layers)
    int8_share = _int8_share(layers.layers, written.num_products)
    conversion_share = sum(group.share for group in groups if group.kind == "conversion")
    advice = _advise_quantized(layers, conversion_share, written) if quantized else _plain_advice(groups)
    return CensusDocument(
        engine=layers.engine,
        artifact=layers.artifact,
        batch_size=layers.batch_size,
        threads=layers.threads,
        latency_seconds=layers.latency_seconds,
        is_quantized=quantized,
        groups=groups,
        int8_share=int8_share,
        conversion_share=conversion_share,
        says=_says(layers.layers, conversion_share),
        advice=tuple(advice),
        warnings=layers.warnings,
    )


def kind_of(operator: str) -> LayerKind:
    """Return what an operator is, whatever its engine calls it."""
    if _CONVERSION.search(operator):
        return "conversion"
    return "product" if _PRODUCT.search(operator) else "other"


def _groups(layers: Sequence[Layer]) -> tuple[LayerGroup, ...]:
    members: dict[tuple[LayerKind, str], list[Layer]] = defaultdict(list)
    for layer in layers:
        members[kind_of(layer.operator), layer.precision].append(layer)
    flops: dict[LayerKind, float] = defaultdict(float)
    for layer in layers:
        flops[kind_of(layer.operator)] += layer.flops or 0.0
    found = [
        LayerGroup(
            kind=kind,
            precision=precision,
            num_layers=len(own),
            share=sum(layer.share for layer in own),
            flops_share=sum(layer.flops or 0.0 for layer in own) / flops[kind] if flops[kind] else None,
        )
        for (kind, precision), own in members.items()
    ]
    return tuple(sorted(found, key=lambda group: -group.share))


def _is_int8(layer: Layer) -> bool:
    return layer.precision in ("int8", "uint8")


def _products(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers if kind_of(layer.operator) == "product"]


def _int8_share(layers: Sequence[Layer], num_written: int | None) -> float | None:
    products = _products(layers)
    meant = len(products) if num_written is None else num_written
    return min(1.0, sum(map(_is_int8, products)) / meant) if meant else None


def _says(layers: Sequence[Layer], conversion_share: float) -> str:
    products = _products(layers)
    precisions: dict[str, int] = defaultdict(int)
    for layer in products:
        precisions[layer.precision or "unknown"] += 1
    by_precision = ", ".join(
        f"{number} in {name}" for name, number in sorted(precisions.items(), key=lambda it: -it[1])
    )
    conversions = sum(kind_of(layer.operator) == "conversion" for layer in layers)
    share = sum(layer.share for layer in products)
    return (
        f"convolutions and products ({by_precision or 'none'}): {share:.0%} of the time; "
        f"{pluralize(conversions, 'conversion')}: {conversion_share:.0%}"
    )


def _advise_quantized(layers: LayersDocument, conversion_share: float, written: WrittenPrecision) -> Iterator[str]:
    products = _products(layers.layers)
    floating = [layer for layer in products if not _is_int8(layer)]
    if any(_DYNAMIC.search(layer.operator) for layer in layers.layers):
        yield (
            "activations are quantized anew in every call (dynamic quantization), which makes convolutions slower, not faster: "
            "quantize statically, with calibration data"
        )
    if floating:
        slow = max(floating, key=lambda layer: layer.seconds)
        share = sum(layer.share for layer in floating)
        yield (
            f"{len(floating)} of {len(products)} convolutions and products run in {slow.precision or 'another precision'} "
            f"and take {share:.0%} of the time, most of all {slow.name} ({slow.operator})"
        )
    if written.is_signed and traits_of(layers.engine).prefers_unsigned and floating:
        yield (
            "its activations are signed (Int8), for which ONNX Runtime has few kernels on x86: quantize with unsigned ones "
            "(UInt8), as `headrace optimize` does, or run this file on OpenVINO"
        )
    if conversion_share > _MUCH_CONVERSION:
        yield (
            f"converting between types and layouts takes {conversion_share:.0%} of the time: layers that stay in float between "
            "quantized ones cost two conversions each; quantize those too, or leave their neighbours in float"
        )
    if sum(layer.share for layer in products) < _FEW_PRODUCTS:
        yield "most of the time goes to layers that int8 does not make faster"


def _plain_advice(groups: Sequence[LayerGroup]) -> Iterator[str]:
    share = sum(group.share for group in groups if group.kind == "product")
    yield (
        f"not quantized: convolutions and products take {share:.0%} of the time, and int8 makes nothing else faster; try it: "
        "`headrace optimize MODEL --data CALIBRATION --golden GOLDEN`"
    )


def _read_written(artifact: Path) -> WrittenPrecision:
    """Return what an ONNX file asks for; nothing where it cannot be read."""
    if artifact.suffix != ".onnx":
        return WrittenPrecision()
    try:
        import onnx
    except ImportError:
        return WrittenPrecision()
    graph = onnx.load(str(artifact), load_external_data=False).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    points = [node.input[2] for node in graph.node if node.op_type == "QuantizeLinear" and len(node.input) > 2]
    signed = any(types.get(point) == onnx.TensorProto.INT8 for point in points)
    makers = {name: node.op_type for node in graph.node for name in node.output}
    quantized = [
        node
        for node in graph.node
        if kind_of(node.op_type) == "product"
        and (_INTEGER.search(node.op_type) or all(makers.get(name) == "DequantizeLinear" for name in node.input[:2]))
    ]
    return WrittenPrecision(len(quantized), signed)
