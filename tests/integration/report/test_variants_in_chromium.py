"""The pages of a search and of a ledger as people see them, in a real browser."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.report.ledger_page import render_ledger
from headrace.report.validation_page import render_validation
from headrace.report.variants_page import render_variants

#: Of each chart: its id, whether it is drawn, and its width beside that of its place.
CHARTS = """[...document.querySelectorAll('.chart')].map(place => { const svg = place.querySelector('svg');
  return {id: place.id, texts: svg ? [...svg.querySelectorAll('text')].map(one => one.textContent) : null,
          width: svg ? svg.getBoundingClientRect().width : 0, shown: place.getBoundingClientRect().width}; })"""
#: Elements that stick out of the screen and are not in something that scrolls by itself.
STICKING_OUT = """[...document.querySelectorAll('body *')].filter(found => !found.closest('.scroll, pre, svg')
  && found.getBoundingClientRect().right > innerWidth + 1).map(found => found.tagName + '.' + found.className)"""
#: Colours of the page, of what is written in it, of an axis' label, and of a number with its point, darkest and lightest.
COLORS = """(() => { const label = [...document.querySelectorAll('#CHART text')].find(one => one.textContent === 'NUMBER');
  const axis = [...document.querySelectorAll('#CHART text')].find(one => one.textContent.startsWith('times as fast'));
  return [getComputedStyle(document.body).backgroundColor, getComputedStyle(axis).fill, getComputedStyle(label).fill]; })()"""


@pytest.fixture(scope="module")
def pages(searches: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the page of a search, that of its ledger, and that of one comparison."""
    found, folder = searches.full_search(), tmp_path_factory.mktemp("variants")
    made = {
        "search": render_variants(found, searches.decisions(), searches.pictures()),
        "comparison": render_validation(searches.comparison(), searches.pictures()),
        "ledger": render_ledger("runs/ledger.sqlite", found.attempts[::-1], searches.decisions()),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize(
    ("name", "chart", "marks", "over"),
    [
        ("search", "chart-pareto", "0 3 4 6", "the model as given"),
        ("ledger", "chart-pareto-0", "a5", "what was in use"),
    ],
)
def test_every_picture_is_drawn_without_complaint(
    browser: Any, pages: dict[str, Path], pictures: Path, name: str, chart: str, marks: str, over: str
) -> None:
    """On a desk: nothing on the console, each chart as wide as its place, points with the numbers of the table in them."""
    browser.open(pages[name])
    charts = {one["id"]: one for one in browser.evaluate(CHARTS)}
    assert browser.complaints == []
    assert "<data" not in browser.evaluate("document.body.innerText")
    assert all(one["texts"] and abs(one["width"] - one["shown"]) < 2 for one in charts.values()), charts
    assert set(marks.split()) <= set(charts[chart]["texts"])
    assert f"times as fast as {over}" in charts[chart]["texts"]
    browser.screenshot(pictures / f"{name}-desk.png")


def test_pictures_of_lost_items_are_shown(browser: Any, pages: dict[str, Path]) -> None:
    """The page's own policy lets them in."""
    browser.open(pages["search"])
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert set(browser.evaluate("[...document.images].map(one => one.naturalWidth)")) == {112}
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["search", "ledger", "comparison"])
def test_a_phone_shows_it_without_scrolling_sideways(
    browser: Any, pages: dict[str, Path], pictures: Path, name: str
) -> None:
    """At 360 pixels, everything unfolded, nothing sticks out but what scrolls by itself."""
    browser.open(pages[name], width=360, height=800)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.evaluate(STICKING_OUT) == []
    assert all(0 < one["width"] <= 360 for one in browser.evaluate(CHARTS))
    browser.screenshot(pictures / f"{name}-phone.png")


@pytest.mark.parametrize(
    ("name", "chart", "number"), [("search", "chart-pareto", "4"), ("ledger", "chart-pareto-0", "a5")]
)
def test_it_can_be_read_in_the_dark(
    browser: Any, pages: dict[str, Path], pictures: Path, name: str, chart: str, number: str
) -> None:
    """Axes are light on dark, and numbers within their bright points dark; by day the other way round."""
    colors = COLORS.replace("CHART", chart).replace("NUMBER", number)
    browser.open(pages[name])
    page, axis, label = map(_brightness, browser.evaluate(colors))
    assert page > 200 > 120 > axis
    assert label > 200
    browser.open(pages[name], dark=True)
    page, axis, label = map(_brightness, browser.evaluate(colors))
    assert page < 60 < 140 < axis
    assert label < 60
    assert browser.complaints == []
    browser.screenshot(pictures / f"{name}-dark.png")


def _brightness(color: str) -> float:
    """Return the mean of red, green and blue of `rgb(...)`, 0 to 255."""
    return sum(float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]) / 3
