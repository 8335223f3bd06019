"""The table of series: what Prometheus asks of names, and what keeps their number small."""

from pathlib import Path

import pytest

from headrace.base.records import OutcomeKind
from headrace.monitor.metrics.document import as_markdown
from headrace.monitor.metrics.table import GROUPS, MOST_VALUES, SERIES, Kind, Label, Series, sample_names


def test_each_series_stands_once() -> None:
    """A name is one series, of one group."""
    assert len(SERIES) == sum(len(group) for group in GROUPS.values())


@pytest.mark.parametrize("series", SERIES.values(), ids=lambda series: series.name)
def test_a_series_says_what_it_is(series: Series) -> None:
    """Units stand in names, labels have a bound, and somebody needs it or it says that nobody does."""
    assert series.meaning.endswith(".")
    assert all(label.values or label.bound for label in series.labels)
    assert all(len(label.values) <= label.most <= MOST_VALUES for label in series.labels)
    assert series.use == "debugging" or series.use.startswith(("panel: ", "rule: "))
    for unit in ("seconds", "bytes"):
        stem = series.name.removesuffix("_total")
        assert (series.unit == unit) == stem.endswith(f"_{unit}"), series


def test_the_number_of_series_is_bounded() -> None:
    """What the largest pipeline that fits the bounds of all labels gives stays small where strangers name things."""
    stranger = SERIES["headrace_job_failures_total"]
    assert stranger.labels[0].most == 100
    assert stranger.labels[1].values == tuple(OutcomeKind)


def test_a_wrong_series_is_refused() -> None:
    """A counter without `_total`, a label without bound: the table does not load."""
    with pytest.raises(AssertionError, match="headrace_jobs"):
        Series(name="headrace_jobs", kind=Kind.COUNTER, meaning="Jobs.")
    with pytest.raises(AssertionError):
        Series(name="headrace_jobs", kind=Kind.GAUGE, meaning="Jobs.", labels=(Label("user"),))


def test_a_histogram_has_three_names() -> None:
    """A scrape gives its buckets, sum and count."""
    assert sample_names(SERIES["headrace_job_latency_seconds"])[0] == "headrace_job_latency_seconds_bucket"
    assert sample_names(SERIES["headrace_jobs_total"]) == ["headrace_jobs_total"]


def test_the_page_is_made_of_the_table() -> None:
    """Renew it with `python -m headrace.monitor.metrics.document > docs/reference/metrics.md`."""
    page = Path(__file__).resolve().parents[4] / "docs" / "reference" / "metrics.md"
    assert page.read_text() == as_markdown()
