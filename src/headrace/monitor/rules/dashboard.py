"""Grafana's dashboard, made of the table of series: a row for each `panel: NAME`, a panel for each series in it.

How this works: what a panel asks follows from the kind of its series, unless `_ASKS` says something better: a counter's rate, a
gauge's sum or largest, two quantiles of a histogram. The data source is a variable, and nothing has an id of some installation,
so that the file can be imported or provisioned anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.monitor.metrics.table import SERIES, Kind, Series

UID = "headrace-overview"
FILE = "dashboard.json"
_SELECT = '{job=~"$job", instance=~"$instance"}'
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_PANEL = re.compile(r"panel: ([^;]+)")
#: Grafana's names of units.
_UNITS = {"seconds": "s", "bytes": "bytes"}
#: Rows in the order in which people look; others follow.
_FIRST = ("throughput", "latency", "requests", "failures", "queue", "stages", "utilization", "batches", "workers")


@dataclass(frozen=True, slots=True)
class Ask:
    """One query of a panel."""

    expr: str
    legend: str


def _sum(name: str, by: str = "job") -> str:
    return f"sum by ({by}) ({name}{_SELECT})"


def _rate(name: str, by: str = "job") -> str:
    return f"sum by ({by}) (rate({name}{_SELECT}[$__rate_interval]))"


#: {series: what its panel asks instead}.
_ASKS = {
    "headrace_stage_busy_seconds_total": Ask(
        f"{_rate('headrace_stage_busy_seconds_total', 'job, stage')} / {_sum('headrace_stage_workers', 'job, stage')}",
        "{{stage}}",
    ),
    "headrace_run_start_timestamp_seconds": Ask(
        f"time() - max by (job) (headrace_run_start_timestamp_seconds{_SELECT})", "{{job}}"
    ),
    "headrace_last_success_timestamp_seconds": Ask(
        f"time() - max by (job) (headrace_last_success_timestamp_seconds{_SELECT})", "{{job}}"
    ),
}


def make_dashboard(job: str) -> dict[str, Any]:
    """Return the dashboard.

    Args:
        job: Prometheus's name of the scrape job that is chosen at first.
    """
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in _rows():
        panels.append(
            {"type": "row", "title": title.capitalize(), "gridPos": _place(0, top, _COLUMNS, 1), "panels": []}
        )
        for index, (name, asks, series) in enumerate(row):
            x = index * _WIDTH % _COLUMNS
            y = top + 1 + index * _WIDTH // _COLUMNS * _HEIGHT
            panels.append(_panel(name, asks, series, _place(x, y, _WIDTH, _HEIGHT)))
        top += 1 + -(-len(row) // (_COLUMNS // _WIDTH)) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": UID,
        "id": None,
        "title": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables(job))},
        "annotations": {"list": []},
        "panels": panels,
    }


def list_queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give (panel's title, query) of a dashboard."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


_Row = list[tuple[str, list[Ask], Series | None]]


def _rows() -> Iterator[tuple[str, _Row]]:
    burn = Ask('max by (slo) (headrace:burn_rate:1h{job=~"$job"})', "{{slo}}")
    firing = Ask(
        'count by (alertname) (ALERTS{alertname=~"Headrace.*", alertstate="firing"}) or vector(0)', "{{alertname}}"
    )
    yield "overview", [("Burn rate of the error budgets, 1 h", [burn], None), ("Alerts", [firing], None)]
    rows: dict[str, _Row] = {}
    for series in SERIES.values():
        if found := _PANEL.search(series.use):
            rows.setdefault(found[1].strip(), []).append((_title(series), _asks(series), series))
    for name in sorted(rows, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        yield name, rows[name]


def _title(series: Series) -> str:
    words = series.name.removeprefix("headrace_").removesuffix("_total").removesuffix("_seconds").replace("_", " ")
    return words.capitalize()


def _asks(series: Series) -> list[Ask]:
    if series.name in _ASKS:
        return [_ASKS[series.name]]
    by = ", ".join(["job", *series.label_names])
    legend = " ".join(f"{{{{{label}}}}}" for label in series.label_names) or "{{job}}"
    if series.kind is Kind.COUNTER:
        return [Ask(_rate(series.name, by), legend)]
    if series.kind is Kind.HISTOGRAM:
        buckets = _rate(f"{series.name}_bucket", f"{by}, le")
        return [Ask(f"histogram_quantile({share}, {buckets})", f"{legend} p{share * 100:.0f}") for share in (0.5, 0.99)]
    return [Ask(f"{series.merge} by ({by}) ({series.name}{_SELECT})", legend)]


def _panel(title: str, asks: list[Ask], series: Series | None, place: dict[str, int]) -> dict[str, Any]:
    unit = "short"
    if series is not None:
        unit = _UNITS.get(series.unit, "short")
        if series.kind is Kind.COUNTER:
            unit = "percentunit" if series.unit == "seconds" else "ops"
        elif series.name.endswith("_ratio"):
            unit = "percentunit"
    return {
        "type": "timeseries",
        "title": title,
        "description": "" if series is None else series.meaning,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": ask.expr, "legendFormat": ask.legend}
            for index, ask in enumerate(asks)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _variables(job: str) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    asked = {
        "job": "label_values(headrace_run_info, job)",
        "instance": 'label_values(headrace_run_info{job=~"$job"}, instance)',
    }
    for name, query in asked.items():
        chosen = {"text": job, "value": job} if name == "job" else {"text": "All", "value": "$__all"}
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": chosen,
            "hide": 0,
        }
