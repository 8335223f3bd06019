"""What the charts are told to draw."""

from __future__ import annotations

import json
import math
from types import ModuleType
from typing import Any

import pytest

from headrace.report.charts import Chart, as_json, over_time, shorten
from headrace.report.sections.latency import histogram, latency
from headrace.report.sections.layers import layers
from headrace.report.sections.over_time import resources, work_over_time
from headrace.report.sections.slow_item import slow_item
from headrace.report.sections.stages import stages


def drawn(chart: Chart) -> Any:
    """Return a chart's options as the browser gets them."""
    return json.loads(as_json([chart]))[0]["option"]


def test_the_json_can_stand_in_a_script_element() -> None:
    """No text can end the element, and what JSON does not know becomes null or U+FFFD."""
    chart = Chart(
        name="x",
        title="t",
        says="s",
        height=10,
        option={"name": "</script><!--&\u2028\udc80", "data": [math.nan, 1.0, None]},
    )
    text = as_json([chart])
    assert not set("<>&\u2028") & set(text)
    assert text.isascii()
    option = json.loads(text)[0]["option"]
    assert option == {"name": "</script><!--&\u2028\ufffd", "data": [None, 1.0, None]}


def test_stage_bars_add_up_to_the_service(documents: ModuleType) -> None:
    """The parts of a stage's bar, stacked, are as long as its service."""
    document = documents.full_document()
    section = stages(document)
    assert section
    service = next(chart for chart in section.charts if chart.name == "service")
    option = drawn(service)
    assert option["yAxis"]["data"] == [stage.name for stage in document.stages]
    for row, stage in enumerate(document.stages):
        length = sum(series["data"][row] or 0 for series in option["series"])
        assert length == pytest.approx(1000 * stage.service.mean, rel=1e-4), stage.name


def test_what_was_not_split_is_drawn_as_such(documents: ModuleType) -> None:
    """Without samples of blocked threads the blocked part is one piece, named so, and never a split of zeros."""
    import msgspec

    document = documents.full_document()
    unsampled = tuple(msgspec.structs.replace(stage, blocked_split=None) for stage in document.stages)
    section = stages(msgspec.structs.replace(document, stages=unsampled))
    assert section
    names = [series["name"] for series in drawn(section.charts[1])["series"]]
    assert names == ["CPU", "run delay", "blocked, not split"]


def test_the_histogram_has_every_item_and_marks_percentiles(documents: ModuleType) -> None:
    """Bars hold all samples between their edges; p50, p90 and p99 stand where they are; growing bins make a log axis."""
    sample = documents.latency_sample()
    option = drawn(histogram("latency", "t", sample))
    bars = option["series"][0]["data"]
    assert sum(bar["value"][2] for bar in bars) == sample.num_samples
    assert option["xAxis"]["type"] == "log"
    marks = {mark["label"]["formatter"]: mark["xAxis"] for mark in option["series"][1]["markLine"]["data"]}
    assert marks == {"p50": 417.0, "p90": 713.0, "p99": 1512.0}


def test_a_percentile_that_may_not_be_quoted_is_not_marked(documents: ModuleType) -> None:
    """No line, and the table says how many samples it needs."""
    section = latency(documents.bare_document())
    assert section
    assert not section.charts
    assert "needs 662 samples" in "".join(section.parts)


def test_warm_up_is_shaded_and_axes_end_with_the_run(documents: ModuleType) -> None:
    """Each time chart shades what lies outside the window, and all have the same time axis."""
    document = documents.full_document()
    section = work_over_time(document)
    assert section
    for chart in section.charts:
        option = drawn(chart)
        stretches = [(start["xAxis"], end["xAxis"]) for start, end in option["series"][0]["markArea"]["data"]]
        assert stretches == [(0, 4.1), (41.2, 42.7)]
        assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (0, 42.7)


def test_each_resource_is_drawn_in_its_unit(documents: ModuleType) -> None:
    """Shares are percent, memory is bytes with a prefix; one chart never mixes units."""
    section = resources(documents.full_document())
    assert section
    units = {chart.name: chart.unit for chart in section.charts}
    assert units["time-cores"] == "%"
    assert units["time-memory"] == "GB"
    assert units["time-cpu"] == "cores"
    assert units["time-gpu-power"] == "W"


def test_many_cores_are_summed_up(documents: ModuleType) -> None:
    """With 128 cores there are three lines: the busiest, the middle one and the idlest, in this order of height."""
    section = resources(documents.full_document(num_cores=128))
    assert section
    lines = drawn(next(chart for chart in section.charts if chart.name == "time-cores"))["series"]
    assert [line["name"] for line in lines] == ["busiest core", "middle core", "idlest core"]
    high, middle, low = ([value for _, value in line["data"]] for line in lines)
    assert all(a >= b >= c for a, b, c in zip(high, middle, low, strict=True))


def test_the_slow_item_is_drawn_without_gaps(documents: ModuleType) -> None:
    """The pieces of its bars are as long as its latency, from arrival to settlement."""
    section = slow_item(documents.full_document())
    assert section
    option = drawn(section.charts[0])
    pieces = sorted(mark["value"] for series in option["series"] for mark in series["data"])
    assert sum(end - start for start, end, _ in pieces) == pytest.approx(1512.0)
    assert option["yAxis"]["data"] == ["fetch", "fetch", "decode", "preprocess", "process", "deliver"]


def test_no_layer_is_above_the_roof(documents: ModuleType) -> None:
    """The ceiling passes through the ridge, and every mark lies under it."""
    document = documents.full_document()
    section = layers(document)
    assert section
    option = drawn(next(chart for chart in section.charts if chart.name == "roofline"))
    ceilings = document.layers.ceilings
    peak, bandwidth = ceilings.flops_per_second / 1e9, ceilings.bytes_per_second / 1e9
    roof = option["series"][0]["data"]
    assert roof[1] == pytest.approx([peak / bandwidth, peak], rel=1e-4)
    marks = [mark["value"] for series in option["series"][1:] for mark in series["data"]]
    assert len(marks) == len(document.layers.layers)
    assert all(speed <= min(peak, intensity * bandwidth) * 1.001 for intensity, speed in marks)


def test_a_single_point_is_drawn_as_a_mark() -> None:
    """A line of one point would be invisible."""
    option = drawn(over_time("x", "t", {"a": [(1.0, 2.0)]}, "items", until=3.0))
    assert option["series"][0]["showSymbol"] is True


def test_long_names_keep_their_end() -> None:
    """Names of layers and files differ at their ends."""
    assert shorten("/features/features.36/Conv", 12) == "…res.36/Conv"
    assert shorten("Conv", 12) == "Conv"
