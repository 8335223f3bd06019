"""What speaks against believing a per-layer table, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from headrace.base.formatting import pluralize
from headrace.profiler.layers.rescaling import OVERLAP_RATIO
from headrace.runs.formats.layers import Layer, LayersDocument

MAX_INFLATION = 1.2
"""Of the profiled over the unprofiled latency."""
MIN_INFLATION = 0.95
"""Less is no noise of the clock: the machine changed between the blocks."""
MAX_OUTSIDE_RATIO = 0.2
"""Of a call's time that no layer accounts for."""
MAX_COUNT_DIFFERENCE = 0.05
"""Between the two counts of operations."""
MIN_CALLS = 10
MAX_OF_CEILING = 1.1
"""Beyond 1 is noise up to here."""


def find_doubts(document: LayersDocument, num_missing: int) -> list[str]:
    """Return a sentence for each reason to doubt the table.

    Args:
        document: The table; its own warnings are not looked at.
        num_missing: Profiled calls that the engine's profiler did not keep.
    """
    return [*_doubt_times(document, num_missing), *_doubt_counts(document), *_doubt_ceilings(document.layers)]


def _doubt_times(document: LayersDocument, num_missing: int) -> Iterator[str]:
    if document.inflation > MAX_INFLATION:
        yield (
            f"the engine's profiler made the model {document.inflation:.2f} times slower (more than {MAX_INFLATION}); its cost "
            "was taken off each layer alike, so small layers are rough: compare no two models by this table"
        )
    if document.inflation < MIN_INFLATION:
        yield (
            f"calls with the engine's profiler on were faster than without ({document.inflation:.2f} times), which cannot be: "
            "something else used the machine meanwhile; measure again with nothing else running"
        )
    if num_missing:
        yield f"{num_missing} of the profiled calls are not in the engine's profile, which holds a limited number of events"
    if document.num_calls < MIN_CALLS:
        yield f"only {document.num_calls} calls were averaged; give more time for steadier figures"
    total = sum(layer.raw_seconds for layer in document.layers)
    outside = 1 - total / document.latency_seconds
    if outside > MAX_OUTSIDE_RATIO:
        yield (
            f"{outside:.0%} of a call passes outside the layers (binding inputs, starting threads); it was shared out among "
            "them in proportion"
        )
    elif total > OVERLAP_RATIO * document.profiled_latency_seconds:
        yield (
            f"the layers' times add up to {total / document.profiled_latency_seconds:.2f} times the call's: layers ran side by "
            "side, and all were scaled down in proportion"
        )


def _doubt_counts(document: LayersDocument) -> Iterator[str]:
    unknown: dict[str, float] = defaultdict(float)
    for layer in document.layers:
        if layer.flops is None:
            unknown[layer.operator] += layer.share
    if unknown:
        names = ", ".join(sorted(unknown))
        yield (
            f"operations are not known for {names} ({sum(unknown.values()):.1%} of the time); the total leaves them out"
        )
    total, check = document.total_flops, document.flops_cross_check
    if total is not None and check is not None and abs(total - check) > MAX_COUNT_DIFFERENCE * check:
        yield (
            f"the two counts of operations differ: {total:.4g} from the shapes that the engine ran, {check:.4g} from the graph "
            "in the file; an engine may pad channels, or leave out or add work"
        )


def _doubt_ceilings(layers: Sequence[Layer]) -> Iterator[str]:
    beyond = [layer for layer in layers if layer.of_ceiling is not None and layer.of_ceiling > MAX_OF_CEILING]
    if beyond:
        worst = max(beyond, key=lambda layer: layer.of_ceiling or 0.0)
        found = f"{pluralize(len(beyond), 'layer')} beyond the ceiling measured, {worst.name} {worst.of_ceiling:.2f} times it"
        yield f"{found}: something else may have used the machine while it was measured"
    other = sorted({layer.precision for layer in layers if layer.flops and layer.precision != "float32"})
    if other:
        yield f"layers in {', '.join(other)} have no compute ceiling of their own; only memory or overhead is found for them"
