"""What metrics cost: the CPU of a process that does 400 items a second through seven stages, and the time of a scrape.

The CPU: the same run without and with metrics that are scraped once a second, interleaved; stages do next to nothing, and
the device takes 10 ms a call, so that what the metrics add is not lost in their noise. Its share is of one core: with a real
pipeline, which needs one or two, it is a smaller share of the process. The scrape: 2,000 lines of OpenMetrics from four
workers, over HTTP, as Prometheus asks.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import headrace as hr
from benchmarks import measure as measuring
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.server import MetricsServer, listen, url_of
from headrace.monitor.metrics.watch import MetricsWatch
from headrace.pipeline.watching import RunInProgress
from headrace.sources.finite import Entry, FiniteSource

_RATE, _AT_ONCE, _GOAL_SHARE, _CALL_SECONDS = 400, 8, 0.01, 0.01
#: Without batches the device would do a hundred items a second.
_PLAN = hr.Plan().with_settings(["process.batch=16"])
#: That the last items may come late, and a run needs to begin and to end.
_MOST_LATE_SECONDS = 2.0
_LINES, _GOAL_MS = 2_000, 10.0
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class _Paced(FiniteSource):
    """So many numbers a second, for so long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._num = int(_RATE * seconds)

    def entries(self) -> Iterator[Entry]:
        """Return them when they are due."""
        began = time.monotonic()
        for number in range(self._num):
            if number % _AT_ONCE == 0:
                time.sleep(max(0.0, began + number / _RATE - time.monotonic()))
            yield Entry(str(number), number)


def _call_device(batch: Any) -> Any:
    """Take as long as a small model, so that batches form as they do in production."""
    time.sleep(_CALL_SECONDS)
    return batch


def _pipeline(seconds: float) -> hr.Pipeline:
    names = ("fetch", "decode", "resize", "preprocess", "process", "postprocess")
    stages = [
        hr.stage("process", _call_device, kind="device")
        if name == "process"
        else hr.stage(name, lambda value: value, kind="io")
        for name in names
    ]
    return hr.Pipeline(_Paced(seconds), stages=stages, delivery=hr.collect())


def _run(seconds: float, *, with_metrics: bool) -> float:
    """Return the CPU seconds per second of a run, without those of the scraper."""
    page = Page()
    counts = Counts(page)
    watch = MetricsWatch(counts)
    scrapers: list[float] = []

    @contextlib.contextmanager
    def watched(run: RunInProgress) -> Iterator[None]:
        listening = listen("0")
        server = MetricsServer(listening, Exporter([page], [], counts).scrape)
        ended = threading.Event()
        server.start()
        scraper = threading.Thread(target=_scrape_on, args=(url_of(listening), ended, scrapers))
        scraper.start()
        with watch(run):
            yield
        ended.set()
        scraper.join()
        server.close()

    options: dict[str, Any] = {"watch": watched} if with_metrics else {}
    cpu, began = time.process_time(), time.monotonic()
    result = hr.run(_pipeline(seconds), _PLAN, **options)
    took = time.monotonic() - began
    assert result.counters.delivered == int(_RATE * seconds), result
    if took > seconds + _MOST_LATE_SECONDS:
        raise RuntimeError(
            f"{_RATE * seconds:.0f} items took {took:.1f} s: this machine is too busy for {_RATE} items/s"
        )
    return (time.process_time() - cpu - sum(scrapers)) / took


def _scrape_on(url: str, ended: threading.Event, cpu_seconds: list[float]) -> None:
    while not ended.wait(1.0):
        _scrape(url)
    cpu_seconds.append(time.thread_time())


def _scrape(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def _time_scrapes(num: int) -> dict[str, float]:
    """Return what scrapes of so many lines take, in milliseconds."""
    pages = [Page() for _ in range(4)]
    for worker, page in enumerate(pages):
        page.begin()
        counts = Counts(page)
        for stage in range(_LINES // 60):
            counts.observe_many("headrace_stage_service_seconds", [1_000_000 * worker] * 10, (f"stage{stage}",))
            counts.observe_many("headrace_stage_queue_wait_seconds", [1_000] * 10, (f"stage{stage}",))
            for name in ("headrace_stage_queue_depth", "headrace_stage_workers", "headrace_stage_workers_busy"):
                counts.set(name, float(worker), (f"stage{stage}",))
    listening = listen("0")
    server = MetricsServer(listening, Exporter(pages, [], Counts(Page())).scrape)
    server.start()
    url, took = url_of(listening), []
    num_lines = sum(not line.startswith(b"#") for line in _scrape(url).splitlines())
    for _ in range(num):
        began = time.perf_counter()
        _scrape(url)
        took.append((time.perf_counter() - began) * 1e3)
    server.close()
    return {"median": statistics.median(took), "worst": max(took), "lines": num_lines}


def measure(quick: bool) -> dict[str, Any]:
    """Return `metrics_cpu_share`, `scrape_ms`, and what they rest on."""
    seconds, rounds = (1.5, 2) if quick else (5.0, 16)
    _run(0.5, with_metrics=True)  # imports
    runs = measuring.interleave(
        {name: lambda on=on: _run(seconds, with_metrics=on) for name, on in (("without", False), ("with", True))},  # type: ignore[misc]
        rounds,
    )
    added = [on - off for on, off in zip(runs["with"], runs["without"], strict=True)]
    scrape = _time_scrapes(50 if quick else 500)
    return {
        "metrics_cpu_share": round(statistics.median(added), 5),
        "scrape_ms": round(scrape["median"], 3),
        "metrics": {
            "items_per_second": _RATE,
            "added_cores": [round(one, 5) for one in sorted(added)],
            "cores_without": round(statistics.median(runs["without"]), 4),
            "scrape_ms_worst": round(scrape["worst"], 3),
            "scrape_lines": scrape["lines"],
        },
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the section for people."""
    more = result["metrics"]
    return (
        f"## Metrics\n\nAt {_RATE} items/s through seven stages, scraped every second, metrics add "
        f"{100 * result['metrics_cpu_share']:.2f} % of a core (median of {len(more['added_cores'])} pairs, from "
        f"{100 * more['added_cores'][0]:.2f} to {100 * more['added_cores'][-1]:.2f} %; goal {100 * _GOAL_SHARE:g} %); "
        f"the run alone takes {100 * more['cores_without']:.1f} %.\n\nA scrape of {more['scrape_lines']:,} lines from four "
        f"workers takes {result['scrape_ms']:.1f} ms (median; worst {more['scrape_ms_worst']:.1f}; goal {_GOAL_MS:g})."
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    found = []
    if result["metrics_cpu_share"] > _GOAL_SHARE:
        found.append(
            f"metrics add {100 * result['metrics_cpu_share']:.2f} % of a core, at most {100 * _GOAL_SHARE:g} %"
        )
    if result["scrape_ms"] > _GOAL_MS:
        found.append(f"a scrape takes {result['scrape_ms']:.1f} ms, at most {_GOAL_MS:g} ms")
    return found
