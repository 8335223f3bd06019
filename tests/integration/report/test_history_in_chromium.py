"""The history's page as people see it: charts drawn, marks of decisions, desk and phone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.ledger.ledger import hardware_fingerprint
from headrace.monitor.history.document import make_document, read_windows
from headrace.monitor.history.page import render_history
from headrace.monitor.history.store import History
from headrace.runs.formats.history import HistoryLine, HistoryWindow
from headrace.runs.hardware import find_hardware

_STICKING_OUT = """[...document.querySelectorAll('body *')].filter(found => !found.closest('.scroll, pre, svg')
  && found.getBoundingClientRect().right > innerWidth + 1).map(found => found.tagName + '.' + found.className)"""
_SHAPES = """[...document.querySelectorAll('.chart svg')].map(svg => [svg.querySelectorAll('path').length,
  svg.textContent])"""


def _load_windows() -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "unit" / "monitor" / "history" / "test_judging.py"
    spec = importlib.util.spec_from_file_location("history_windows", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a history of 120 hours whose decoding gets slower, with an incident and a new baseline elsewhere."""
    folder = tmp_path_factory.mktemp("history")
    machine, began = hardware_fingerprint(find_hardware()), 1.7e9
    made = _load_windows().make_windows(120, slow={"decode": 1.2}, slow_from=100)
    windows = [
        HistoryWindow(
            began_unix_seconds=began + one.began, seconds=3600.0, delivered=50_000 + at, stages=dict(one.stages)
        )
        for at, one in enumerate(made)
    ]
    line = HistoryLine(
        kind="run", began_unix_seconds=began, key="a", pipeline="jobs:pipeline", plan_id="1f2e3d", machine=machine,
        machine_says="a machine with a long name (GenuineIntel 6/167/1; avx2 fma avx512f avx512_vnni), 2 cores, 24 GiB",
        delivered=6_000_000,
    )  # fmt: skip
    with History(folder / "history.sqlite") as history:
        history.add_line(line, windows)
        says = "bigger images -> slower decode"
        history.add_line(
            HistoryLine(kind="incident", began_unix_seconds=began + 3e5, pipeline="jobs:pipeline", says=says)
        )
        document = make_document(history)
        text = render_history(document, [read_windows(history, verdict) for verdict in document.baselines])
    made_page = folder / "history.html"
    made_page.write_text(text, encoding="utf-8")
    return made_page


def test_a_lead_sees_which_stage_got_slower(browser: Any, page: Path, pictures: Path) -> None:
    """On a desk: the headline, two charts with a line for each stage and the incident's mark, and no complaint."""
    browser.open(page)
    assert browser.complaints == []
    assert browser.evaluate("document.querySelector('h1').textContent") == "1 stage slower than in the baseline"
    shapes = browser.evaluate(_SHAPES)
    assert len(shapes) == 2
    for paths, text in shapes:
        assert paths > 50
        assert "h2" in text
    browser.screenshot(pictures / "history-desk.png")


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, page: Path, pictures: Path) -> None:
    """At 360 pixels, and in the dark."""
    browser.open(page, width=360, height=800, dark=True)
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.evaluate(_STICKING_OUT) == []
    browser.screenshot(pictures / "history-phone.png")
