"""The rules are made of the table of series, each alert has cases on both sides and a runbook, and promtool agrees."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from headrace.base.errors import SettingsError
from headrace.cli import make_parser
from headrace.monitor.metrics.table import SERIES, Series, sample_names
from headrace.monitor.rules.alert import Alert
from headrace.monitor.rules.alerts import list_alerts
from headrace.monitor.rules.burn_rates import list_recordings
from headrace.monitor.rules.files import RULES, make_files, make_rules, make_tests, to_yaml
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promql import Scope
from headrace.monitor.rules.promtool import run_promtool

RUNBOOKS = Path(__file__).parents[4] / "docs" / "runbooks"
ALERTS = list_alerts(RuleParameters())
by_name = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"), reason="promtool is not installed"
)


def _uses(text: str) -> set[str]:
    """Return the series of the table that a text of PromQL has."""
    words = set(re.findall(r"headrace_\w+", text))
    return {series.name for series in SERIES.values() if words & {series.name, *sample_names(series)}}


def _rules_of(series: Series) -> list[str]:
    found = re.search(r"rule: ([^;]+)", series.use)
    return [name.strip() for name in found[1].split(",")] if found else []


@by_name
def test_an_alert_has_cases_on_both_sides(alert: Alert) -> None:
    """It fires in one, and stays quiet in another that is not the same series a minute earlier."""
    assert any(is_firing for case in alert.cases for _, is_firing in case.checks)
    assert any(not any(is_firing for _, is_firing in case.checks) for case in alert.cases)
    assert alert.severity in ("page", "ticket")


@by_name
def test_an_alert_has_a_runbook(alert: Alert) -> None:
    """It begins with the command to run, and says what the alert means, how to look, what to do, and how to silence it."""
    text = (RUNBOOKS / f"{alert.page}.md").read_text(encoding="utf-8")
    assert re.match(rf"# {alert.page}\n\n    (headrace|curl) \S.*\n\n## What it means\n", text)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## What it means", "## How to look", "## What to do", "## How to silence it",
    ]  # fmt: skip
    silenced = re.search(r'alertname=~"([^"]+)"', text)
    assert silenced
    assert re.fullmatch(silenced[1], f"Headrace{alert.name}")


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_commands_of_a_runbook_can_be_typed(page: Path) -> None:
    """Those with arguments, and the first one: nobody wants to look up options at night."""
    text = page.read_text(encoding="utf-8")
    spans = [span for span in re.findall(r"`headrace ([^`]+)`", text) if not re.fullmatch(r"[a-z ]+", span)]
    commands = [*re.findall(r"^    headrace (.+)$", text, re.MULTILINE), *spans]
    assert [command for command in commands if not _can_be_typed(command)] == []


def _can_be_typed(command: str) -> bool:
    argv = [{"N": "2", "TIME": "2026-11-23"}.get(word, word) for word in shlex.split(command)]
    try:
        make_parser(argv).parse_args(argv)
    except SystemExit:
        return False
    return True


def test_each_runbook_is_of_an_alert() -> None:
    """None is left behind, and the list of them has all."""
    pages = {file.stem for file in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == {alert.page for alert in ALERTS}
    assert all(f"[{page}]({page}.md)" in (RUNBOOKS / "README.md").read_text(encoding="utf-8") for page in pages)


def test_the_guide_lists_each_alert() -> None:
    """With its severity."""
    text = (RUNBOOKS.parent / "guides" / "monitoring.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `Headrace(\w+)` \| .* \| (page|ticket) \|$", text, re.MULTILINE))
    assert listed == {alert.name: alert.severity for alert in ALERTS}


def test_the_table_names_the_rules_of_each_series_and_back() -> None:
    """What the table says of a series is so: rules that it names have it, and what rules have says so."""
    recorded = _uses(" ".join(one.expr for one in list_recordings(RuleParameters())))
    alerts = {alert.name: _uses(alert.expr) for alert in ALERTS}
    for series in SERIES.values():
        for rule in _rules_of(series):
            assert series.name in (recorded if rule.startswith("burn rates") else alerts[rule]), (series.name, rule)
        for name, used in alerts.items():
            assert series.name not in used or name in _rules_of(series), (series.name, name)
        assert series.name not in recorded or any(rule.startswith("burn rates") for rule in _rules_of(series)), (
            series.name
        )


def test_a_series_that_is_not_in_the_table_is_refused() -> None:
    """A misspelt name would make a rule that never fires."""
    with pytest.raises(KeyError):
        Scope("headrace").select("headrace_jobs_totals")


def test_yaml_is_read_as_it_was_meant() -> None:
    """By a reader of YAML."""
    parameters = RuleParameters(job="a:b/c", runbooks="https://wiki/x#")
    assert yaml.safe_load(to_yaml(make_rules(parameters, ALERTS))) == make_rules(parameters, ALERTS)
    for text in make_files(parameters).values():
        assert text.isascii()
        assert yaml.safe_load(text)
    hostile = {"a": ['it\'s "quoted" \\ {{ $x }}: # -', "", "\n", "x: y"], "b": {}, "c": [], "d": True, "e": 1}
    assert yaml.safe_load(to_yaml(hostile)) == hostile


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": 0.5}, {"objective": 1.0}, {"latency_objective": float("nan")}, {"latency_seconds": 0.0},
        {"latency_seconds": 86.0}, {"late_seconds": 1.0}, {"job": 'a"} or vector(1) #'}, {"job": ""},
        {"runbooks": "{{ $x }}"}, {"runbooks": "a\nb"},
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused(wrong: dict[str, object]) -> None:
    """Before they become rules that never fire, or always."""
    with pytest.raises(SettingsError):
        RuleParameters(**wrong)  # type: ignore[arg-type]


def test_the_latency_is_a_bucket() -> None:
    """The first bound that is not below; histograms know no other."""
    assert RuleParameters(latency_seconds=2.0).latency_bucket == 2.2
    assert RuleParameters(latency_seconds=11).latency_bucket == 11.0


def _check(folder: Path, alert: Alert, changed: Alert) -> bool:
    parameters = RuleParameters()
    (folder / RULES).write_text(to_yaml(make_rules(parameters, [changed])), encoding="utf-8")
    (folder / "tests.yml").write_text(to_yaml(make_tests(parameters, [alert])), encoding="utf-8")
    return run_promtool("promtool", ["test", "rules", "tests.yml"], folder).is_good


@needs_promtool
@pytest.mark.parametrize("name", ["BreakerOpen", "RestartLoop", "LeaseLost"])
def test_promtool_agrees_and_notices_a_change(name: str, tmp_path: Path) -> None:
    """The cases hold with the rule as it is, and fail when a threshold or `for` is changed; the benchmark changes all."""
    (alert,) = (alert for alert in ALERTS if alert.name == name)
    assert _check(tmp_path, alert, alert)
    *start, threshold = alert.expr.split(" ")
    higher = "1" if threshold == "0" else f"{float(threshold) * 1.1}"
    assert not _check(tmp_path, alert, replace(alert, expr=" ".join([*start, higher])))
    assert not _check(tmp_path, alert, replace(alert, minutes=alert.minutes + 1))
