"""`headrace board` as a team uses it: a browser, a run that goes on, a comparison, strangers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.report.chromium import Chromium

JOBS = """
import time

import headrace as hr


def work(number):
    time.sleep(0.01)
    return number


pipeline = hr.Pipeline(hr.items(range(300)), stages=[hr.stage("work", work)], delivery=hr.collect())
endless = hr.Pipeline(hr.items(range(1_000_000)), stages=[hr.stage("work", work)], delivery=hr.collect())
"""


def _do(folder: Path, *arguments: str) -> str:
    """Return why a command did not succeed; empty if it did."""
    done = subprocess.run([sys.executable, "-m", "headrace", *arguments], cwd=folder, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def _begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two profiled runs and a ledger with a prediction."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "jobs.py").write_text(JOBS)
    profile = ("profile", "jobs.py:pipeline", "--force", "-o")
    assert not _do(folder, *profile, "runs/four", "--set", "work.workers=4")
    for _ in range(5):  # a run that others disturbed much is rightly not predicted from
        assert not _do(folder, *profile, "runs/one", "--set", "work.workers=1")
        why = _do(folder, "whatif", "runs/one", "--set", "work.workers=4", "--ledger", "runs/ledger.sqlite")
        if not why:
            break
    assert not why
    return folder


@pytest.fixture(scope="module")
def address(team: Path) -> Iterator[str]:
    """Of a board."""
    with _begin(team, "board", "runs", "--port", "0") as board:
        assert board.stderr is not None
        said = board.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert found, said
        yield found[0]
        board.send_signal(signal.SIGINT)
        assert board.wait(30) == 0


def _get(address: str, target: str, host: str | None = None) -> tuple[int, str]:
    place = urllib.parse.urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)) as connection:
        connection.request("GET", target, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_it_without_complaint(browser: Chromium, address: str, width: int, dark: bool) -> None:
    """Desk and phone, light and dark: the answers, the charts, no sideways scrolling, and nothing loaded from elsewhere."""
    browser.open(address, width=width, dark=dark)
    assert not browser.complaints
    assert browser.evaluate("document.querySelectorAll('.answers .verdict').length") == 5
    assert browser.evaluate("document.querySelectorAll('.chart canvas, .chart svg').length") >= 1
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_two_runs_that_are_ticked_are_compared(browser: Chromium, address: str) -> None:
    """By clicks alone."""
    browser.open(address)
    browser.evaluate("document.querySelectorAll('input[type=checkbox]').forEach(one => one.click())")
    browser.evaluate("document.querySelector('form button').click()")
    until = time.monotonic() + 60
    while (
        "/compare" not in str(browser.evaluate("location.pathname + document.readyState")) and time.monotonic() < until
    ):
        time.sleep(0.1)
    runs = re.findall(r'value="([0-9a-f]{12})" aria-label', _get(address, "/")[1])
    assert len(runs) == 2
    status, page = _get(address, f"/compare?run={runs[0]}&run={runs[1]}")
    assert status == 200
    assert "faster" in page
    assert _get(address, f"/compare?run={runs[0]}")[0] == 400


def test_every_link_of_the_page_leads_somewhere(address: str) -> None:
    """Reports, comparison, ledger."""
    page = _get(address, "/")[1]
    links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"#]*)"', page)}
    assert {link.split("/")[1].partition("?")[0] for link in links} >= {"run", "ledger"}
    for link in links:
        assert _get(address, link)[0] == 200, link


def test_it_says_what_to_do_next(address: str) -> None:
    """As the diagnosis does, a while after it was opened."""
    until = time.monotonic() + 90
    while (why := "<summary>Why</summary>") not in (page := _get(address, "/")[1]) and time.monotonic() < until:
        time.sleep(0.5)
    assert why in page
    assert "The report of this run</a> has the evidence" in page


def test_strangers_learn_nothing(address: str) -> None:
    """A name that is not this machine's, ids that are none, paths that lead out."""
    assert _get(address, "/", host="evil.example")[0] == 403
    for target in (
        "/run/0123456789ab",
        "/run/../../etc/passwd",
        "/run/",
        "/etc/passwd",
        "/ledger/%00",
        "/run/" + "a" * 9999,
    ):
        assert _get(address, target)[0] == 404, target


def test_a_run_that_goes_on_is_shown_as_it_goes_on(team: Path, address: str) -> None:
    """Its counts grow; when it is killed the page says so."""
    until, live = time.monotonic() + 60, {}
    with _begin(team, "run", "jobs.py:endless", "-o", "runs/live", "-q") as going:
        while not live and time.monotonic() < until:
            live = json.loads(_get(address, "/state")[1])["live"]
            time.sleep(0.3)
        going.kill()
    assert live
    while (page := _get(address, "/")[1]).count("was killed") == 0 and time.monotonic() < until:
        time.sleep(0.5)
    assert "was killed" in page


def test_a_file_is_written_instead(team: Path, browser: Chromium) -> None:
    """To send; it loads nothing and asks nobody."""
    _do(team, "board", "runs", "-o", "monday.html", "--force")
    browser.open(team / "monday.html")
    assert not browser.complaints
    assert os.path.getsize(team / "monday.html") < 2_000_000
