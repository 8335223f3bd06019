"""The section of an experiment: sensitivities with their intervals, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import pytest

from headrace.report.page import render_report
from headrace.report.sections.experiment import experiment


def test_each_perturbation_is_shown_with_its_interval(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Below the conclusion in words; also one that was not decided, and one that was not asked."""
    document = msgspec.structs.replace(
        documents.full_document(), experiment=documents.experiment_document(0.81, 0.98, 1.12)
    )
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
    document = msgspec.structs.replace(documents.full_document(), experiment=documents.experiment_document(*measured))
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
