"""Writes values as the two text formats that Prometheus reads; see decision 0050 for why not by a library.

References:
    Prometheus text format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/; OpenMetrics 1.0.0,
    https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from headrace.monitor.metrics.gather import Histogram, Values
from headrace.monitor.metrics.page import Exemplar
from headrace.monitor.metrics.table import SERIES, Kind, Series

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def wants_open_metrics(accept: str) -> bool:
    """Return whether a request's `Accept` takes OpenMetrics."""
    return any(part.partition(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


class Writer:
    """Writes; keeps the beginnings of lines, which are the same at each scrape. For one thread at a time."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, tuple[str, ...]], list[str]] = {}

    def write(self, found: Mapping[str, Values], *, open_metrics: bool) -> bytes:
        """Return a scrape.

        Args:
            found: {name of a series: values}.
            open_metrics: With exemplars, as OpenMetrics; else as the older text.
        """
        lines: list[str] = []
        for series in SERIES.values():
            if values := found.get(series.name):
                lines += _head(series, open_metrics)
                for labels, value in sorted(values.items()):
                    lines += self._samples(series, labels, value, open_metrics)
        return "\n".join([*lines, *(["# EOF"] if open_metrics else []), ""]).encode()

    def _samples(
        self, series: Series, labels: tuple[str, ...], value: float | Histogram, with_exemplars: bool
    ) -> Iterator[str]:
        names = self._names.get((series.name, labels))
        if names is None:
            names = self._names[series.name, labels] = _names(series, labels)
        if not isinstance(value, Histogram):
            yield f"{names[0]} {_number(value)}"
            return
        below = 0.0
        for bucket, (name, count) in enumerate(zip(names, value.counts, strict=False)):
            below += count
            exemplar = value.exemplars.get(bucket) if with_exemplars else None
            yield f"{name} {below!r}" if exemplar is None else f"{name} {below!r}{_exemplar(exemplar)}"
        yield f"{names[-2]} {_number(value.total)}"
        yield f"{names[-1]} {below!r}"


def _head(series: Series, open_metrics: bool) -> list[str]:
    family = series.name.removesuffix("_total") if open_metrics else series.name
    meaning = series.meaning.translate(_ESCAPED) if open_metrics else series.meaning.replace("\\", r"\\")
    return [f"# HELP {family} {meaning}", f"# TYPE {family} {series.kind}"]


def _names(series: Series, labels: tuple[str, ...]) -> list[str]:
    """Return the beginnings of a series' lines: of a histogram its buckets, sum and count."""
    pairs = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(series.label_names, labels, strict=True)]
    plain = f"{{{','.join(pairs)}}}" if pairs else ""
    if series.kind is not Kind.HISTOGRAM:
        return [series.name + plain]
    within = "".join(f"{pair}," for pair in pairs)
    bounds = [*map(repr, series.buckets), "+Inf"]
    buckets = [f'{series.name}_bucket{{{within}le="{bound}"}}' for bound in bounds]
    return [*buckets, f"{series.name}_sum{plain}", f"{series.name}_count{plain}"]


def _exemplar(exemplar: Exemplar) -> str:
    job = exemplar.job.translate(_ESCAPED)
    return f' # {{job="{job}"}} {exemplar.value!r} {exemplar.unix_seconds:.3f}'


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
