"""The report as people see it, in a real browser: drawn, readable everywhere, and deaf to hostile text."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.cli import report
from headrace.profiler.profile import profile
from headrace.report.page import render_report
from headrace.runs.formats.diagnosis import VerdictClass

HOSTILE = "</script><img src=x onerror=alert(1)>{a|b}<b>"
#: For each chart: its id, width, height, and how many marks it has beside axes and their labels.
CHARTS = """[...document.querySelectorAll('.chart')].map(place => {
  const svg = place.querySelector('svg');
  return {id: place.id, svg: svg !== null, width: svg ? svg.getBoundingClientRect().width : 0,
          shown: place.getBoundingClientRect().width, shapes: svg ? svg.querySelectorAll('path, rect, circle').length : 0,
          texts: svg ? svg.querySelectorAll('text').length : 0};
})"""
#: Elements that stick out of the screen and are not in something that scrolls by itself.
STICKING_OUT = """[...document.querySelectorAll('body *')].filter(found => !found.closest('.scroll, pre, svg')
  && found.getBoundingClientRect().right > innerWidth + 1).map(found => found.tagName + '.' + found.className)"""


@pytest.fixture(scope="module")
def full_page(documents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a run in which everything was measured."""
    page: Path = tmp_path_factory.mktemp("report") / "full.html"
    document = msgspec.structs.replace(documents.full_document(), experiment=documents.experiment_document())
    made = render_report(document, documents.comparison_document(), diagnosed=documents.diagnosis_document())
    page.write_text(made, encoding="utf-8")
    return page


def test_every_chart_is_drawn_without_complaint(browser: Any, full_page: Path, pictures: Path) -> None:
    """On a desk: no message on the console, and each chart is an SVG as wide as its place, with marks and labels."""
    browser.open(full_page)
    charts = browser.evaluate(CHARTS)
    assert browser.complaints == []
    assert len(charts) >= 30
    for chart in charts:
        assert chart["svg"], chart["id"]
        assert chart["shapes"] >= 3, chart
        assert chart["texts"] >= 3, chart
        assert abs(chart["width"] - chart["shown"]) < 2, chart
    assert browser.evaluate("document.querySelectorAll('#chart-latency path').length") > 30
    told = browser.evaluate("document.querySelector('#experiment').innerText")
    assert told.index("8 workers of fetch are the limit") < told.index("delay:fetch")
    assert "limit from here on" in browser.evaluate("document.querySelector('#chart-sensitivities').textContent")
    browser.screenshot(pictures / "desk.png")


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, full_page: Path, pictures: Path) -> None:
    """At 360 pixels nothing sticks out but what scrolls by itself."""
    browser.open(full_page, width=360, height=800)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.evaluate(STICKING_OUT) == []
    assert all(chart["svg"] and chart["width"] <= 360 for chart in browser.evaluate(CHARTS))
    assert browser.complaints == []
    browser.screenshot(pictures / "phone.png")


def test_dark_mode_changes_charts_too(browser: Any, full_page: Path, pictures: Path) -> None:
    """Text is light on dark in tables and in charts: they take their colours from the page."""
    colors = """[getComputedStyle(document.body).backgroundColor,
                 getComputedStyle(document.querySelector('#chart-passage text')).fill]"""
    browser.open(full_page)
    light = browser.evaluate(colors)
    browser.open(full_page, dark=True)
    dark = browser.evaluate(colors)
    assert _brightness(light[0]) > 200 > 120 > _brightness(light[1])
    assert _brightness(dark[0]) < 60 < 150 < _brightness(dark[1])
    browser.screenshot(pictures / "dark.png")


