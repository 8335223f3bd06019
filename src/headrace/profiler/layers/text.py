"""The per-layer table as text for a terminal."""

from __future__ import annotations

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration
from headrace.runs.formats.layers import Ceilings, Layer, LayersDocument

_HEADER = ("layer", "operator", "output", "time", "share", "GFLOP", "GFLOP/s", "ops/byte", "bound", "of ceiling")
_LEFT = 3  # columns of words; the others are numbers, right-aligned
_MAX_WIDTH = 36


def as_text(document: LayersDocument, *, limit: int = 15) -> str:
    """Return a summary, the layers that take longest, what limits the model, and the warnings.

    Args:
        document: The table.
        limit: Layers to show, >= 1.
    """
    below = [*_bounds(document.layers), _ceilings(document.ceilings)] if document.ceilings else []
    below += [f"warning: {warning}" for warning in document.warnings]
    return "\n".join([*_summary(document), "", *_table(document, limit), "", *wrap_lines(below)]) + "\n"


def _summary(document: LayersDocument) -> list[str]:
    threads = pluralize(document.threads, "thread")
    latency, profiled = format_duration(document.latency_seconds), format_duration(document.profiled_latency_seconds)
    return [
        f"{document.artifact}, {document.engine}, batch {document.batch_size}, {threads}",
        f"{latency} a call; {profiled} with the engine's profiler on ({document.inflation:.2f} times)",
        f"{document.num_calls} profiled calls averaged, {document.num_dropped} dropped",
        f"{_giga(document.total_flops)} GFLOP a call; {_giga(document.flops_cross_check)} by the graph in the file",
    ]


def _table(document: LayersDocument, limit: int) -> list[str]:
    ranked = sorted(document.layers, key=lambda layer: -layer.seconds)
    rows = [_HEADER, *(_row(layer) for layer in ranked[:limit])]
    lines = align_columns(rows, num_left=_LEFT)
    if rest := ranked[limit:]:
        lines.append(f"and {len(rest)} more, {sum(layer.share for layer in rest):.1%} of the time")
    return lines


def _row(layer: Layer) -> tuple[str, ...]:
    return (
        layer.name if len(layer.name) <= _MAX_WIDTH else "..." + layer.name[3 - _MAX_WIDTH :],
        layer.operator,
        layer.output_shape or "-",
        format_duration(layer.seconds),
        f"{layer.share:.1%}",
        _giga(layer.flops),
        _giga(layer.flops_per_second),
        "-" if layer.intensity is None else f"{layer.intensity:.1f}",
        layer.bound,
        "-" if layer.of_ceiling is None else f"{layer.of_ceiling:.0%}",
    )


def _bounds(layers: tuple[Layer, ...]) -> list[str]:
    shares = {
        bound: sum(layer.share for layer in layers if layer.bound == bound)
        for bound in ("compute", "memory", "overhead", "unknown")
    }
    parts = ", ".join(f"{bound} {share:.0%}" for bound, share in shares.items() if share >= 0.005)
    lines = [f"time by what limits it: {parts}"]
    if shares["overhead"] >= 0.005:
        lines.append("overhead: reaches less than a tenth of both ceilings, being too small or its kernel slow")
    return lines


def _ceilings(ceilings: Ceilings) -> str:
    fastest = max((point.bytes_per_second for point in ceilings.bandwidths), default=ceilings.bytes_per_second)
    return (
        f"ceilings here: {_giga(ceilings.flops_per_second)} GFLOP/s; {_giga(ceilings.bytes_per_second)} GB/s from memory, "
        f"up to {_giga(fastest)} GB/s from caches"
    )


def _giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.3g}"
