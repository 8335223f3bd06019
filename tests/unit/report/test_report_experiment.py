"""The section of an experiment: sensitivities with their intervals, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import pytest

from headrace.report.page import render_report
from headrace.report.sections.experiment import experiment
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation, Stretch


def an_experiment(low: float, mid: float, high: float) -> ExperimentDocument:
    """Return one with a sensitivity that was measured, and one that was not."""
    known = Perturbation(
        name="delay:fetch", kind="delay", station="fetch", says="each worker sleeps", amount=0.5, num_pairs=4,
        ratio=Interval(low=0.64, mid=0.67, high=0.71), sensitivity=Interval(low=low, mid=mid, high=high), latency=None,
        service=1.0, decided=True,
    )  # fmt: skip
    unknown = msgspec.structs.replace(
        known, name="gil", kind="gil", station=None, num_pairs=0, ratio=None, sensitivity=None, decided=False
    )
    return ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=60.0, cost=0.013, stations=(), perturbations=(known, unknown),
        stretches=(Stretch(name="", began=1.0, seconds=1.0, throughput=60.0),
                   Stretch(name="delay:fetch", began=2.0, seconds=1.0, throughput=None)),
        conclusion="The experiment shows that the 8 workers of fetch are the limit.",
    )  # fmt: skip


def test_each_perturbation_is_shown_with_its_interval(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Below the conclusion in words; also one that was not decided, and one that was not asked."""
    document = msgspec.structs.replace(documents.full_document(), experiment=an_experiment(0.81, 0.98, 1.12))
    page = read_page(render_report(document))
    shown = "The experiment shows that the 8 workers of fetch are the limit."
    for told in (shown, "delay:fetch", "0.98 [0.81, 1.12]", "x0.67 [0.64, 0.71]", "1.3%", "not asked"):
        assert told in page.text


@pytest.mark.parametrize(
    ("measured", "ends"), [((-0.02, 0.0, 0.01), (-0.5, 1.5)), ((2.1, 2.5, 3.2), (-0.5, 3.5))], ids=["nothing", "much"]
)
def test_the_picture_always_shows_where_a_limit_begins(
    documents: ModuleType, measured: tuple[float, float, float], ends: tuple[float, float]
) -> None:
    """Sensitivities of all but 0 lie beside the mark at one half, and do not fill the picture with their scatter."""
    document = msgspec.structs.replace(documents.full_document(), experiment=an_experiment(*measured))
    section = experiment(document)
    assert section is not None
    option = section.charts[0].option
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == ends
    (mark,) = option["series"][0]["markLine"]["data"]
    assert option["yAxis"]["inverse"]
    assert (mark["xAxis"], mark["label"]["position"]) == (
        0.5,
        "start",
    )  # on top: below it would lie on the axis' numbers


def test_a_run_without_an_experiment_has_no_section(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Nothing is shown of what was not done."""
    assert "scarcer" not in read_page(render_report(documents.full_document())).text
