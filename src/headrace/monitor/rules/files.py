"""The files for Prometheus and promtool, as text: rules, and tests of the rules.

YAML is written by hand: block style, every text in quotes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.monitor.rules.alert import Alert
from headrace.monitor.rules.alerts import list_alerts
from headrace.monitor.rules.burn_rates import list_recordings
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.scaling import list_scaling

RULES = "rules.yml"
_HEAD = "# Made by `headrace monitor rules`; make it again rather than edit it.\n"


def make_files(parameters: RuleParameters) -> dict[str, str]:
    """Return {name of a file: its text}: the rules, and tests by the minutes between two samples."""
    alerts = list_alerts(parameters)
    files = {RULES: _HEAD + to_yaml(make_rules(parameters, alerts))}
    for minutes in sorted({alert.case_minutes for alert in alerts}):
        tests = make_tests(parameters, [alert for alert in alerts if alert.case_minutes == minutes])
        files[f"tests_{minutes}m.yml"] = _HEAD + to_yaml(tests)
    return files


def make_rules(parameters: RuleParameters, alerts: Iterable[Alert]) -> dict[str, Any]:
    """Return the rules as Prometheus reads them: in one group, so that alerts see what was just recorded."""
    recorded = (*list_recordings(parameters), *list_scaling(parameters))
    recordings = [
        {"record": one.record, "expr": one.expr, **({"labels": one.labels} if one.labels else {})} for one in recorded
    ]
    return {"groups": [{"name": "headrace", "rules": [*recordings, *(_rule(alert, parameters) for alert in alerts)]}]}


def _rule(alert: Alert, parameters: RuleParameters) -> dict[str, Any]:
    return {
        "alert": _name(alert),
        "expr": alert.expr,
        **({"for": f"{alert.minutes}m"} if alert.minutes else {}),
        "labels": {"severity": alert.severity},
        "annotations": _annotations(alert, parameters),
    }


def _annotations(alert: Alert, parameters: RuleParameters) -> dict[str, str]:
    return {"summary": alert.summary, "runbook": f"{parameters.runbooks}{alert.page}.md"}


def _name(alert: Alert) -> str:
    return f"Headrace{alert.name}"


def make_tests(parameters: RuleParameters, alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the cases of alerts, all of which have samples as far apart, as promtool reads them."""
    minutes = max((alert.case_minutes for alert in alerts), default=1)
    return {
        "rule_files": [RULES],
        "evaluation_interval": f"{minutes}m",
        "tests": [group for alert in alerts for group in _groups(alert, parameters)],
    }


def _groups(alert: Alert, parameters: RuleParameters) -> Iterator[dict[str, Any]]:
    for case in alert.cases:
        labels = {"job": parameters.job, "severity": alert.severity, **case.labels}
        annotations = _annotations(alert, parameters)
        for name, value in labels.items():
            annotations["summary"] = annotations["summary"].replace(f"{{{{ $labels.{name} }}}}", value)
        fires = [{"exp_labels": labels, "exp_annotations": annotations}]
        yield {
            "name": f"{alert.name}: {case.name}",
            "interval": f"{alert.case_minutes}m",
            "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
            "alert_rule_test": [
                {"eval_time": f"{at}m", "alertname": _name(alert), "exp_alerts": fires if is_firing else []}
                for at, is_firing in case.checks
            ],
        }


def to_yaml(value: Any, indent: int = 0) -> str:
    """Return a document of mappings, lists and plain values as YAML."""
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        return "".join(f"{pad}{key}:{_below(item, indent)}" for key, item in value.items())
    if isinstance(value, list) and value:
        # A mapping's first key stands beside the dash, the others below it.
        return "".join(f"{pad}- {to_yaml(item, indent + 1).lstrip(' ')}" for item in value)
    return f"{pad}{_scalar(value)}\n"


def _below(item: Any, indent: int) -> str:
    is_block = isinstance(item, Mapping | list) and item
    return f"\n{to_yaml(item, indent + 1)}" if is_block else f" {_scalar(item)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and ('"' in value or "\\" in value):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    return json.dumps(value)
