"""Whether the tests of the alerts hold them: each threshold, comparison and `for` is changed, and a test must fail.

Equal thresholds of ratios (`>` instead of `>=`) are not changed: no run meets a ratio of floating-point numbers exactly.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.monitor.rules.alert import Alert
from headrace.monitor.rules.alerts import list_alerts
from headrace.monitor.rules.files import RULES, make_rules, make_tests, to_yaml
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promtool import PromtoolMissing, find_promtool, promtool_version, run_promtool

_SITE = re.compile(r"(==|>|<) (-?[\d.]+)")
_OPPOSITE = {">": "<", "<": ">", "==": "!="}
_WIDER = {">": ">=", "<": "<="}
#: Of the quick way.
_EVERY = 16


def mutations(alert: Alert) -> Iterator[tuple[str, Alert]]:
    """Give (what was changed, the changed alert)."""
    for site in _SITE.finditer(alert.expr):
        operator, text = site[1], site[2]
        value = float(text)
        others = [value + 1, value - 1] if value == 0 else [value * 1.1, value * 0.9]
        changed = [f"{operator} {other:.10g}" for other in others] + [f"{_OPPOSITE[operator]} {text}"]
        if operator in _WIDER and not _is_ratio(alert):
            changed.append(f"{_WIDER[operator]} {text}")
        for one in changed:
            expr = alert.expr[: site.start()] + one + alert.expr[site.end() :]
            yield f"{site[0]} -> {one}", dataclasses.replace(alert, expr=expr)
    for minutes in {alert.minutes + alert.case_minutes, alert.minutes - alert.case_minutes}:
        if minutes >= 0:
            yield f"for {alert.minutes}m -> {minutes}m", dataclasses.replace(alert, minutes=minutes)


def _is_ratio(alert: Alert) -> bool:
    return "burn_rate" in alert.expr


def is_caught(promtool: str, alert: Alert, original: Alert) -> bool:
    """Return whether the tests of the original alert fail with the changed one."""
    parameters = RuleParameters()
    document = make_rules(parameters, [alert])
    if not _is_ratio(alert):  # what it does not need takes time
        document["groups"][0]["rules"] = document["groups"][0]["rules"][-1:]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / RULES).write_text(to_yaml(document), encoding="utf-8")
        tests = Path(folder) / "tests.yml"
        tests.write_text(to_yaml(make_tests(parameters, [original])), encoding="utf-8")
        return not run_promtool(promtool, ["test", "rules", tests.name], Path(folder)).is_good


def measure(quick: bool) -> dict[str, Any]:
    """Return the part's keys of the benchmark's object."""
    try:
        promtool = find_promtool()
    except PromtoolMissing as error:
        return {"alert_mutations_caught": None, "alerts": {"problem": str(error)}}
    alerts = list_alerts(RuleParameters())
    every = [(alert, what, changed) for alert in alerts for what, changed in mutations(alert)]
    chosen = every[::_EVERY] if quick else every
    with ThreadPoolExecutor(2) as pool:
        sound = list(pool.map(lambda alert: not is_caught(promtool, alert, alert), () if quick else alerts))
        caught = list(pool.map(lambda one: is_caught(promtool, one[2], one[0]), chosen))
    missed = [f"{alert.name}: {what}" for (alert, what, _), found in zip(chosen, caught, strict=True) if not found]
    return {
        "alert_mutations_caught": sum(caught) / len(caught),
        "alerts": {
            "alerts": len(alerts),
            "mutations": len(chosen),
            "of": len(every),
            "missed": missed,
            "failing_unchanged": [alert.name for alert, good in zip(alerts, sound, strict=False) if not good],
            "promtool": promtool_version(promtool),
        },
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page for readers."""
    found = result["alerts"]
    if "problem" in found:
        return f"## Alerts\n\nNot measured: {found['problem']}"
    missed = "".join(f"\n- not caught: {line}" for line in found["missed"])
    return (
        f"## Alerts\n\n{found['alerts']} alerts; {found['mutations']} of {found['of']} changes of a threshold, a comparison or "
        f"`for` were tried with promtool {found['promtool']}; the tests caught {result['alert_mutations_caught']:.1%}.{missed}"
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    found, share = result["alerts"], result["alert_mutations_caught"]
    if share is None:
        return [f"alert_mutations_caught: not measured: {found['problem']}"]
    lines = [f"alert_mutations_caught {share:.1%}, goal 100 %: {line}" for line in found["missed"]]
    return lines + [f"the tests of {name} fail with the rules as they are" for name in found["failing_unchanged"]]
