"""Tensors <-> what jobs hold: the items of an input become payloads, the results of the items become outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.errors import DeliveryRejected
from headrace.base.records import Payload
from headrace.delivery.encoding import encode
from headrace.serve.oip.datatypes import BYTES, name_of
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.messages import RequestedOutput, Tensor

#: The output of results that are no dict; of any other result the whole as JSON, for those who ask for it.
RESULT = "result"

#: {output: array of numbers, or bytes} of one item.
Row = Mapping[str, np.ndarray | bytes]


def payloads_of(inputs: Sequence[Tensor]) -> Sequence[Payload]:
    """Return the payload of each item.

    Raises:
        OipError: If there is not exactly one input.
    """
    if len(inputs) != 1:
        raise OipError(
            "oip.inputs", f"the request has {len(inputs)} inputs; expected one, whose first axis are the items"
        )
    data = inputs[0].data
    return data if isinstance(data, list) else [data[index, ...] for index in range(len(data))]


def read_row(result: Any, *, whole: bool = False) -> Row:
    """Return the outputs of one item, as copies.

    A dict gives an output for each of its keys, anything else the output `result`. Arrays and numbers stay numbers, text and
    bytes become bytes, and whatever else there is (lists, dicts, None) JSON.

    Args:
        result: What the module returned.
        whole: Whether a dict's whole is asked for too, as the output `result`.

    Raises:
        DeliveryRejected: If a value is nothing that can be sent; see `delivery.encoding.encode`.
    """
    is_dict = isinstance(result, dict) and bool(result) and all(isinstance(key, str) for key in result)
    row = {key: _read_value(value) for key, value in result.items()} if is_dict else {RESULT: _read_value(result)}
    if whole and RESULT not in row:
        row[RESULT] = encode(result)
    return row


def outputs_of(rows: Sequence[Row], requested: Sequence[RequestedOutput]) -> list[Tensor]:
    """Return the outputs of a request, whose first axis are its items.

    Args:
        rows: Of its items, at least one.
        requested: Which are wanted; empty: all.

    Raises:
        OipError: If one is not there, or is not the same kind and shape for all items.
    """
    names = dict.fromkeys([one.name for one in requested] or rows[0])
    return [_join(name, [_find(row, name) for row in rows]) for name in names]


def _read_value(value: Any) -> np.ndarray | bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise DeliveryRejected(f"result.encoding: the result holds text that is not Unicode: {error}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray | np.generic | int | float):
        array = np.array(value, ndmin=1)
        if name_of(array.dtype) is not None:
            return array
    return encode(value)


def _find(row: Row, name: str) -> np.ndarray | bytes:
    try:
        return row[name]
    except KeyError:
        raise OipError(
            "oip.output", f"there is no output {name:.100} for all items; there is {', '.join(row):.500}"
        ) from None


def _join(name: str, values: Sequence[np.ndarray | bytes]) -> Tensor:
    texts = [value for value in values if isinstance(value, bytes)]
    if len(texts) == len(values):
        return Tensor(name, BYTES, (len(values), 1), texts)
    arrays = [value for value in values if not isinstance(value, bytes)]
    shapes = {array.shape for array in arrays}
    if texts or len(shapes) > 1:
        kinds = sorted({f"numbers of shape {list(shape)}" for shape in shapes} | ({"text"} if texts else set()))
        raise OipError(
            "oip.ragged",
            f"output {name:.100} is not alike for all items: {', '.join(kinds):.500}; send one item per request",
        )
    joined = np.array(arrays)
    datatype = name_of(joined.dtype)
    if datatype is None:
        raise AssertionError(f"{joined.dtype} came out of types of the protocol")
    return Tensor(name, datatype, joined.shape, joined)
