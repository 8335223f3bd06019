"""Counting into pages, adding them up, and writing the result in both formats."""

import os
from collections.abc import Mapping

import pytest
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families

from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter, Wanted, utilization, wanted_workers
from headrace.monitor.metrics.exposition import OPEN_METRICS_TYPE, TEXT_TYPE, Writer
from headrace.monitor.metrics.gather import Gatherer, Histogram, Values
from headrace.monitor.metrics.page import MOST_ENTRIES, WITH_EXEMPLARS, Page
from headrace.monitor.metrics.table import OTHER, SERIES, Kind
from headrace.monitor.published import count, forget_published, publish, published, tell_counts

JOBS, FAILURES, LATENCY = "headrace_jobs_total", "headrace_job_failures_total", "headrace_job_latency_seconds"
DEPTH, AGE, REMAINING, DROPPED = (
    "headrace_stage_queue_depth",
    "headrace_source_oldest_age_seconds",
    "headrace_lease_remaining_seconds",
    "headrace_metrics_dropped_total",
)


@pytest.fixture
def page() -> Page:
    """A page whose process lives."""
    page = Page()
    page.begin()
    return page


def _parse(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_counter_goes_on_in_the_next_process(page: Page) -> None:
    """A successor in the slot adds to what its predecessor had counted; gauges begin anew."""
    process = os.fork()
    if not process:
        Counts(page).add(JOBS, ("", "delivered"), 3)
        Counts(page).set(DEPTH, 5.0, ("fetch",))
        os._exit(0)
    os.waitpid(process, 0)
    page.begin()
    Counts(page).add(JOBS, ("", "delivered"))
    found = Gatherer([page]).gather()
    assert found[JOBS] == {("", "delivered"): 4.0}
    assert DEPTH not in found


def test_pages_are_added_up_and_gauges_merged(page: Page) -> None:
    """Sums where workers share the work, the largest where each sees the same, the smallest where that is what matters."""
    other = Page()
    other.begin()
    for each, number in ((page, 2.0), (other, 3.0)):
        counts = Counts(each)
        counts.add(JOBS, ("", "delivered"), number)
        counts.set(DEPTH, number, ("fetch",))
        counts.set(AGE, number)
        counts.set(REMAINING, number)
        counts.observe(LATENCY, number, ("",))
    found = Gatherer([page, other]).gather()
    assert found[JOBS] == {("", "delivered"): 5.0}
    assert found[DEPTH] == {("fetch",): 5.0}
    assert found[AGE] == {(): 3.0}
    assert found[REMAINING] == {(): 2.0}
    latency = found[LATENCY][("",)]
    assert isinstance(latency, Histogram)
    assert (sum(latency.counts), latency.total) == (2.0, 5.0)


def test_gauges_of_the_dead_are_not_shown(page: Page) -> None:
    """Counters stay."""
    counts = Counts(page)
    counts.set(DEPTH, 1.0, ("fetch",))
    counts.add(JOBS, ("", "delivered"))
    page.end()
    assert set(Gatherer([page]).gather()) == {JOBS}


def test_many_times_fall_into_the_buckets_of_each(page: Page) -> None:
    """Counted together they are what they are one by one; a bound belongs to its bucket."""
    name = "headrace_stage_service_seconds"
    bounds = SERIES[name].buckets
    times = [0.0, bounds[0], bounds[0] * 1.01, bounds[-1], bounds[-1] * 2]
    together, alone = Counts(page), Counts(page)
    together.observe_many(name, [round(time * 1e9) for time in times], ("a",))
    for time in times:
        alone.observe(name, time, ("b",))
    found = Gatherer([page]).gather()[name]
    one, other = found["a",], found["b",]
    assert isinstance(one, Histogram)
    assert isinstance(other, Histogram)
    assert one.counts == other.counts
    assert one.counts[0] == 2
    assert one.counts[-1] == 1
    assert one.total == pytest.approx(other.total)


def test_what_is_followed_never_falls(page: Page) -> None:
    """A source that counts less for a moment takes nothing back, and adds nothing when it is back where it was."""
    counts = Counts(page)
    for total in (5.0, 3.0, 5.0, 6.0):
        counts.follow("headrace_brakes_total", total)
    assert Gatherer([page]).gather()["headrace_brakes_total"] == {(): 6.0}


def test_strangers_cannot_make_series(page: Page) -> None:
    """Codes beyond the hundredth are `other`, and what is not in a closed set is too; both are counted."""
    counts = Counts(page)
    most = SERIES[FAILURES].labels[0].most
    for number in range(most + 50):
        counts.add(FAILURES, (f"user.code{number}", "rejected"))
    counts.add(FAILURES, ("user.code0", "invented"))
    found = Gatherer([page]).gather()
    assert found[FAILURES][OTHER, "rejected"] == 50.0
    assert found[FAILURES]["user.code0", OTHER] == 1.0
    assert len(found[FAILURES]) == most + 2
    assert found[DROPPED]["label",] == 51.0


def test_several_workers_share_the_limit_of_a_label() -> None:
    """Each saw other codes; together they are bounded all the same."""
    pages = [Page(), Page(), Page()]
    for worker, page in enumerate(pages):
        counts = Counts(page)
        for number in range(100):
            counts.add(FAILURES, (f"user.w{worker}n{number}", "rejected"))
    found = Gatherer(pages).gather()[FAILURES]
    assert len(found) == 101
    assert found[OTHER, "rejected"] == 200.0


def test_a_full_page_counts_what_it_drops(page: Page) -> None:
    """No room for more series: nothing is raised, and a scrape says how much is missing."""
    counts = Counts(page)
    counts.add(DROPPED, ("room",), 0.0)
    series = SERIES["headrace_brakes_total"]
    while page.add(series, ()) is not None:
        pass
    assert len(page.entries()) == MOST_ENTRIES
    counts.add(JOBS, ("", "delivered"))
    counts.add(JOBS, ("", "delivered"))
    assert Gatherer([page]).gather()[DROPPED]["room",] == 2.0


@pytest.mark.parametrize("hostile", ['a"b\\c\nd', "x" * 10_000, "\udcff.jpg", "\x1f\x00", "é漢字"])
def test_hostile_labels_are_escaped(page: Page, hostile: str) -> None:
    """Both formats stay readable, whatever a name holds."""
    counts = Counts(page)
    counts.set(DEPTH, 1.0, (hostile,))
    counts.observe_jobs(LATENCY, [(10_000_000, hostile)], (hostile,))
    found = Gatherer([page]).gather()
    (sample,) = next(
        family.samples
        for family in text_string_to_metric_families(Writer().write(found, open_metrics=False).decode())
        if family.name == DEPTH
    )
    assert len(sample.labels["stage"]) <= 80
    text = Writer().write(found, open_metrics=True).decode()
    assert list(open_metrics_parser.text_string_to_metric_families(text))


def _fill(counts: Counts) -> None:
    """Give every series of the table a value or two."""
    for series in SERIES.values():
        labels = tuple(label.values[0] if label.values else "a" for label in series.labels)
        if series.kind is Kind.HISTOGRAM:
            if series.name in WITH_EXEMPLARS:
                counts.observe_jobs(series.name, [(20_000_000, "job-1")], labels)
            else:
                counts.observe(series.name, 0.02, labels)
        elif series.kind is Kind.COUNTER:
            counts.add(series.name, labels, 2.0)
        else:
            counts.set(series.name, 1.5, labels)


def test_both_formats_say_the_same(page: Page) -> None:
    """As the reference parsers read them: the same samples, of every series, of the kind that the table names."""
    _fill(Counts(page))
    found = Gatherer([page]).gather()
    plain = list(text_string_to_metric_families(Writer().write(found, open_metrics=False).decode()))
    text = Writer().write(found, open_metrics=True).decode()
    open_metrics = list(open_metrics_parser.text_string_to_metric_families(text))
    assert {family.name for family in plain} == {name.removesuffix("_total") for name in SERIES}
    for one, other in zip(plain, open_metrics, strict=True):
        assert (one.name, one.type, one.documentation) == (other.name, other.type, other.documentation)
        assert [(s.name, s.labels, s.value) for s in one.samples] == [
            (s.name, s.labels, s.value) for s in other.samples
        ]
    exemplars = [s.exemplar for family in open_metrics for s in family.samples if s.exemplar]
    assert [exemplar.labels for exemplar in exemplars] == [{"job": "job-1"}]


def test_an_exporter_answers_in_the_format_that_is_asked_for(page: Page) -> None:
    """OpenMetrics if the client takes it, the older text otherwise; it counts its scrapes."""
    exporter = Exporter([page], [], Counts(page))
    accepts = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    assert exporter.scrape(accepts)[1] == OPEN_METRICS_TYPE
    text, content_type = exporter.scrape("text/html")
    assert content_type == TEXT_TYPE
    values = _parse(text)
    assert values["headrace_scrapes_total", ()] == 2
    assert values["headrace_workers_alive", ()] == 1
    assert values["headrace_scrape_seconds", ()] > 0


@pytest.mark.parametrize(
    ("throughput", "capacity", "waiting", "wanted", "reason"),
    [
        (8.0, 20.0, 0.0, 1, "least"),
        (16.0, 20.0, 0.0, 2, "arrivals"),
        (20.0, 20.0, 0.0, 3, "arrivals"),
        (20.0, 20.0, 300.0, 3, "arrivals"),
        (20.0, 20.0, 3_000.0, 4, "backlog"),
        (0.0, 20.0, 3_000.0, 2, "backlog"),
        (0.0, 20.0, 0.0, 1, "least"),
    ],
)
def test_wanted_workers(throughput: float, capacity: float, waiting: float, wanted: int, reason: str) -> None:
    """Two workers that could do 20 a second, 8 each at four fifths: what comes, and what waits within five minutes."""
    found: Mapping[str, Values] = {
        "headrace_throughput_jobs_per_second": {(): throughput},
        "headrace_capacity_jobs_per_second": {(): capacity},
        "headrace_source_jobs": {("visible",): waiting},
    }
    assert wanted_workers(found, 2) == Wanted(wanted, reason)
    assert wanted_workers(found, 0) is None
    assert wanted_workers({}, 2) is None


def test_utilization() -> None:
    """Two workers hold 100 jobs each: 150 inside and 90 that wait are 1.2 of that; without slots or a backlog: unknown."""
    found: dict[str, Values] = {
        "headrace_job_slots": {(): 200.0},
        "headrace_jobs_in_flight": {(): 150.0},
        "headrace_source_jobs": {("visible",): 90.0},
    }
    assert utilization(found) == pytest.approx(1.2)
    assert all(utilization({name: found[name] for name in found if name != left_out}) is None for left_out in found)
    assert utilization({**found, "headrace_job_slots": {(): 0.0}}) is None


def test_parts_count() -> None:
    """What a part counts adds up, and is told at once to who asked."""
    told: list[float] = []
    forget_published()  # what other tests of this process counted
    try:
        tell_counts(lambda name, labels, total: told.append(total))
        for _ in range(2):
            count("headrace_recorder_incidents_total", "slo")
        assert published() == {("headrace_recorder_incidents_total", ("slo",)): 2.0}
        assert told == [1.0, 2.0]
    finally:
        forget_published()


def test_a_forked_worker_does_not_count_again() -> None:
    """What its supervisor counted before is on the supervisor's page."""
    forget_published()  # what other tests of this process counted
    try:
        count("headrace_recorder_incidents_total", "death")
        worker = os.fork()
        if worker == 0:
            os._exit(len(published()))
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
        assert len(published()) == 1
    finally:
        forget_published()


def test_parts_publish_their_values() -> None:
    """A part of `monitor` leaves a value under the table's name; a name that is not there is an error at once."""
    forget_published()  # what other tests of this process counted
    try:
        publish("headrace_drift_score", 0.4, "luma")
        assert published() == {("headrace_drift_score", ("luma",)): 0.4}
        with pytest.raises(ValueError, match="headrace_drift_scores"):
            publish("headrace_drift_scores", 0.4, "luma")
        with pytest.raises(ValueError, match="feature"):
            publish("headrace_drift_score", 0.4)
    finally:
        forget_published()
