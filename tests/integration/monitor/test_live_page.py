"""The page of streams: what it knows of each, who may ask for it, and what a browser makes of it."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import SourcePlan
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.base.stream_tally import StreamTally
from headrace.cli import live_page
from headrace.cli.terminal import set_style
from headrace.monitor.streams.server import StreamsServer
from headrace.monitor.streams.watching import StreamsWatch
from headrace.testing import ListSource
from tests.integration.report.chromium import Chromium

LATE = Outcome(OutcomeKind.REJECTED, "deadline.passed: it was 0.6 s old")


class Cameras(ListSource):
    """Counts as a source of live streams does."""

    def __init__(self, items: list[Any]) -> None:
        """Make up counts of two streams, of which one brought nothing."""
        super().__init__(items)
        self.gate = StreamTally("gate", 0.0)
        for what, number in {"decoded": 30, "given": 3, "dropped_newer": 2, "skipped_fps": 25}.items():
            for _ in range(number):
                self.gate.count(what)

    def tallies(self) -> list[StreamTally]:
        """Return what is counted of the two."""
        return [self.gate, StreamTally("<b>yard</b>", 0.0)]


def frame(number: int, stream: str = "gate", shade: int = 90, size: tuple[int, int] = (720, 1280)) -> Job:
    """Return the job of a frame, as a source of video makes it."""
    image = np.full((*size, 3), shade, np.uint8)
    image[: size[0] // 2, : size[1] // 2] = (200, 40, 40)
    job = Job(f"{stream}#{number}", image, stream=stream, sequence=number)
    job.sent_at = time.time() - 0.1
    return job


@pytest.fixture
def watch() -> StreamsWatch:
    """One that nobody looked at."""
    pipeline = hr.Pipeline(Cameras([]), stages=[hr.stage("see", len)], name="Crossing <1>")
    return StreamsWatch(pipeline)


@pytest.fixture
def address(watch: StreamsWatch) -> Iterator[str]:
    """Of a page that is served."""
    server = StreamsServer(watch, 0)
    with server.serving():
        yield server.address


def get(address: str, target: str, host: str | None = None) -> tuple[int, str]:
    """Return status and body."""
    place = urllib.parse.urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)) as connection:
        connection.request("GET", target, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_ages_ends_and_drops_are_of_each_stream(watch: StreamsWatch) -> None:
    """Delivered ones have an age; others are counted by the code of their reason; the source's counts stand beside them."""
    jobs = [frame(number) for number in range(3)]
    watch.job_received([*jobs, Job("no stream", b"x")])
    watch.job_settled(jobs[0], DELIVERED)  # the source counts it, so the page does not
    for age, outcome in (*[(0.2, DELIVERED)] * 11, (0.6, LATE)):
        watch._source.gate.ended(time.monotonic(), age, outcome)
    yard, gate = watch.state()["streams"]
    assert gate["ended"] == {"delivered": 11, "deadline.passed": 1}
    assert (gate["received"], gate["frame"], gate["decoded"]) == (3, 2, 30)
    assert (gate["age_p50"], gate["age_p99"], gate["rate"]) == (0.2, None, 1.1)  # p99 of eleven would be the oldest
    assert (gate["dropped"], gate["skipped"]) == ({"newer": 2}, {"fps": 25})
    assert (yard["name"], yard["silent_seconds"], yard["age_p50"], yard["picture"]) == ("<b>yard</b>", None, None, None)


def test_p99_is_shown_of_enough_answers(watch: StreamsWatch) -> None:
    """Of as many as the rest of headrace asks for, which the page keeps."""
    for _ in range(661):
        watch._source.gate.ended(time.monotonic(), 0.2, DELIVERED)
    assert watch.state()["streams"][1]["age_p99"] is None
    watch._source.gate.ended(time.monotonic(), 0.2, DELIVERED)
    assert watch.state()["streams"][1]["age_p99"] == pytest.approx(0.2)


