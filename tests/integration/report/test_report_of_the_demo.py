"""The demonstration's own report, as who tries headrace first sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main


def test_the_report_of_the_demo(
    browser: Any, tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demonstration ends with a page on which every chart is drawn, with every stage and its split, and no complaint."""
    assert main(["demo", "--count", "30", "--delay", "20ms", "-o", str(tmp_path / "demo"), "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["report"])
    browser.open(page)
    assert browser.complaints == []
    places = browser.evaluate("document.querySelectorAll('.chart').length")
    assert places > 5
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") == places
    text = browser.evaluate("document.body.textContent")
    assert all(stage in text for stage in ("fetch", "decode", "preprocess", "process", "deliver"))
    assert "run delay" in text
    browser.screenshot(pictures / "demo.png")
    browser.open(page, width=360, height=800)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    browser.screenshot(pictures / "demo-phone.png")
