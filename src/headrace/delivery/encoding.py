"""Results -> JSON, by msgspec: about ten times faster than the standard library on a thousand scores."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import DeliveryRejected


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a value of type {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def encode(record: Any) -> bytes:
    """Return a record as JSON; NumPy arrays and scalars become lists and numbers.

    Raises:
        DeliveryRejected: If it holds something that JSON cannot carry.
    """
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DeliveryRejected(
            f"the result cannot be written as JSON: {error}; return numbers, text, lists, "
            "dicts or NumPy arrays from the last stage"
        ) from None
