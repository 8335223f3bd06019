"""What was sampled beside the spans: resources, queue depths and thread states, as NumPy columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.diagnose.span_columns import Array

#: A gap between two samples is one from so many seconds, and so many usual distances on.
_LEAST_GAP_SECONDS, _MANY_SAMPLES = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class Gauge:
    """One thing that was sampled."""

    seconds: Array
    """float64, since the run's first arrival, growing; those before it are left out."""
    values: Array
    """float64."""

    def between(self, first: float, last: float) -> Gauge:
        """Return the samples of a stretch of time, both ends included."""
        low, high = np.searchsorted(self.seconds, first, "left"), np.searchsorted(self.seconds, last, "right")
        return Gauge(self.seconds[low:high], self.values[low:high])

    def durations(self) -> Array:
        """Return for how long each sample stands: half the way to its neighbours."""
        if len(self.seconds) < 2:
            return np.ones(len(self.seconds))
        middles = (self.seconds[1:] + self.seconds[:-1]) / 2
        return np.diff(middles, prepend=self.seconds[0], append=self.seconds[-1])

    def mean(self) -> float | None:
        """Return the mean over time; None without samples.

        A sampler that comes late (the machine was busy) leaves a gap; its neighbours stand for it.
        """
        if not len(self.values):
            return None
        durations = self.durations()
        if durations.sum() <= 0:
            return float(self.values.mean())
        return float(np.average(self.values, weights=durations))

    def mean_of_rate(self) -> float | None:
        """Return the mean over time of what each sample counted since the one before, or since the run began; None of none.

        Exact over gaps as well: a run that was stopped for a while (Ctrl-Z, a frozen container) used nothing meanwhile.
        """
        durations = np.diff(self.seconds, prepend=0.0)
        return float(np.average(self.values, weights=durations)) if durations.sum() > 0 else None

    def seconds_without(self) -> float:
        """Return for how long a rate stood still together with who samples it: gaps in which less was counted than usual.

        That is so where a run is stopped with its sampler (Ctrl-Z, a frozen container). A sampler that alone gets no core
        leaves gaps, too, and counts after them what went on.
        """
        durations = np.diff(self.seconds)
        if not len(durations):
            return 0.0
        usual = float(np.median(durations))
        still = (durations > max(_LEAST_GAP_SECONDS, _MANY_SAMPLES * usual)) & (self.values[1:] * durations <= usual)
        return float((durations[still] - usual).sum())


class Gauges:
    """All gauges of a run, by scope and name.

    Args:
        table: `pyarrow.Table` with time (ns of the run's clock), scope, name, value; None if nothing was sampled.
        origin_ns: The run's first arrival; samples before it are left out.
    """

    def __init__(self, table: Any, origin_ns: int) -> None:
        self._gauges: dict[tuple[str, str], Gauge] = {}
        if table is None or not table.num_rows:
            return
        scope, scopes = _text_codes(table["scope"])
        name, names = _text_codes(table["name"])
        seconds = (table["time"].to_numpy() - origin_ns) / 1e9
        values = table["value"].to_numpy().astype(np.float64)
        key = scope.astype(np.int64) * len(names) + name
        order = np.lexsort((seconds, key))
        order = order[(seconds[order] >= 0) & np.isfinite(values[order])]
        key = key[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        for part in np.split(order, starts[1:]):
            if len(part):
                which = (scopes[scope[part[0]]], names[name[part[0]]])
                self._gauges[which] = Gauge(seconds[part], values[part])

    def __bool__(self) -> bool:
        return bool(self._gauges)

    def get(self, scope: str, name: str) -> Gauge | None:
        """Return one gauge; None if it was not sampled."""
        return self._gauges.get((scope, name))

    def items(self) -> Iterator[tuple[str, str, Gauge]]:
        """Yield scope, name and gauge of everything that was sampled, in the order of scopes and names."""
        for scope, name in sorted(self._gauges):
            yield scope, name, self._gauges[scope, name]


@dataclass(frozen=True, slots=True)
class StateSamples:
    """States of worker threads, sampled from outside."""

    times: Array
    """int64, ns since the run's first arrival."""
    process: Array
    thread_names: tuple[str, ...]
    thread: Array
    """Codes of `thread_names`."""
    state_names: tuple[str, ...]
    state: Array
    """Codes of `state_names`."""
    has_gil: Array | None = None
    """bool; None where nobody looked who has it."""

    @classmethod
    def load(cls, table: Any, origin_ns: int) -> StateSamples | None:
        """Return the samples of a `pyarrow.Table` with time, process, thread, state; None if there are none."""
        if table is None or not table.num_rows:
            return None
        thread, thread_names = _text_codes(table["thread"])
        state, state_names = _text_codes(table["state"])
        times = table["time"].to_numpy() - origin_ns
        has_gil = np.asarray(table["has_gil"].to_numpy())
        return cls(
            times,
            table["process"].to_numpy(),
            thread_names,
            thread,
            state_names,
            state,
            has_gil if has_gil.any() else None,
        )


def _text_codes(column: Any) -> tuple[Array, tuple[str, ...]]:
    """Return a text column, dictionary or not, as codes and their names."""
    array = column.unify_dictionaries().combine_chunks()
    if not hasattr(array, "indices"):
        array = array.dictionary_encode()
    return array.indices.to_numpy(), tuple(map(str, array.dictionary.to_pylist()))
