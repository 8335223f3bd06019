"""What the receivers did: the book by hand, and what a run writes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.records import Job, Receiving
from headrace.pipeline.execute import run as execute
from headrace.pipeline.receiver_totals import AgeBook, ReceivingBook
from headrace.runs.reader import read_run
from headrace.testing import ListSource

Run = Callable[..., Any]


def jobs(count: int, *, sent_at: float | None = None, attempt: int = 1) -> list[Job]:
    """Return jobs that were sent at one moment."""
    made = [Job(str(number), "x", attempt=attempt) for number in range(count)]
    for job in made:
        job.sent_at = sent_at
    return made


def receiving_of(folder: Path) -> Receiving:
    """Return what the run wrote."""
    found = read_run(folder).info.receiving
    assert found is not None
    return found


def test_calls_that_brought_only_jobs_that_came_again_are_counted_apart() -> None:
    """They may have waited until these were due; one with a new job among them did not."""
    book = ReceivingBook(1)
    book.called(10, jobs(10), 0.0, 1.0, 0)
    book.called(10, jobs(2, attempt=2), 1.0, 3.5, 0)
    book.called(10, [*jobs(1), *jobs(1, attempt=3)], 3.5, 4.0, 0)
    found = book.total()
    assert (found.calls, found.call_seconds) == (2, 3.0)
    assert (found.again_calls, found.again_call_seconds) == (1, 2.5)


def test_only_calls_between_the_first_and_the_last_job_count() -> None:
    """Waiting for the first job and for the end is nobody's cost; an empty call between jobs is."""
    book = ReceivingBook(2)
    book.called(10, [], 0.0, 5.0, 0)  # nothing was there yet
    book.waited(1.0)
    book.called(10, jobs(10), 5.0, 6.0, 0)  # the first jobs
    book.called(10, [], 5.5, 7.0, 0)  # another receiver's, under way when they came
    book.handed_on(0.25, 0.5)
    book.waited(0.75)
    book.called(10, [], 7.0, 9.0, 0)
    book.called(4, jobs(4), 9.0, 9.5, 0)
    book.waited(100.0)
    book.called(10, [], 10.0, 20.0, 0)  # after the last
    assert book.total() == Receiving(
        num_receivers=2,
        calls=2,
        empty_calls=1,
        full_calls=1,
        jobs=4,
        asked=14,
        call_seconds=2.5,
        empty_call_seconds=2.0,
        blocked_seconds=1.0,
        inline_seconds=0.5,
        most_jobs=4,
        most_calls=1,
    )


@pytest.mark.parametrize(("has_clock", "correlation"), [(True, -0.5), (False, 0.0)])
def test_a_clock_of_the_senders_is_told_from_calls_that_take_their_own_time(
    has_clock: bool, correlation: float
) -> None:
    """Wake-ups are late by chance: after a clock's the next is so much sooner, after a call's own time it is not."""
    random = np.random.default_rng(3)
    late = random.exponential(0.001, 2_000)
    ends = np.arange(2_000) * 0.05 + late if has_clock else np.cumsum(0.05 + late)
    book = ReceivingBook(1)
    for end in ends:
        book.called(10, jobs(4), end - 0.049, end, 0)
    found = book.total()
    assert found.gap_correlation == pytest.approx(correlation, abs=0.07)
    assert found.gap_correlation == pytest.approx(np.corrcoef(np.diff(ends)[1:-1], np.diff(ends)[2:])[0, 1], abs=0.01)
    assert found.gap_spread == pytest.approx(np.diff(ends)[1:].std() / np.diff(ends)[1:].mean(), rel=0.01)
    assert (found.most_jobs, found.most_calls) == (4, found.calls)


def test_how_many_calls_brought_the_most() -> None:
    """Counted anew when a call brings more."""
    book = ReceivingBook(1)
    for number, count in enumerate([1, 2, 2, 3, 1, 3]):
        book.called(10, jobs(count), number + 0.1, number + 1.0, 0)
    found = book.total()
    assert (found.most_jobs, found.most_calls, found.gap_spread, found.gap_correlation) == (3, 2, None, None)


def test_receivers_that_end_in_turn_have_no_rhythm() -> None:
    """Each may have one of its own."""
    book = ReceivingBook(2)
    for number in range(100):
        book.called(10, jobs(4), number + 0.1, number + 1.0, 0)
    assert (book.total().gap_spread, book.total().gap_correlation) == (None, None)


