"""What the items of a window cost in a stage: sums of products, which can be added and give every regression on size.

Each item is a row (1, MB in, MB out, 1 / batch size, the roots of MB in and MB out, CPU ms). The CPU time of a stage depends
on what comes in (compressed bytes to decode), on what goes out (pixels), and, where items share a call, on how many do: less
traffic makes smaller batches, and an item of a small batch takes more. It grows with size not quite in proportion: a large
image decodes a little faster per pixel; the roots let the regression bend.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.runs.formats.history import StageWindow

#: Columns of a row: the inputs, beginning with 1, then CPU ms.
INPUTS = ("", "MB in", "MB out", "1 / batch size", "root of MB in", "root of MB out")
WIDTH = len(INPUTS) + 1
_UPPER = np.triu_indices(WIDTH)
_MB, _MS = 1e6, 1e6  # bytes in a MB, ns in a ms


def make_rows(bytes_in: np.ndarray, bytes_out: np.ndarray, batch_sizes: np.ndarray, cpu_ns: np.ndarray) -> np.ndarray:
    """Return rows: float64, (items, 7).

    Args:
        bytes_in: Of each item, as for the others.
        bytes_out: See there.
        batch_sizes: Items that shared the call; 1 where they do not.
        cpu_ns: Of the whole call.
    """
    taken, given = bytes_in / _MB, bytes_out / _MB
    ones, cpu = np.ones(len(cpu_ns)), cpu_ns / batch_sizes / _MS
    return np.column_stack([ones, taken, given, 1 / batch_sizes, np.sqrt(taken), np.sqrt(given), cpu])


def sum_rows(rows: np.ndarray, weights: np.ndarray) -> StageWindow:
    """Return the sums over rows of `make_rows`, each of which stands for so many items."""
    sums = (rows * weights[:, None]).T @ rows
    return StageWindow(len(rows), tuple(map(float, sums[_UPPER])))


def as_matrix(window: StageWindow) -> np.ndarray:
    """Return the sums as a symmetric matrix: float64, (7, 7); [0, 0] is the number of items.

    Raises:
        ValueError: If they are not sums of such rows.
    """
    numbers = window.moments
    if len(numbers) != len(_UPPER[0]) or not np.isfinite(numbers).all() or numbers[0] <= 0 or window.rows < 1:
        raise ValueError(
            f"{len(numbers)} sums over {window.rows} spans, the first {numbers[:1]}; expected {len(_UPPER[0])} over 1 or more"
        )
    matrix = np.zeros((WIDTH, WIDTH))
    matrix[_UPPER] = window.moments
    return matrix + np.triu(matrix, 1).T


def add_windows(windows: Iterable[StageWindow]) -> StageWindow:
    """Return the sums over several windows, or over the same window of several processes; at least one."""
    first, *others = windows
    for other in others:
        first = StageWindow(
            first.rows + other.rows, tuple(a + b for a, b in zip(first.moments, other.moments, strict=True))
        )
    return first


def cpu_per_item(window: StageWindow) -> float:
    """Return mean CPU seconds of an item."""
    return float(as_matrix(window)[0, -1] / as_matrix(window)[0, 0] / 1e3)


def bytes_per_item(window: StageWindow) -> float:
    """Return the mean bytes that an item brings."""
    return float(as_matrix(window)[0, 1] / as_matrix(window)[0, 0] * _MB)
