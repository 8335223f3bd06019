"""A module that adds up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import headrace as hr
from headrace.base.errors import DecodeRejected


class Sums(hr.Module):
    """Adds up two numbers."""

    input = hr.ArrayInput(dtype="float32", shape=(2,))

    def process(self, batch: Any) -> Sequence[Any]:
        """Process."""
        return [self.add_up(one) for one in batch]

    @staticmethod
    def add_up(item: np.ndarray) -> dict[str, Any]:
        """Add up; there is no sum of what begins with a negative number."""
        if item[0] < 0:
            raise DecodeRejected("decode.negative: the item begins with a negative number")
        return {"sum": float(item.sum()), "parts": item}
