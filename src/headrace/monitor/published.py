"""Where the parts of `monitor` leave their present values for the metrics of this process, without knowing who shows them.

    publish("headrace_drift_score", 0.4, "luma")
    count("headrace_recorder_incidents_total", "slo")

Nothing happens with them where the run has no `--metrics`; heartbeats (`--fleet`) tell of alarms of drift.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from headrace.monitor.metrics.table import SERIES

#: Values of all series; labels beyond are dropped by whoever counts, and no part has so many.
_MOST = 2_000
_lock = threading.Lock()
#: Called with the series, its labels and their total when something was counted.
Take = Callable[[str, tuple[str, ...], float], object]
_values: dict[tuple[str, tuple[str, ...]], float] = {}
_takers: list[Take] = []


def publish(name: str, value: float, *labels: str) -> None:
    """Set the present value of a gauge; any thread.

    Args:
        name: As in `metrics.table`.
        value: A number.
        labels: Values of its labels, in the table's order.

    Raises:
        ValueError: If the table has no such series, or it has other labels.
    """
    _check(name, labels)
    with _lock:
        if len(_values) < _MOST or (name, labels) in _values:
            _values[name, labels] = value


def count(name: str, *labels: str) -> None:
    """Add one to a counter; any thread. See `publish`."""
    _check(name, labels)
    with _lock:
        total = _values[name, labels] = _values.get((name, labels), 0.0) + 1.0
        takers = list(_takers)
    for take in takers:
        take(name, labels, total)


def tell_counts(take: Take) -> None:
    """Have something called at once with all that is counted from now on, where nobody looks once a second."""
    _takers.append(take)


def _check(name: str, labels: tuple[str, ...]) -> None:
    series = SERIES.get(name)
    if series is None or len(labels) != len(series.labels):
        wanted = "the table has no such series" if series is None else f"its labels are {series.label_names}"
        raise ValueError(f"{name}{labels}: {wanted}; see headrace.monitor.metrics.table")


def published() -> Mapping[tuple[str, tuple[str, ...]], float]:
    """Return a copy of {(series, labels): value}."""
    with _lock:
        return dict(_values)


def forget_published() -> None:
    """Forget all values: a run has ended, and another one of this process begins with none."""
    with _lock:
        _values.clear()
        _takers.clear()


def _begin_anew() -> None:
    """Forget what the process counted from which this one was forked: both would show it."""
    global _lock  # another thread may have held it
    _lock = threading.Lock()
    forget_published()


os.register_at_fork(after_in_child=_begin_anew)
