"""The section of an experiment: sensitivities with their intervals, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from headrace.report.page import render_report
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation, Stretch


def test_each_perturbation_is_shown_with_its_interval(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Also one that was not decided, and one that was not asked."""
    known = Perturbation(
        name="delay:fetch", kind="delay", station="fetch", says="each worker sleeps", amount=0.5, num_pairs=4,
        ratio=Interval(low=0.64, mid=0.67, high=0.71), sensitivity=Interval(low=0.81, mid=0.98, high=1.12), latency=None,
        service=1.0, decided=True,
    )  # fmt: skip
    unknown = msgspec.structs.replace(
        known, name="gil", kind="gil", station=None, num_pairs=0, ratio=None, sensitivity=None, decided=False
    )
    experiment = ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=60.0, cost=0.013, stations=(), perturbations=(known, unknown),
        stretches=(Stretch(name="", began=1.0, seconds=1.0, throughput=60.0),
                   Stretch(name="delay:fetch", began=2.0, seconds=1.0, throughput=None)),
    )  # fmt: skip
    page = read_page(render_report(msgspec.structs.replace(documents.full_document(), experiment=experiment)))
    for told in ("Experiment", "delay:fetch", "0.98 [0.81, 1.12]", "x0.67 [0.64, 0.71]", "1.3%", "not asked"):
        assert told in page.text


def test_a_run_without_an_experiment_has_no_section(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Nothing is shown of what was not done."""
    assert "scarcer" not in read_page(render_report(documents.full_document())).text
