"""Two gates that ask a candidate what no golden set holds: the same item in other batches, and inputs at the edge.

    batches    an item is answered alone, with one neighbour, and in the largest batch: the answer must be the same
    extremes   black, white, noise, tiny numbers, and where the input takes it NaN: no NaN or infinity may come of it that does
               not come of the model in use

Both take a few calls. What a model refuses (a batch of two, where its file says one) is not asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.meaning import Meaning
from headrace.base.protocols import Model
from headrace.validate.agreement import Agreement
from headrace.validate.golden import spread
from headrace.validate.items import Feed, Items, fed, find_fixed_batch, main_array, replace_main
from headrace.validate.meanings import Numbers
from headrace.validate.parity import BANDS, has_broken, join_answers, name_outputs

Array = np.ndarray
Call = Callable[[Feed], Any]

#: Items that are answered in batches of several sizes, and the size up to which batches grow if nobody asks for more.
ITEMS = 8
#: Differences between batch sizes as a share of a channel's spread that are rounding, and in bands of a precision.
_ROUNDING, _MOST_BANDS = 1e-2, 5.0


@dataclass(frozen=True, slots=True)
class BatchDifference:
    """How far answers to the same items in batches of two sizes are apart."""

    size: int
    """Of the batch in which they differ most from those to an item alone."""
    off: float
    """Difference of the worst channel of any item in units of its spread; infinite where a NaN comes or goes."""
    changed: float | None
    """Share of the items with another answer; None: what they mean is not known."""


def compare_batches(model: Call, items: Items, sizes: Sequence[int], meaning: Meaning | None) -> BatchDifference | None:
    """Return how much answers depend on the neighbours in the batch; None if a model takes only one size of batch.

    Args:
        model: Called with so many items.
        items: At least as many as the largest size; the first `ITEMS` are compared.
        sizes: Of the batches.
        meaning: Fitted; None: not known.
    """
    answered: dict[int, Any] = {}
    for size in sizes:
        try:
            answered[size] = _answer_in_batches(model, items, size)
        except Exception:  # engines raise their own types: it takes no such batch, and then none comes
            continue
    if len(answered) < 2:
        return None
    alone = answered.pop(min(answered))
    found = [_measure_difference(alone, other, size, meaning) for size, other in answered.items()]
    return max(found, key=lambda one: one.off)


def find_rounding(precision: str) -> float:
    """Return by what share of its spread a channel may differ from batch to batch: other kernels round otherwise."""
    return max(_ROUNDING, _MOST_BANDS * BANDS[precision])


def find_broken_inputs(a: Call, b: Call, items: Items, *, same_engine: bool) -> list[str]:
    """Return the inputs, in words, to which B gives a NaN or an infinity and A does not, or which B alone refuses.

    Args:
        a: The model in use.
        b: The candidate.
        items: Of which black, white and the like are made; of several inputs the one with the most numbers.
        same_engine: Whether both run on the same one: engines disagree on what the largest of a number and NaN is, so that
            for others only the neighbours of an item with NaN are looked at.
    """
    return [name for name, batch, row in _extremes(items, same_engine=same_engine) if _breaks(a, b, batch, row)]


def largest_batch(model: Model, batch: int) -> int:
    """Return the largest batch to ask: the one that is asked for, at least `ITEMS`, where the model takes any."""
    return find_fixed_batch(model.inputs) or max(batch, ITEMS)


def _answer_in_batches(model: Call, items: Items, size: int) -> list[Any]:
    """Return the answers to the first items, batch by batch; the largest batch has others behind them."""
    last = max(size, ITEMS)
    return [model(fed(items[start : start + size])) for start in range(0, ITEMS, size) if start < last]


def _measure_difference(
    alone: Sequence[Any], together: Sequence[Any], size: int, meaning: Meaning | None
) -> BatchDifference:
    changed = None
    if meaning is not None:
        read = [[one for outputs in calls for one in meaning.read(outputs)][:ITEMS] for calls in (alone, together)]
        changed = float(Agreement(meaning).add_read(*read).mean())
    try:
        first, second = (_first_items(join_answers(calls)) for calls in (alone, together))
        return BatchDifference(size, _worst(first, second), changed)
    except ValueError:  # as many rows as the batch needs: there is no like at the same place
        return BatchDifference(size, changed or 0.0, changed)


def _first_items(outputs: Any) -> Mapping[str, Array]:
    return {name: array[:ITEMS] for name, array in name_outputs(outputs).items()}


def _worst(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
    numbers = Numbers().fitted([a])
    if any((np.isfinite(a[name]) != np.isfinite(b[name])).any() for name in a if a[name].dtype.kind == "f"):
        return float("inf")
    both = zip(numbers.read(a), numbers.read(b), strict=True)
    return max(numbers.furthest(one, other) for one, other in both)


def _extremes(items: Items, *, same_engine: bool) -> Iterator[tuple[str, Feed, int | None]]:
    """Give (name, batch of one or two, the row whose answer counts; None: all)."""
    for name, array, row in _extreme_arrays(main_array(items), same_engine=same_engine):
        yield name, fed(replace_main(items[np.zeros(len(array), int)], array)), row


def _extreme_arrays(values: Array, *, same_engine: bool) -> Iterator[tuple[str, Array, int | None]]:
    one = np.asarray(values[:1])
    low, high = values.min(), values.max()
    noise = np.random.default_rng(0).random(one.shape)
    yield "zeros", np.zeros_like(one), None
    yield "black (the least value of the golden set everywhere)", np.full_like(one, low), None
    yield "white (its largest value everywhere)", np.full_like(one, high), None
    spread_out = low.astype(np.float64) + noise * (high.astype(np.float64) - low.astype(np.float64))
    yield "noise", spread_out.astype(one.dtype), None
    if one.dtype.kind == "f":
        yield "tiny numbers", (noise * 1e-30 if one.dtype != np.float16 else noise * 1e-7).astype(one.dtype), None
        if same_engine:
            yield "NaN", np.full_like(one, np.nan), None
        yield "an item beside one of NaN", np.concatenate([one, np.full_like(one, np.nan)]), 0


def _breaks(a: Call, b: Call, batch: Feed, row: int | None) -> bool:
    try:
        if _is_broken(a(batch), row):
            return False
    except Exception:  # what the model in use refuses is not asked
        return False
    try:
        return _is_broken(b(batch), row)
    except Exception:  # engines raise their own types
        return True


def _is_broken(outputs: Any, row: int | None) -> bool:
    return has_broken(
        outputs if row is None else {name: one[row : row + 1] for name, one in name_outputs(outputs).items()}
    )


def probes(items: Items, size: int) -> Items:
    """Return at least `size` and `ITEMS` items, spread over a set, around again where there are too few."""
    places = spread(len(items), max(size, ITEMS))
    return items[places[np.arange(max(size, ITEMS)) % len(places)]]
