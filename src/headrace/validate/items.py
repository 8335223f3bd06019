"""Items as a model takes them: an array, or of a model with several inputs an array for each.

Who asks models takes parts of a set by their places (`items[places]`) and calls with `fed(part)`, whichever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.protocols import TensorSpec

Feed = np.ndarray | Mapping[str, np.ndarray]
"""What a model is called with."""


@dataclass(frozen=True, slots=True, eq=False)  # an array has no hash
class NamedItems:
    """Items of a model with several inputs."""

    arrays: Mapping[str, np.ndarray]
    """{input: (items, ...)}, at least one."""
    same: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{input: array} that every call is given as it is, such as a sampling rate."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """{input: axis} where the model has the items on another axis than the first."""

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, places: slice | np.ndarray) -> NamedItems:
        return replace(self, arrays={name: array[places] for name, array in self.arrays.items()})

    def feed(self) -> dict[str, np.ndarray]:
        """Return {input: array} for one call with all of them."""
        moved = {name: np.moveaxis(array, 0, self.axes.get(name, 0)) for name, array in self.arrays.items()}
        return {**{name: np.ascontiguousarray(array) for name, array in moved.items()}, **self.same}


Items = np.ndarray | NamedItems
"""(items, ...), or those of several inputs."""


def fed(items: Items) -> Feed:
    """Return what a model is called with for all of some items."""
    return items.feed() if isinstance(items, NamedItems) else np.ascontiguousarray(items)


def batch_of(items: Items, size: int) -> Feed:
    """Return what a model is called with for the first items, around again where there are too few."""
    return fed(items[np.arange(size) % len(items)])


def arrays_of(items: Items) -> Mapping[str, np.ndarray]:
    """Return (items, ...) arrays by the names of their inputs; of one input by none."""
    return items.arrays if isinstance(items, NamedItems) else {"": items}


def main_array(items: Items) -> np.ndarray:
    """Return (items, ...) of the input with the most numbers, such as the image beside its size."""
    return max(arrays_of(items).values(), key=lambda array: array[:1].size)


def replace_main(items: Items, array: np.ndarray) -> Items:
    """Return items whose input with the most numbers is another one."""
    if not isinstance(items, NamedItems):
        return array
    main = main_array(items)
    return replace(items, arrays={name: array if own is main else own for name, own in items.arrays.items()})


def contents(items: Items) -> Iterator[tuple[np.ndarray, ...]]:
    """Give the arrays of each item."""
    yield from zip(*arrays_of(items).values(), strict=True)


def describe_items(items: Items) -> str:
    """Return type and shape, of several inputs with their names."""
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}".strip() for name, array in arrays_of(items).items())


def check_inputs(items: Items, specs: Sequence[TensorSpec], where: str) -> None:
    """Raise SettingsError if a model takes other inputs than items have arrays for; one array is for one input.

    Args:
        items: Of a set.
        specs: The model's inputs.
        where: The items are from, for the error.
    """
    names = {spec.name for spec in specs}
    has = {*items.arrays, *items.same} if isinstance(items, NamedItems) else {""}
    if len(names) == len(has) == 1 or names == has:
        return
    raise SettingsError(
        f"{where} has {describe_items(items)}, and the model takes {len(specs)} inputs ({', '.join(sorted(names))}): give an "
        ".npz file with an array (items, ...) for each of them, by its name"
    )


def item_axis(spec: TensorSpec) -> int | None:
    """Return the axis of an input that items are on: the first, or the second of a state whose first is its layers.

    None for a scalar, which has none.
    """
    if not spec.shape:
        return None
    is_state = len(spec.shape) > 2 and isinstance(spec.shape[0], int) and isinstance(spec.shape[1], str)
    return 1 if is_state else 0


def find_fixed_batch(specs: Sequence[TensorSpec]) -> int:
    """Return the number of items that a model is fixed to; 0 if it takes any."""
    axes = [(spec.shape, item_axis(spec)) for spec in specs]
    fixed = (shape[axis] for shape, axis in axes if axis is not None)
    return next((length for length in fixed if isinstance(length, int)), 0)


def name_items(arrays: Mapping[str, Any], specs: Sequence[TensorSpec], where: str) -> NamedItems:
    """Return items of a model with several inputs.

    Args:
        arrays: {input: (items, ...)}, or what every call is given as it is: a scalar, or an array that is just what an input
            without a free axis takes.
        specs: The model's inputs.
        where: The arrays are from, for the error.

    Raises:
        SettingsError: If an input has no array, or arrays hold different numbers of items.
    """
    missing = [spec.name for spec in specs if spec.name not in arrays]
    if missing:
        raise SettingsError(
            f"{where} has {', '.join(arrays) or 'nothing'}, and the model takes {', '.join(spec.name for spec in specs)}: "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give an array (items, ...) for each of the "
            "model's inputs, by its name"
        )
    num_items = max((len(arrays[spec.name]) for spec in specs if np.ndim(arrays[spec.name])), default=0)
    same: dict[str, np.ndarray] = {}
    each: dict[str, np.ndarray] = {}
    for spec in specs:
        array = np.asarray(arrays[spec.name])
        is_whole = array.shape == tuple(spec.shape) and array.shape[:1] != (num_items,)
        (same if is_whole or not array.ndim else each)[spec.name] = array
    lengths = {name: len(array) for name, array in each.items()}
    if not each or len(set(lengths.values())) > 1 or not num_items:
        told = ", ".join(f"{name} {list(array.shape)}" for name, array in each.items())
        raise SettingsError(
            f"{where}: {told or 'no array has items'}; expected the same number of items in each of the model's inputs, at "
            "least one"
        )
    axes = {spec.name: item_axis(spec) or 0 for spec in specs if spec.name in each}
    return NamedItems(each, same, axes)
