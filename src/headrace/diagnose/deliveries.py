"""Deliveries with the same id and attempt number, and which of their spans belong together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class _Delivery:
    """What is known of one delivery up to some row."""

    number: int
    stage: int
    ended: int
    is_ok: bool

    def takes(self, stage: int, arrived: int) -> bool:
        """Return whether a span may come next in this delivery."""
        if stage == self.stage:
            return not self.is_ok
        return stage > self.stage and self.is_ok and arrived >= self.ended


def number_deliveries(
    unit: np.ndarray,
    attempt: np.ndarray,
    stage: np.ndarray,
    arrived: np.ndarray,
    ended: np.ndarray,
    is_ok: np.ndarray,
) -> np.ndarray | None:
    """Return for each span which delivery of its item and attempt it belongs to, int32 from 0; None if there is one of each.

    Two jobs may have one id, and a job that is given back may come again with its attempt number unchanged. An item that passed
    its first stage well more than once was delivered more than once. A span belongs to the delivery that ended its stage before
    last when the span arrived.

    Args:
        unit: Codes of the items, one for each span, as all others.
        attempt: From 1.
        stage: Codes, in the order an item meets the stages.
        arrived: int64, ns.
        ended: int64, ns.
        is_ok: bool.
    """
    if not len(unit):
        return None
    key = unit.astype(np.int64) * (int(attempt.max()) + 1) + attempt
    first_rows = _rows_in_first_stage(key, stage)
    passed = key[first_rows & is_ok]
    values, counts = np.unique(passed, return_counts=True)
    repeated = values[counts > 1]
    if not len(repeated):
        return None
    rows = np.flatnonzero(np.isin(key, repeated))
    rows = rows[np.lexsort((stage[rows], ended[rows], arrived[rows], key[rows]))]
    number = np.zeros(len(unit), np.int32)
    deliveries: list[_Delivery] = []
    last_key = -1
    for row in rows.tolist():
        if key[row] != last_key:
            last_key, deliveries = key[row], []
        found = _delivery_of(deliveries, int(stage[row]), int(arrived[row]), is_first=bool(first_rows[row]))
        found.stage, found.ended, found.is_ok = int(stage[row]), int(ended[row]), bool(is_ok[row])
        number[row] = found.number
    return number


def _rows_in_first_stage(key: np.ndarray, stage: np.ndarray) -> np.ndarray:
    """Return which spans are of the first stage that their item has a span of; the rows are sorted by stage."""
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(stage == stage[first][which])


def _delivery_of(deliveries: list[_Delivery], stage: int, arrived: int, *, is_first: bool) -> _Delivery:
    """Return the delivery that a span belongs to; a new one, added to `deliveries`, where an item begins once more."""
    fitting = [one for one in deliveries if one.takes(stage, arrived)]
    if fitting:
        return max(fitting, key=lambda one: one.ended)
    if is_first or not deliveries:
        deliveries.append(_Delivery(len(deliveries), stage, 0, False))
    return deliveries[-1]