def test_the_page_says_why_a_stream_is_away() -> None:
    """What the terminal says once a minute, of one that never came and of one that broke off."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    pytest.importorskip("av")
    source = hr.live_video({"gate": f"tcp://127.0.0.1:{port}"})
    watch = StreamsWatch(hr.Pipeline(source, stages=[hr.stage("see", len)]))
    source.open(SourcePlan())
    try:
        until = time.monotonic() + 60
        while not (said := watch.state()["streams"][0]["problem"]) and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        source.close()
    assert said == "Connection refused"


def test_pictures_are_made_while_somebody_looks(watch: StreamsWatch) -> None:
    """None before, then one a second at most, small; what is no image has none."""
    watch.job_received([frame(0)])
    assert watch.state()["streams"][1]["picture"] is None
    watch.job_received([frame(1)])
    first = watch.state()["streams"][1]["picture"]
    assert first.startswith("data:image/jpeg;base64,")
    assert len(first) < 20_000
    watch.job_received([frame(2, shade=250)])
    assert watch.state()["streams"][1]["picture"] == first
    odd = [
        Job("a", b"bytes", stream="a"),
        Job("b", np.zeros((0, 4, 3), np.uint8), stream="b"),
        frame(0, "c", size=(1, 4000)),
    ]
    watch.job_received([*odd, Job("d", np.zeros((4, 4)), stream="d")])
    shown = {one["name"]: one["picture"] is not None for one in watch.state()["streams"]}
    assert (shown["a"], shown["b"], shown["c"], shown["d"]) == (False, False, True, False)


def test_no_more_streams_are_kept_than_are_shown(watch: StreamsWatch) -> None:
    """A source that makes up names fills no memory."""
    for number in range(500):
        job = frame(0, f"s{number}", size=(2, 2))
        watch.job_received([job])
        watch.job_settled(job, DELIVERED)
    assert len(watch.state()["streams"]) == 200


def test_strangers_learn_nothing(address: str) -> None:
    """Another host, as a site elsewhere would have it resolved, is refused; there is nothing but the page and its state."""
    port = urllib.parse.urlsplit(address).port
    assert get(address, "/")[0] == get(address, "/state", f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example:80", f"[::1]:{port}"):
        assert get(address, "/state", host)[0] == 403
    for target in ("/../etc/passwd", "/state/", "/streams.js"):
        assert get(address, target)[0] == 404
    assert "default-src" in get(address, "/")[1]


def test_a_run_is_shown_as_it_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    """The option's observer and watch, in a run: its frames are on the page until it ends, and then nobody answers."""
    set_style(quiet=False, timestamps=False)  # as the command begins; another test's may be quiet
    asked: list[dict[str, Any]] = []

    class Frames(Cameras):
        """Gives jobs with streams."""

        def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
            """Return what the list has, as frames."""
            jobs = super().receive(limit, wait_seconds)
            for job in jobs or []:
                job.stream, job.sent_at = "gate", time.time()
            return jobs

    def see(image: Any) -> int:
        asked.append(json.loads(get(address, "/state")[1]))
        return 1

    pipeline = hr.Pipeline(
        Frames([np.zeros((8, 8, 3), np.uint8)] * 3), stages=[hr.stage("see", see)], delivery=hr.collect()
    )
    companion = live_page.open_companion(argparse.Namespace(live_page="0"), pipeline, hr.Plan(), None)
    assert companion is not None
    address = capfd.readouterr().err.strip().rpartition(" ")[2]
    result = hr.run(pipeline, observers=companion.observers, watch=companion.watch)
    assert result.counters.delivered == 3
    assert next(one for one in asked[-1]["streams"] if one["name"] == "gate")["received"] >= 1
    with pytest.raises(OSError, match="refused"):
        get(address, "/state")


@pytest.mark.parametrize("port", ["x", "-1", "65536", "", "1e3", "8000:1", "9" * 30, "\u0663"])
def test_ports_that_are_none(port: str, watch: StreamsWatch) -> None:
    """Misuse, with what was expected; a port that another program has is said too."""
    pipeline = hr.Pipeline(Cameras([]), stages=[hr.stage("see", len)])
    with pytest.raises(SettingsError, match="--live-page"):
        live_page.open_companion(argparse.Namespace(live_page=port), pipeline, hr.Plan(), None)


def test_a_port_that_is_taken_and_several_processes(watch: StreamsWatch, address: str) -> None:
    """Both are refused before anything runs."""
    with pytest.raises(SettingsError, match="cannot be used"):
        StreamsServer(watch, urllib.parse.urlsplit(address).port or 0)
    with pytest.raises(SettingsError, match="--supervise"):
        live_page.open_beside_workers(argparse.Namespace(live_page="0"))
    assert live_page.open_beside_workers(argparse.Namespace(live_page=None)) is None


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_pictures_ages_and_drops(
    browser: Chromium, watch: StreamsWatch, address: str, pictures: Path, width: int, dark: bool
) -> None:
    """Desk and phone, light and dark: a card for each stream with its picture, names as text, the silent one marked."""
    browser.open(address, width=width, dark=dark)
    until = time.monotonic() + 60
    number = 0
    while not browser.evaluate("document.querySelectorAll('article img').length") and time.monotonic() < until:
        job = frame(number)
        watch.job_received([job])
        watch.job_settled(job, DELIVERED if number % 3 else LATE)
        number += 1
        time.sleep(0.2)
    assert browser.evaluate("document.querySelectorAll('article').length") == 2
    assert (
        browser.evaluate("[...document.querySelectorAll('article.late h2')].map(one => one.textContent).join()")
        == "<b>yard</b>"
    )
    assert browser.evaluate("document.querySelector('h1').textContent") == "Crossing <1>"
    assert browser.evaluate("document.querySelector('article img').naturalWidth") == 320
    shown = browser.evaluate("document.querySelector('main').textContent")
    assert "newer 2" in shown
    assert "fps 25" in shown  # "25 fps" would be read as a rate
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not browser.complaints
    browser.screenshot(pictures / f"streams-{width}.png")
