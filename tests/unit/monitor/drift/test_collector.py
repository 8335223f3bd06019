"""What a process counts of its items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import DecodeRejected
from headrace.base.records import Job
from headrace.monitor.drift.collector import MOST_STEP, Collector
from headrace.monitor.drift.sums import MOST_STRATA, merge_windows
from headrace.runs.formats.drift import DriftWindow
from headrace.samples.generator import crops


def _all(collector: Collector) -> DriftWindow:
    window = merge_windows(collector.take(rest=True))
    assert window is not None
    return window


def _job(number: int, **more: Any) -> Job:
    return Job(f"job-{number}", b"", attributes={"camera": number % 3}, **more)


def test_files_are_counted_by_camera_with_their_verdicts() -> None:
    """Sizes of what was decoded, and the code of what was not."""
    collector = Collector("camera")
    collector.step = 1
    files = [crop.data for crop in crops(6, 1)]
    for number, data in enumerate(files):
        collector.enter(_job(number), data, "decode", np.zeros((4, 4, 3), np.uint8), None, 1000)
    collector.enter(_job(6), b"torn", "decode", None, DecodeRejected("decode.corrupt: it is torn"), 0)
    window = _all(collector)
    assert window.items == 7
    assert window.strata["0"].counts["items"] == 3
    assert window.strata["0"].counts["refused"] == window.strata["0"].counts["decode.corrupt"] == 1
    assert window.strata["1"].means["bytes"].n == 2
    expected = sum(np.log10(len(data)) for data in files[1::3])
    assert window.strata["1"].means["bytes"].total == pytest.approx(expected)


def test_the_last_answer_is_not_lost_with_a_part_that_is_full() -> None:
    """The item that fills a part is answered after it: the rest has no item, and this answer."""
    collector = Collector(window_items=8)
    collector.step = 1
    collector.enter(_job(1), "text", "decode", "text", None, 0)
    collector.answer(_job(1), "cat")
    counts = _all(collector).strata[""].counts
    assert (counts["items"], counts["answers"]) == (1, 1)
    assert collector.take(rest=True) == []


def test_a_second_delivery_is_not_counted_again() -> None:
    """A job that is retried is one item."""
    collector = Collector()
    collector.enter(_job(1), "text", "decode", "text", None, 0)
    collector.enter(_job(1, attempt=2), "text", "decode", "text", None, 0)
    assert _all(collector).items == 1


def test_the_sample_depends_on_the_id_alone() -> None:
    """Not on the order: cameras that take turns are all sampled. One in `step`, about."""
    collector = Collector("camera")
    collector.step = 4
    chosen = [number for number in range(3000) if collector.looks_at(_job(number))]
    assert 650 < len(chosen) < 850
    by_camera = np.bincount([number % 3 for number in chosen])
    assert by_camera.min() > 200


def test_looking_costs_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer items where looking takes long, and more where there is time."""
    collector = Collector()
    ticks = iter(range(0, 10**15, 10**9))
    monkeypatch.setattr("headrace.monitor.drift.collector.time.thread_time_ns", lambda: next(ticks))
    for _ in range(20):
        collector.enter(_job(1), "text", "decode", "text", None, 0)
        collector.adapt(1.0)
    assert collector.step == MOST_STEP
    for _ in range(20):
        collector.adapt(1.0)
    assert collector.step == 1


def test_a_function_of_the_user_that_raises_loses_no_item(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, and said once."""

    def own(job: Job, result: Any) -> dict[str, float]:
        raise ZeroDivisionError

    collector = Collector(own=own)
    collector.step = 1
    for number in range(3):
        collector.enter(_job(number), "text", "decode", "text", None, 0)
        collector.answer(_job(number), "cat")
    window = _all(collector)
    assert (window.items, window.lost) == (3, 3)
    assert len([record for record in caplog.records if "could not be measured" in record.message]) == 1


def test_values_of_the_user_are_means() -> None:
    """Under names of their own, of items that are looked at; NaN is left out."""
    collector = Collector(own=lambda job, result: {"first": 2.0, "broken": float("nan")})
    collector.step = 1
    collector.enter(_job(1), "text", "decode", "text", None, 0)
    collector.answer(_job(1), "cat")
    means = _all(collector).strata[""].means
    assert means["own.first"].total == 2.0
    assert "own.broken" not in means


def test_strata_are_bounded() -> None:
    """A key that is different for each item, such as a user's id, fills no memory."""
    collector = Collector("user")
    for number in range(3 * MOST_STRATA):
        job = Job(str(number), b"", attributes={"user": str(number)})
        collector.enter(job, "text", "decode", "text", None, 0)
    window = _all(collector)
    assert len(window.strata) == MOST_STRATA + 1
    assert window.strata["other"].counts["items"] == 2 * MOST_STRATA


@pytest.mark.parametrize(
    ("key", "payload", "expected"),
    [("folder", "/photos/gate/1.jpg", "gate"), ("host", "https://user:secret@cdn.example/a.jpg", "cdn.example")],
)
def test_folders_and_hosts_are_keys_too(key: str, payload: str, expected: str) -> None:
    """Without an attribute of that name; passwords stay out."""
    assert Collector(key).stratum_of(Job("1", payload)) == expected


def test_hours_of_the_day_are_strata() -> None:
    """Night is compared with night."""
    collector = Collector("camera", hours=6, now=lambda: 3600.0 * 20.5)
    assert collector.stratum_of(_job(1)) == "1 18-24 h"


def test_text_that_no_document_holds_is_escaped() -> None:
    """Classes, strata and names of values are a user's: half a character in one would end all that is written."""
    collector = Collector("camera", own=lambda job, result: {"\ud800": 1.0})
    collector.step = 1
    for number in range(3):
        job = Job(f"job-{number}", b"", attributes={"camera": "\ud800"})
        collector.enter(job, "text", "decode", None, DecodeRejected("\ud800"), 0)
        collector.answer(job, "\ud800" if number else "cat")
    window = decode_document(encode_document(_all(collector)), DriftWindow)
    assert (window.items, window.lost) == (3, 0)
    assert window.strata["\\ud800"].counts["class.\\ud800"] == 2


def test_values_beyond_all_measure_spoil_no_sum() -> None:
    """The square of one that a float just holds is none: a document has no word for it, and its window was lost."""
    collector = Collector()
    for number, score in enumerate((0.5, 1e300, -1e200, float("inf"))):
        collector.enter(_job(number), "text", "decode", "text", None, 0)
        collector.answer(_job(number), ("cat", score))
    window = decode_document(encode_document(_all(collector)), DriftWindow)
    assert window.strata[""].means["top_score"].n == 1


def test_an_answer_counts_whose_values_of_the_user_raise() -> None:
    """Its class is known all the same."""
    collector = Collector(own=lambda job, result: {"x": 1 / 0})
    collector.step = 1
    collector.answer(_job(1), "cat")
    assert _all(collector).strata[""].counts["class.cat"] == 1