def test_paper_holds_whole_charts(browser: Any, full_page: Path, pictures: Path) -> None:
    """Before printing every chart is made as wide as A4 allows, and afterwards as wide as the screen again."""
    browser.open(full_page)
    before = browser.evaluate(CHARTS)
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert all(0 < chart["width"] <= 690 for chart in browser.evaluate(CHARTS))
    browser.evaluate(
        "window.dispatchEvent(new Event('afterprint')), new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"
    )
    assert browser.evaluate(CHARTS) == before
    browser.print_pdf(pictures / "paper.pdf")
    assert (pictures / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert browser.complaints == []


def test_without_javascript_the_numbers_are_there(browser: Any, full_page: Path, pictures: Path) -> None:
    """Tables and the verdict are shown, empty places for charts are not."""
    browser.open(full_page, script=False)
    text = browser.evaluate("document.body.innerText")
    for told in ("TRUSTED", "28.4/s", "417 ms", "queue wait", "211 ms"):
        assert told in text
    assert browser.evaluate("[...document.querySelectorAll('figure')].every(found => found.offsetHeight === 0)")
    assert browser.evaluate("document.querySelectorAll('table').length") > 15
    browser.screenshot(pictures / "without-javascript.png")


def test_hostile_text_stays_text(browser: Any, documents: ModuleType, tmp_path: Path) -> None:
    """Names that look like markup run nothing, load nothing, and can be read in tables, labels and under the pointer."""
    page = tmp_path / "hostile.html"
    document = documents.with_text(documents.full_document(), HOSTILE)
    comparison, diagnosed = (
        documents.with_text(made, HOSTILE) for made in (documents.comparison_document(), documents.diagnosis_document())
    )
    page.write_text(render_report(document, comparison, diagnosed=diagnosed), encoding="utf-8")
    browser.open(page)
    assert browser.complaints == []
    assert browser.evaluate("document.images.length") == 0
    assert "<img src=x onerror=alert(1)>" in browser.evaluate("document.querySelector('td').innerText + document.title")
    tip = _point_at(browser, "#chart-passage")
    assert "<img" in tip
    assert browser.evaluate("document.images.length") == 0
    assert browser.complaints == []
    browser.open(page, width=360, height=800)
    assert browser.evaluate(STICKING_OUT) == []


def test_the_verdict_is_seen_first(browser: Any, full_page: Path) -> None:
    """On a desk the verdict stands on the first screen; its chart of gains has a bar for each resource; each theme tints it."""
    browser.open(full_page)
    assert browser.evaluate("document.querySelector('.finding').getBoundingClientRect().bottom") < 900
    assert browser.evaluate("document.querySelector('.finding .verdict').innerText") == "DECODE (cpu) in decode"
    labels = browser.evaluate("[...document.querySelectorAll('#chart-gains text')].map(found => found.textContent)")
    assert {"stage:decode", "cores", "device:process", "queue:decode"} <= set(labels)
    color = "getComputedStyle(document.querySelector('.finding')).backgroundColor"
    light = browser.evaluate(color)
    browser.open(full_page, dark=True)
    assert _brightness(light) > 200 > 100 > _brightness(browser.evaluate(color))


def test_the_pointer_shows_values_with_their_unit(browser: Any, full_page: Path) -> None:
    """Over a bar it shows the stage and each part's time."""
    browser.open(full_page)
    tip = _point_at(browser, "#chart-passage")
    assert "queue wait" in tip
    assert " ms" in tip


def test_a_run_without_profile_can_be_looked_at(
    browser: Any, documents: ModuleType, tmp_path: Path, pictures: Path
) -> None:
    """The page of spans alone has its chart and the command that gives more."""
    page = tmp_path / "bare.html"
    page.write_text(render_report(documents.bare_document()), encoding="utf-8")
    browser.open(page)
    assert browser.complaints == []
    assert "headrace profile" in browser.evaluate("document.querySelector('.callout').innerText")
    assert [chart["id"] for chart in browser.evaluate(CHARTS) if chart["svg"]] == ["chart-passage"]
    browser.screenshot(pictures / "without-profile.png")


def _point_at(browser: Any, place: str) -> str:
    """Move the pointer to the middle of a chart and return what it shows."""
    middle = browser.evaluate(
        f"(() => {{ const place = document.querySelector('{place}'); place.scrollIntoView({{behavior: 'instant'}});"
        " const box = place.getBoundingClientRect(); return [box.x + box.width / 3, box.y + box.height / 3]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0] + 2, y=middle[1])
    shown = browser.evaluate(
        f"new Promise(done => setTimeout(() => done([...document.querySelectorAll('{place} .tip')]"
        ".map(row => row.innerText).join('\\n')), 200))"
    )
    return str(shown)


def _brightness(color: str) -> float:
    """Return the mean of red, green and blue of `rgb(...)`, 0 to 255."""
    return sum(float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]) / 3


@pytest.mark.smoke
def test_the_report_of_a_real_run(browser: Any, tmp_path: Path, pictures: Path) -> None:
    """A profiled run, analysed and reported by the command, is drawn without complaint; its times add up on the page."""
    (tmp_path / "files").mkdir()
    for number in range(200):
        (tmp_path / "files" / f"{number:03}.bin").write_bytes(b"x" * (number + 1))
    pipeline = hr.Pipeline(
        source=hr.folder(tmp_path / "files", patterns=["*.bin"]),
        stages=[hr.fetch("fetch"), hr.stage("size", lambda content: sum(content) // 120)],
        delivery=hr.jsonl(tmp_path / "sizes.jsonl"),
    )
    profile(pipeline, output=tmp_path / "run")
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    assert report.run(parser.parse_args([str(tmp_path / "run"), "--json"])) == 0
    browser.open(tmp_path / "run" / "report.html")
    assert browser.complaints == []
    charts = browser.evaluate(CHARTS)
    assert {"chart-passage", "chart-latency"} <= {chart["id"] for chart in charts}
    verdict = browser.evaluate("document.querySelector('.finding .verdict').innerText")
    assert verdict.split()[0] in set(VerdictClass)
    assert all(chart["svg"] and chart["texts"] for chart in charts)
    rows = browser.evaluate(
        "[...document.querySelectorAll('#stages table')[0].rows].slice(1)"
        ".map(row => [row.cells[0].innerText, Number(row.cells[2].querySelector('data').value)])"
    )
    assert rows == [["fetch", 200], ["size", 200], ["deliver", 200]]
    browser.screenshot(pictures / "real-run.png")
