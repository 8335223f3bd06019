"""What an autoscaler asks for: the fleet's workers, worked out of every scrape's parts, by a real promtool."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from headrace.monitor.rules.files import make_rules
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promtool import run_promtool
from headrace.monitor.rules.scaling import NAME, wanted_workers_query

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"), reason="promtool is not installed"
)


def scrape(
    instance: str, *, throughput: float, capacity: float | None, workers: int, waiting: float
) -> dict[str, float]:
    """Return {series: value} of one scrape."""
    values = {
        "headrace_throughput_jobs_per_second": throughput,
        "headrace_workers_alive": workers,
        'headrace_source_jobs{state="visible"}': waiting,
        **({} if capacity is None else {"headrace_capacity_jobs_per_second": capacity}),
    }
    labels = f'job="headrace", instance="{instance}"'
    return {
        f"{name[:-1]}, {labels}}}" if name.endswith("}") else f"{name}{{{labels}}}": value
        for name, value in values.items()
    }


@needs_promtool
@pytest.mark.parametrize(
    ("scrapes", "wanted"),
    [
        ([scrape("a", throughput=8, capacity=20, workers=2, waiting=0)], 1),
        ([scrape("a", throughput=20, capacity=20, workers=2, waiting=3000)], 4),
        # Ten pods that are full, each of which sees the whole backlog: 100 a second and 6,000 that wait, by 8 a second each.
        ([scrape(str(pod), throughput=10, capacity=10, workers=1, waiting=6000) for pod in range(10)], 15),
        # One that has nothing to do lowers nobody's capacity.
        (
            [
                scrape("a", throughput=16, capacity=20, workers=2, waiting=0),
                scrape("b", throughput=0, capacity=None, workers=7, waiting=0),
            ],
            2,
        ),
        ([scrape("a", throughput=0, capacity=None, workers=2, waiting=9)], None),
    ],
)
def test_wanted_workers_of_a_fleet(scrapes: list[dict[str, float]], wanted: int | None, tmp_path: Path) -> None:
    """What all of them do and what waits once, over four fifths of what one worker can do; nothing while nobody can tell."""
    series = {name: value for one in scrapes for name, value in one.items()}
    samples = [] if wanted is None else [{"labels": '{job="headrace"}', "value": wanted}]
    group = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value:g}x5"} for name, value in series.items()],
        "promql_expr_test": [{"expr": wanted_workers_query("headrace"), "eval_time": "2m", "exp_samples": samples}],
    }
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [], "tests": [group]}))
    checked = run_promtool("promtool", ["test", "rules", "tests.yml"], tmp_path)
    assert checked.is_good, checked.said


def test_it_is_recorded() -> None:
    """The rules record it without labels of their own: the scrape job's stay."""
    rules = make_rules(RuleParameters(job="mine"), [])["groups"][0]["rules"]
    (rule,) = [rule for rule in rules if rule.get("record") == NAME]
    assert rule == {"record": NAME, "expr": wanted_workers_query("mine")}
