"""Pictures and answers of a run: counted once, kept within bounds, never in the way."""

from __future__ import annotations

import os
import pickle
import stat
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.current_job import hands
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.monitor.review import catching
from headrace.monitor.review.catching import Places, ReviewCatcher, ReviewSettings
from headrace.monitor.review.hour_sample import Limits
from headrace.monitor.review.pictures import PictureSettings
from headrace.monitor.review.reading import ResultReader
from headrace.monitor.review.store import open_folder, read_samples
from headrace.runs.formats.review import ReviewSample

_IMAGE = np.zeros((40, 60, 3), np.uint8)


@dataclass
class _Item:
    job: Job
    placement: Any = None


class _Clock:
    def __init__(self) -> None:
        self.now = time.time() // 3600 * 3600.0

    def __call__(self) -> float:
        return self.now


def _run(
    folder: Path,
    answer: Callable[[Any], Any],
    jobs: list[Any],
    *,
    places: Places | None = None,
    delivery: Any = None,
    plan: hr.Plan | None = None,
    **settings: Any,
) -> list[ReviewSample]:
    """Run jobs through a stage that makes pictures and one that answers, and return what was kept."""
    open_folder(folder)
    stages = [hr.stage("picture", lambda value: _IMAGE + np.uint8(len(str(value)))), hr.stage("answer", answer)]
    found = places or Places(pictures=frozenset({"picture"}), answers={"answer": ResultReader()})
    catcher = ReviewCatcher(
        ReviewSettings(**{"folder": folder, "max_bytes": 1 << 30, "max_days": 30, **settings}), found, _Clock()
    )
    hr.run(
        hr.Pipeline(hr.items(jobs), stages=stages, delivery=delivery or hr.collect()),
        plan,
        observers=[catcher], instruments=[catcher], watch=catcher.watch,
    )  # fmt: skip
    samples, problems = read_samples(folder)
    assert problems == []
    return samples


