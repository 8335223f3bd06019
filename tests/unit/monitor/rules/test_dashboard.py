"""The dashboard shows every series that people look at, and can be imported anywhere."""

from __future__ import annotations

import json
import re

from headrace.monitor.metrics.table import SERIES, sample_names
from headrace.monitor.rules.dashboard import UID, list_queries, make_dashboard

DASHBOARD = make_dashboard("headrace")


def test_each_series_is_in_a_panel_a_rule_or_for_debugging() -> None:
    """As the table says, both ways."""
    words = set(re.findall(r"headrace_\w+", " ".join(expr for _, expr in list_queries(DASHBOARD))))
    for series in SERIES.values():
        is_shown = bool(words & {series.name, *sample_names(series)})
        if "panel:" in series.use:
            assert is_shown, series.name
        else:
            assert "rule:" in series.use or series.use == "debugging", series.name
    known = {name for series in SERIES.values() for name in (series.name, *sample_names(series))}
    assert words <= known


def test_it_belongs_to_no_installation() -> None:
    """No id, no inputs; the data source is a variable, and each panel asks that one."""
    assert (DASHBOARD["uid"], DASHBOARD["id"]) == (UID, None)
    assert "__inputs" not in DASHBOARD
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {UID, "${datasource}"}
    variables = {one["name"]: one["type"] for one in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}


def test_panels_do_not_overlap() -> None:
    """Each has a place of its own within the 24 columns, and an id of its own."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_a_panel_says_what_its_series_means() -> None:
    """In its description, with a unit of Grafana's."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert all(panel["targets"] for panel in panels)
    (latency,) = (panel for panel in panels if panel["title"] == "Job latency")
    assert latency["description"] == SERIES["headrace_job_latency_seconds"].meaning
    assert latency["fieldConfig"]["defaults"]["unit"] == "s"
