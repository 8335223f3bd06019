"""The serving benchmark: when it sends, what it counts, and what it makes of it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from benchmarks.serve.__main__ import with_earlier
from benchmarks.serve.arrivals import poisson, recorded
from benchmarks.serve.crosscheck import read_figures
from benchmarks.serve.figures import Sent, percentile, ratio, summarize
from benchmarks.serve.load import Client, Order
from benchmarks.serve.usage import resident_bytes, usage


def test_poisson_arrivals_depend_on_nothing_but_the_seed() -> None:
    """The same seed sends at the same times, another one at others; the rate is the one asked for."""
    times = poisson(200.0, 50.0, seed=1)
    assert times == poisson(200.0, 50.0, seed=1)
    assert times != poisson(200.0, 50.0, seed=2)
    assert times == sorted(times)
    assert times[-1] < 50.0
    assert len(times) == pytest.approx(200 * 50, rel=0.05)


def test_recorded_intervals_begin_again() -> None:
    """A recording that is too short is sent again."""
    assert recorded([0.25, 0.5], 2.0) == [0.25, 0.75, 1.0, 1.5, 1.75]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_sends_nothing_is_refused(rate: float) -> None:
    """It would loop for ever."""
    with pytest.raises(ValueError, match="rate of arrivals"):
        poisson(rate, 1.0, seed=1)


@pytest.mark.parametrize("intervals", [[], [0.0, 0.0], [0.1, -0.1], [float("nan")]])
def test_intervals_that_lead_nowhere_are_refused(intervals: list[float]) -> None:
    """They would loop for ever too."""
    with pytest.raises(ValueError, match="recorded intervals"):
        recorded(intervals, 1.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (90, 9), (99, 10), (100, 10), (1, 1)])
def test_percentiles_are_values_that_were_measured(percent: float, expected: float) -> None:
    """Of ten values."""
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


def test_nothing_has_no_percentile() -> None:
    """Not zero."""
    assert percentile([], 50) is None


def test_latency_counts_from_the_intended_send() -> None:
    """A request that had to wait in the client, because the server held all connections, waited for the server."""
    figures: Any = summarize([Sent(intended=1.0, sent=3.0, ended=3.5, status=200)], 1.0)
    assert figures["p50_ms"] == 2500
    assert figures["sent_late"]["p50_ms"] == 2000


def test_goodput_is_what_came_in_time() -> None:
    """Late answers and refusals are counted, each apart."""
    requests = [
        Sent(0.0, 0.0, end, status) for end, status in ((0.1, 200), (0.3, 200), (0.01, 429), (0.2, 504), (0.4, 0))
    ]
    figures: Any = summarize(requests, 2.0, deadline_seconds=0.2)
    assert (figures["goodput"], figures["rate"], figures["offered"]) == (0.5, 1.0, 2.5)
    assert figures["statuses"] == {"200": 2, "429": 1, "504": 1, "0": 1}
    assert figures["refused"]["max_ms"] == pytest.approx(10)


def test_a_ratio_has_an_interval() -> None:
    """It holds the value, and gets narrower with rounds that agree."""
    found = ratio([110, 121, 99], [100, 110, 90])
    assert found.value == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1)
    wide = ratio([110, 90, 120], [100, 100, 100])
    assert wide.low < 1 < wide.high
    assert ratio([110], [100]).low == pytest.approx(1.1)


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0])])
def test_only_rounds_that_both_ran_in_are_compared(ours: list[float], theirs: list[float]) -> None:
    """And only those with answers."""
    with pytest.raises(ValueError, match="positive figures of both"):
        ratio(ours, theirs)


def test_a_closed_loop_sends_when_it_has_an_answer(tmp_path: Path) -> None:
    """Each connection has one request under way, and all are answered."""
    with _server(lambda number: b"200 OK") as port:
        figures = asyncio.run(Client(_order(port, tmp_path, connections=3, seconds=0.4)).run())
    assert figures["statuses"] == {"200": figures["requests"]}
    assert figures["requests"] > 3
    assert figures["client_cpu_us"] > 0


def test_an_open_loop_sends_whatever_the_server_does(tmp_path: Path) -> None:
    """A server that holds the only connection delays all that were meant to be sent meanwhile: none is left out."""
    held = threading.Event()

    def answer(number: int) -> bytes:
        if number == 0:
            threading.Timer(0.5, held.set).start()
        held.wait(10)
        return b"200 OK"

    with _server(answer) as port:
        order = _order(port, tmp_path, intervals=(0.02,), seconds=0.3)
        figures = asyncio.run(Client(order).run())
    assert figures["requests"] == len(order.schedule())
    assert figures["unfinished"] == 0
    assert figures["max_ms"] >= 400
    assert figures["p50_ms"] >= 200
    assert figures["client_late"]["p50_ms"] < figures["sent_late"]["p50_ms"]


def test_what_finds_no_connection_is_not_sent_if_the_order_says_so(tmp_path: Path) -> None:
    """It is offered all the same, and nothing waits in the client."""
    held = threading.Event()

    def answer(number: int) -> bytes:
        if number == 0:
            threading.Timer(0.3, held.set).start()
        held.wait(10)
        return b"200 OK"

    with _server(answer) as port:
        order = _order(port, tmp_path, intervals=(0.02,), seconds=0.21, waits_for_connection=False)
        figures = asyncio.run(Client(order).run())
    assert figures["requests"] == len(order.schedule()) > 1
    assert figures["statuses"] == {"200": 1}
    assert figures["sent"] == 1
    assert figures["sent_rate"] == pytest.approx(1 / order.seconds)
    assert figures["offered"] == pytest.approx(figures["requests"] / order.seconds)


def test_refusals_and_lost_connections_are_counted_apart(tmp_path: Path) -> None:
    """A server that ends the connection gets a new one, and the request counts as lost."""
    answers = {1: b"429 Too Many Requests", 2: b"", 3: b"503 Service Unavailable"}
    with _server(lambda number: answers.get(number, b"200 OK")) as port:
        figures = asyncio.run(Client(_order(port, tmp_path, rate=100.0, seconds=0.5)).run())
    statuses = figures["statuses"]
    assert (statuses["429"], statuses["0"], statuses["503"]) == (1, 1, 1)
    assert statuses["200"] == figures["requests"] - 3


def test_usage_counts_what_threads_used() -> None:
    """Work costs CPU, waiting costs switches; of another process, as threads of this one end that earlier tests began."""
    program = (
        "import threading\n"
        "input()\n"
        "data = bytearray(b'x' * 20_000_000)\n"
        "sum(number * number for number in range(2_000_000))\n"
        "for _ in range(5):\n"
        "    threading.Event().wait(0.05)\n"
        "print('done', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        before = usage(child.pid)
        child.stdin.write("begin\n")
        assert child.stdout.readline() == "done\n"
        used = usage(child.pid) - before
        resident = resident_bytes(child.pid)
        child.stdin.write("end\n")
    assert used.cpu_seconds > 0.01
    assert used.switches >= 5
    assert resident > 10_000_000


def _order(port: int, folder: Path, **settings: Any) -> Order:
    body = folder / "body"
    body.write_bytes(b"x" * 100)
    return Order(host="127.0.0.1", port=port, path="/", bodies=[str(body)], warm_seconds=0.0, **settings)


@contextmanager
def _server(answer: Callable[[int], bytes]) -> Iterator[int]:
    """Answer requests of 100 bytes with the status that `answer` gives for their number; an empty one ends the connection."""
    numbers = iter(range(1_000_000))

    def serve(connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rb") as received:
            while any(line == b"\r\n" for line in iter(received.readline, b"")):
                received.read(100)
                status = answer(next(numbers))
                if not status:
                    return
                connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")

    def listen() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=listen, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


_MEASURED = {"foreign_cores": 0.1, "rounds": 1, "at": "10:00 UTC"}
_RESTART = {"failures": 0, "requests": 9, "restarts": 1, "workers": 2, "rate": 5.0}


def test_a_part_in_an_older_form_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured earlier on the same day stays if it can be shown; the rest is named, and nothing fails."""
    file = tmp_path / "serve.json"
    older = {"hostile": {"crashes": 0}, "emulated": {"c64": 5.0}, "restart": _RESTART, "peers": {"real": {}}}
    measured = dict.fromkeys(("hostile", "emulated", "restart", "front"), _MEASURED)
    file.write_text(json.dumps({"data": older | {"measured": measured}}))
    now = {
        "front_us": {"small": 30.0},
        "peers": {},
        "measured": {"front": _MEASURED | {"at": "11:00 UTC"}},
        "quick": False,
    }
    merged = with_earlier(now, file)
    assert merged == now | {"restart": _RESTART, "measured": {"restart": _MEASURED, **now["measured"]}}
    said = capsys.readouterr().err
    assert "--only hostile" in said
    assert "--only emulated" in said
    assert "restart:" not in said


def test_perf_analyzers_figures_are_in_our_units() -> None:
    """Its file has microseconds."""
    text = "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p99 latency\n8,1200.5,9,6400,7,9100\n"
    assert read_figures(text) == {"rate": 1200.5, "p50_ms": 6.4, "p99_ms": 9.1}