def test_every_delivered_answer_counts_once(tmp_path: Path) -> None:
    """Those that failed are none; of the others some are kept, each with its picture, for the owner alone."""

    def answer(image: Any) -> Any:
        if image[0, 0, 0] == 3:
            raise hr.ItemRejected("own.no: no")
        return {"label": "long" if image[0, 0, 0] > 1 else "short", "score": 0.5}

    limits = Limits(per_cell=3, least_certain=0)
    (sample,) = _run(tmp_path / "kept", answer, [*range(20), 100, 200], limits=limits)
    assert {one.name: one.num_answers for one in sample.cells} == {"short": 10, "long": 10}
    assert Counter(item.name for item in sample.items) == {"short": 3, "long": 3}
    assert (sample.num_missed, sample.num_unwritten) == (0, 0)
    kept = tmp_path / "kept" / "samples" / sample.id
    files = {item.file for item in sample.items}
    assert {one.name for one in kept.iterdir()} == {*files, "sample.json", "open"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {stat.S_IMODE((kept / name).stat().st_mode) for name in (*files, "sample.json")} == {0o600}
    (first, *_) = sample.items
    assert first.answer == {"label": first.name, "score": 0.5}
    assert first.plan_id


def test_no_secret_of_an_address_is_kept(tmp_path: Path) -> None:
    """User, password, query and fragment go."""
    job = "https://user:geheim@example.com/a.jpg?X-Amz-Signature=geheim#geheim"
    (sample,) = _run(tmp_path / "kept", lambda image: "cat", [job])
    assert sample.items[0].source == "https://example.com/a.jpg"
    assert b"geheim" not in b"".join(file.read_bytes() for file in (tmp_path / "kept").rglob("*") if file.is_file())


def test_a_share_of_the_jobs_is_looked_at(tmp_path: Path) -> None:
    """Of 400 about a quarter."""
    (sample,) = _run(tmp_path / "kept", lambda image: "cat", list(range(400)), share=0.25)
    assert 60 <= sample.cells[0].num_answers <= 145
    assert sample.share == 0.25


def test_what_does_not_fit_is_missed_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for copies nothing is kept, every answer is missed, and all are delivered."""
    monkeypatch.setattr(catching, "_MOST_WAITING_BYTES", 100)
    assert _run(tmp_path / "kept", lambda image: "cat", [1, 2, 3]) == []


def test_a_full_disk_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The jobs go on, and it is said once."""
    folder = open_folder(tmp_path / "kept")
    (folder / "samples").rmdir()
    (folder / "samples").write_text("no folder")
    collected = hr.collect()
    catcher = ReviewCatcher(
        ReviewSettings(folder=folder, max_bytes=1 << 30, max_days=30),
        Places(pictures=frozenset(), answers={"answer": ResultReader()}, without_picture=frozenset({"answer"})),
    )
    stages = [hr.stage("answer", lambda value: "cat")]
    hr.run(
        hr.Pipeline(hr.items(list(range(50))), stages=stages, delivery=collected),
        observers=[catcher], instruments=[catcher], watch=catcher.watch,
    )  # fmt: skip
    assert len(collected.results) == 50
    assert sum("cannot be written" in one.message for one in caplog.records) == 1


def test_a_result_that_raises_is_counted_without_a_class(tmp_path: Path) -> None:
    """Whatever a result does when it is looked at."""

    class Hostile(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise SystemError("no")

    (sample,) = _run(tmp_path / "kept", lambda image: Hostile(a=1), [1, 2])
    assert [(one.name, one.num_answers) for one in sample.cells] == [("", 2)]


def test_a_copy_in_a_child_process_copies_what_is_looked_at(tmp_path: Path) -> None:
    """By an item's place in the request; nothing of items that are not looked at, nor of trials of the warm-up."""
    catcher = ReviewCatcher(
        ReviewSettings(folder=tmp_path, max_bytes=1, max_days=1), Places(pictures=frozenset({"a"}), answers={})
    )
    sent = pickle.loads(pickle.dumps(catcher))
    call = sent.wrap("a", "cpu", str)
    items = [_Item(Job("", number)) for number in range(3)]
    sent.begin(items, [False, True, False])
    for item in [*items, _Item(Job("", 9))]:
        hands.items = (item,)
        call(item.job.payload)
    hands.items = ()
    assert sent.report() == [[1, "1"]]
    assert sent.wrap("b", "cpu", len) is len


def test_hours_are_kept_apart(tmp_path: Path) -> None:
    """Each has counts of its own."""
    clock = _Clock()
    folder = open_folder(tmp_path / "kept")
    catcher = ReviewCatcher(
        ReviewSettings(folder=folder, max_bytes=1 << 30, max_days=30),
        Places(pictures=frozenset(), answers={"answer": ResultReader()}, without_picture=frozenset({"answer"})),
        clock,
    )
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    with catcher.watch(None):
        pass  # its thread would look at the hour by itself
    for number in range(9):
        job = Job(str(number), number)
        hands.items = (_Item(job),)
        answer(number)
        catcher.job_settled(job, DELIVERED)
        catcher.keep_up()
        clock.now += 1200
    hands.items = ()
    catcher.keep_up()
    clock.now += 3600
    catcher.keep_up()
    samples, _ = read_samples(folder)
    assert [sum(one.num_answers for one in sample.cells) for sample in samples] == [3, 3, 3]
    assert len({sample.id[:12] for sample in samples}) == 3


@pytest.mark.parametrize(
    ("value", "settings", "suffix"),
    [
        (_IMAGE, PictureSettings(), ".jpg"),
        (np.zeros((2000, 30, 3), np.uint8), PictureSettings(pixels=100, blur=True), ".jpg"),
        ("text", PictureSettings(), ".txt"),
        (b"\xff\xd8\xff\xe0", PictureSettings(original=True), ".jpg"),
        (b"<svg onload=x>", PictureSettings(original=True), ".bin"),
        (np.zeros((3, 4), np.float32), PictureSettings(), ""),
        (np.zeros((0, 4, 3), np.uint8), PictureSettings(), ""),
    ],
)
def test_what_is_kept_of_a_value(value: Any, settings: PictureSettings, suffix: str) -> None:
    """Pictures within the size, text, originals by their kind; arrays that are no pictures are not kept."""
    import cv2

    content, found = catching.encode(catching.copy_value(value, settings), settings)
    assert found == suffix
    if suffix == ".jpg" and isinstance(value, np.ndarray):
        decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        assert decoded is not None
        assert max(decoded.shape) <= settings.pixels


def test_the_owner_may_not_write(tmp_path: Path) -> None:
    """A folder that cannot be made is refused before the run begins."""
    from headrace.base.errors import RunFolderError

    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        open_folder(tmp_path / "file" / "kept")
    assert os.listdir(tmp_path) == ["file"]


def _settle(catcher: ReviewCatcher, job: Job, answer: Callable[[Any], Any]) -> None:
    hands.items = (_Item(job),)
    answer(1)
    hands.items = ()
    catcher.job_settled(job, DELIVERED)


def test_what_a_twin_answers_otherwise_is_kept(tmp_path: Path) -> None:
    """The answer waits for the twin, which comes after the job has ended; one that never comes is not waited for long."""
    clock, folder = _Clock(), open_folder(tmp_path / "kept")
    limits = Limits(per_cell=1, least_certain=0, disagreement=5)
    catcher = ReviewCatcher(
        ReviewSettings(folder=folder, max_bytes=1 << 30, max_days=30, limits=limits),
        Places(pictures=frozenset(), answers={"answer": ResultReader()}, without_picture=frozenset({"answer"})),
        clock,
    )
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    jobs = [Job(str(number), 1) for number in range(40)]
    for number, job in enumerate(jobs):
        job.twin = [] if number < 6 else None
        _settle(catcher, job, answer)
    catcher.keep_up()
    for number, job in enumerate(jobs[:5]):
        job.twin = [0.0 if number < 2 else 0.5 + number / 10]
    catcher.keep_up()
    clock.now += 60
    catcher.keep_up()
    clock.now += 3600
    catcher.keep_up()
    (sample,) = read_samples(folder)[0]
    assert sum(one.num_answers for one in sample.cells) == 40
    assert sorted((item.job, item.disagreement) for item in sample.items if "disagreement" in item.why) == [
        ("2", 0.7), ("3", 0.8), ("4", 0.9),
    ]  # fmt: skip


def test_memory_is_given_back(tmp_path: Path) -> None:
    """After jobs that were delivered, failed, tried twice or not kept, nothing is counted as held."""
    places = Places(pictures=frozenset({"picture"}), answers={"answer": ResultReader()})
    catcher = ReviewCatcher(
        ReviewSettings(folder=open_folder(tmp_path), max_bytes=1 << 30, max_days=30, limits=Limits(per_cell=2)), places
    )
    picture = catcher.wrap("picture", "cpu", lambda value: _IMAGE)
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    for number in range(50):
        job = Job(str(number), 1)
        hands.items = (_Item(job),)
        picture(1)
        if number % 5 == 0:
            picture(1)
        if number % 3:
            answer(1)
        hands.items = ()
        catcher.job_settled(job, DELIVERED if number % 4 else Outcome(OutcomeKind.RETRY))
    catcher.keep_up()
    assert (catcher._num_bytes, len(catcher._waiting)) == (0, 0)
    catcher._end_hour()


def test_a_service_that_tries_itself_is_no_production(tmp_path: Path) -> None:
    """Its probes are in no count."""

    class Probe(Job):
        work = Namespace(is_own=True)

    catcher = ReviewCatcher(
        ReviewSettings(folder=open_folder(tmp_path), max_bytes=1, max_days=1),
        Places(pictures=frozenset(), answers={"answer": ResultReader()}, without_picture=frozenset({"answer"})),
    )
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    _settle(catcher, Probe("probe", 1), answer)
    assert len(catcher._queue) == 0
    _settle(catcher, Job("job", 1), answer)
    assert len(catcher._queue) == 1


@pytest.mark.parametrize("bad", ["\ud800", {"label": "\ud800"}, {"label": "cat", "note": "\ud800"}, ["\udfff", 0.5]])
def test_an_answer_that_no_document_holds_ends_no_sample(tmp_path: Path, bad: Any) -> None:
    """Half a character, as a cut text has it, is kept as an escape; the rest is kept as ever."""
    turn = iter(range(60))
    (sample,) = _run(tmp_path / "kept", lambda image: bad if next(turn) == 5 else "cat", list(range(60)))
    assert sum(one.num_answers for one in sample.cells) == 60
    assert sample.num_missed == 0


def test_ids_that_no_document_holds_end_no_sample(tmp_path: Path) -> None:
    """They come from senders, as tasks do."""
    catcher = _catcher(tmp_path / "kept")
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    for number in range(3):
        _settle(catcher, Job(f"\ud800{number}", "\ud800", task="\ud800"), answer)
    (sample,) = _kept(catcher, tmp_path / "kept")
    assert sum(one.num_answers for one in sample.cells) == 3
    assert sample.items[0].job.startswith("\\ud800")


def test_one_that_cannot_be_kept_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: it is missed, and what waits behind it is kept."""
    turn = iter(range(3))

    def encode(*_: Any) -> tuple[bytes, str]:
        if next(turn) == 0:
            raise ValueError("no such picture")
        return b"", ""

    monkeypatch.setattr(catching, "encode", encode)
    catcher = _catcher(tmp_path / "kept")
    answer = catcher.wrap("answer", "cpu", lambda value: "cat")
    for number in range(3):
        _settle(catcher, Job(f"job-{number}", b""), answer)
    (sample,) = _kept(catcher, tmp_path / "kept")
    assert (sum(one.num_answers for one in sample.cells), sample.num_missed) == (2, 1)


def _catcher(folder: Path) -> ReviewCatcher:
    settings = ReviewSettings(folder=open_folder(folder), max_bytes=1 << 30, max_days=30)
    return ReviewCatcher(
        settings,
        Places(pictures=frozenset(), answers={"answer": ResultReader()}, without_picture=frozenset({"answer"})),
        _Clock(),
    )


def _kept(catcher: ReviewCatcher, folder: Path) -> list[ReviewSample]:
    with catcher.watch(None):
        pass
    samples, problems = read_samples(folder)
    assert problems == []
    return samples