def test_ages_are_of_first_deliveries() -> None:
    """A job that comes again, or whose time of sending is not known, has no age."""
    book = ReceivingBook(1)
    book.called(9, jobs(2, sent_at=100.0) + jobs(3) + jobs(4, sent_at=0.0, attempt=2), 0.0, 0.0, 103.0)
    total = book.total()
    assert (total.mean_age_seconds, total.last_age_seconds) == (pytest.approx(3.0), pytest.approx(3.0))


@pytest.mark.parametrize("together", [1, 7, 64])
@pytest.mark.parametrize("calls", [10, 99, 5000])
def test_mean_ages_of_a_growing_backlog(together: int, calls: int) -> None:
    """Ages that grow by one second a call: the mean of all is exact, that of the last tenth within half a percent."""
    book = AgeBook()
    for call in range(calls):
        book.add(together, float(call * together))
    assert book.mean() == pytest.approx((calls - 1) / 2)
    assert book.mean(0.1) == pytest.approx(0.95 * calls - 0.5, rel=0.005)
    assert len(book._stretches) <= 200


def test_no_jobs_have_no_age() -> None:
    """Without jobs there is no mean, and no division by zero."""
    book = AgeBook()
    book.add(0, 0.0)
    assert book.mean() is book.mean(0.1) is None


class SlowSource(ListSource):
    """Gives one job a call, and takes its time."""

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return one job, after a while."""
        time.sleep(0.005)  # what the source costs is what is measured
        return super().receive(1, wait_seconds)


def test_a_slow_source_shows_in_its_calls(tmp_path: Path) -> None:
    """Where each call takes its time, that time is within calls, and none of them was full."""
    pipeline = hr.Pipeline(SlowSource(["x"] * 11), stages=[hr.stage("a", str)])
    execute(pipeline, hr.Plan.from_table({"source": {"receive_batch": 4}}), output=tmp_path / "run")
    found = receiving_of(tmp_path / "run")
    assert (found.num_receivers, found.calls, found.jobs, found.asked) == (1, 10, 10, 40)
    assert (found.empty_calls, found.full_calls, found.inline_seconds) == (0, 0, 0.0)
    assert found.call_seconds >= 10 * 0.005
    assert found.mean_age_seconds is None


def test_a_slow_stage_shows_as_blocked(run: Run, tmp_path: Path) -> None:
    """Where the first queue is full the receivers wait, outside the source's calls."""
    plan = {
        "source": {"receive_batch": 1, "max_in_flight": 2},
        "stages": {"slow": {"workers": 1, "queue_items": 1}},
    }
    run([hr.emulated("slow", seconds=0.005)], range(20), plan, output=tmp_path / "run")
    found = receiving_of(tmp_path / "run")
    assert found.jobs == found.calls == found.full_calls == 19
    assert found.blocked_seconds >= 16 * 0.005


def test_inline_stages_show_as_inline(run: Run, tmp_path: Path) -> None:
    """What receivers run themselves is told apart from waiting."""
    names = ("slow", "deliver")
    plan = {"source": {"receive_batch": 5}, "stages": {name: {"executor": "inline"} for name in names}}
    run([hr.emulated("slow", seconds=0.005)], range(10), plan, output=tmp_path / "run")
    found = receiving_of(tmp_path / "run")
    assert found.inline_seconds >= 10 * 0.005


class Interrupting(hr.Observer):
    """Asks for the end once some jobs are done."""

    def __init__(self) -> None:
        self.settled = 0

    def job_settled(self, job: Job, outcome: Any) -> None:
        """Interrupt the run at the twentieth job."""
        import os
        import signal

        self.settled += 1
        if self.settled == 20:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_has_it_too(tmp_path: Path) -> None:
    """A run that is stopped writes what its receivers did until then."""
    source: Sequence[Any] = range(100_000)
    pipeline = hr.Pipeline(ListSource(source, endless=True), stages=[hr.emulated("a", seconds=0.001)])
    result = execute(pipeline, output=tmp_path / "run", observers=[Interrupting()])
    assert result.interrupted
    assert receiving_of(tmp_path / "run").jobs > 0
