"""How much memory files of other people may take when they are unpacked: one bound, for indexes, tables and batches.

A file of some kilobytes may unpack to gigabytes. What it would come to is found before, from the sizes that stand in front of
each compressed part; what a footer says of them is not believed. See `parquet_pages` and `arrow_messages`.
"""

from __future__ import annotations

from typing import Any

#: The largest value, page or batch that is believed whatever it takes in the file.
MOST_BYTES = 2**29
#: What is larger may be this many times as large as in the file.
MOST_RATIO = 16
#: Beside the characters of a text: where it begins and ends, and whether it is one.
_TEXT_BYTES = 9


class TooLarge(ValueError):
    """Something would take more memory than is believed; the message says what."""


def most_expanded(stored: int) -> int:
    """Return how many bytes in memory are believed of so many in a file."""
    return max(MOST_BYTES, MOST_RATIO * stored)


def check_expansion(num_bytes: int, stored: int, what: str) -> None:
    """Raise TooLarge if what takes few bytes in a file would take very many in memory."""
    if num_bytes > most_expanded(stored):
        raise TooLarge(f"{what} would take {num_bytes:,} bytes of memory, and takes {stored:,} in the file")


def measure_values(array: Any, *, enough: int = MOST_BYTES) -> int:
    """Return about how many bytes the values of an Arrow array take one by one.

    Many of them may be one value that the array holds once; in Arrow that is cheap, and as values of Python it is not.

    Args:
        array: The array.
        enough: Of values that are named by their places: an upper bound up to this is taken for the sum.
    """
    import pyarrow as pa

    kind, number = array.type, len(array)
    if isinstance(kind, pa.BaseExtensionType):
        return measure_values(array.storage, enough=enough)
    if pa.types.is_dictionary(kind):
        return _measure_repeated(array.dictionary, array.indices, enough)
    if pa.types.is_run_end_encoded(kind):
        return number * _measure_largest(array.values)
    if pa.types.is_struct(kind):
        return number + sum(measure_values(one, enough=enough) for one in array.flatten())
    if pa.types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(measure_values(one.slice(start, end - start), enough=enough) for one in (array.keys, array.items))
    if hasattr(kind, "value_type"):
        return number + measure_values(array.flatten(), enough=enough)
    if pa.types.is_union(kind):
        return int(number * max(map(_measure_largest, map(array.field, range(kind.num_fields))), default=0))
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        most = number * max((one.size for one in array.buffers() if one is not None), default=0)
        return int(most) if most <= enough else sum(len(one.as_buffer() or b"") for one in array)
    return number + int(array.nbytes)


def _measure_largest(array: Any) -> int:
    return max((measure_values(array.slice(at, 1)) for at in range(len(array))), default=0)


def _measure_repeated(values: Any, indices: Any, enough: int) -> int:
    """Return the bytes of values that are named by their places."""
    most = measure_values(values, enough=enough) * len(indices)  # as if each were all of them
    if most <= enough:
        return most
    counts = indices.drop_null().value_counts()
    if _are_texts(values.type):  # nearly all, and there may be many: an index has a name for each of its rows
        import pyarrow.compute as pc

        lengths = pc.add(pc.binary_length(values).cast("int64"), _TEXT_BYTES)
        return pc.sum(pc.multiply(lengths.take(counts.field("values")), counts.field("counts"))).as_py() or 0
    places, numbers = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    return sum(measure_values(values.slice(at, 1)) * number for at, number in zip(places, numbers, strict=True))


def _are_texts(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
