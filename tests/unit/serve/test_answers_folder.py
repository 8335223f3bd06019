"""Answers that several processes keep together: who asks any of them later is told, also when the first is gone."""

import os
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from headrace.serve import answers_folder
from headrace.serve.answers_folder import AnswersFolder
from headrace.serve.door import Ended

DONE = Ended("a", b"[1,2]", plan_id="plan-1")
STOPPED = Ended("a", code="serve.stopping", reason="try again", status=503)


def in_another_process(work: Callable[[], object]) -> None:
    """Do something in a process that has ended afterwards."""
    process = get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    assert process.exitcode == 0


def test_any_process_knows_how_it_stands(tmp_path: Path) -> None:
    """While it is worked on, and afterwards."""
    here = AnswersFolder(tmp_path, "0-1")
    assert here.open("a", "what it carries").is_new

    def ask() -> None:
        there = AnswersFolder(tmp_path, "1-1")
        again, other = there.open("a", "what it carries"), there.open("a", "something else")
        assert (again.is_new, again.is_another, again.ended) == (False, False, None)
        assert (other.is_new, other.is_another) == (False, True)
        working = there.find("a")
        assert (working.ended, working.is_lost) == (None, False)
        here.close("a", DONE)
        assert there.find("a").ended == DONE
        assert there.find("b") is None

    in_another_process(ask)
    assert here.find("a").ended == DONE


def test_the_job_of_a_process_that_is_gone_is_lost_and_may_come_again(tmp_path: Path) -> None:
    """Nobody says for ever that it is worked on."""
    in_another_process(lambda: AnswersFolder(tmp_path, "0-1").open("a", "content"))
    here = AnswersFolder(tmp_path, "0-2")
    assert here.find("a").is_lost
    assert here.open("a", "content").is_new
    assert not here.find("a").is_lost


def test_an_answer_outlives_its_process_and_its_successor_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rolling restart has it."""

    def work() -> None:
        before = AnswersFolder(tmp_path, "0-1")
        for job in ("a", "b"):
            before.open(job)
            before.close(job, Ended(job, b"1"))

    in_another_process(work)
    monkeypatch.setattr(answers_folder, "MOST_ANSWERS", 2)
    here = AnswersFolder(tmp_path, "0-2")
    assert here.find("a").ended.result == b"1"
    here.open("c")
    here.close("c", Ended("c", b"2"))
    kept = [job for job in "abc" if here.find(job) is not None]
    assert len(kept) == 2
    assert "c" in kept


def test_of_many_tries_at_once_one_becomes_a_job(tmp_path: Path) -> None:
    """And no file is left half written."""
    here, new = AnswersFolder(tmp_path, "0-1"), []

    def open_all() -> None:
        new.extend(number for number in range(50) if here.open(f"job-{number}").is_new)

    threads = [threading.Thread(target=open_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new) == list(range(50))
    assert len(list(tmp_path.iterdir())) == 51, "one for each job, and the lock"


def test_what_was_not_done_may_be_tried_again(tmp_path: Path) -> None:
    """Under the same id: its client was told to."""
    here = AnswersFolder(tmp_path, "0-1")
    here.open("a", "content")
    here.close("a", STOPPED)
    assert here.find("a").ended == STOPPED
    assert here.open("a", "content").is_new


def test_old_answers_and_damaged_files_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the place of no job."""
    monkeypatch.setattr(answers_folder, "KEPT_SECONDS", 0.0)
    here = AnswersFolder(tmp_path, "0-1")
    here.open("a")
    here.close("a", DONE)
    assert here.find("a") is None
    assert here.open("a").is_new
    for file in tmp_path.iterdir():
        if not file.suffix:
            file.write_bytes(b"\xc1")
    assert here.find("a") is None
    assert here.open("a").is_new


def test_an_answer_that_cannot_be_written_is_not_said_to_be_worked_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and the run goes on."""
    here = AnswersFolder(tmp_path, "0-1")
    here.open("a")

    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", fail)
    here.close("a", DONE)
    assert here.find("a") is None
    assert "the answer to job a cannot be kept: [Errno 28]" in caplog.text


def test_old_answers_that_cannot_be_removed_cost_no_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder that became read-only: who waits for an answer gets it, and a job that was not let in is refused."""
    here = AnswersFolder(tmp_path, "0-1")
    monkeypatch.setattr("headrace.serve.answers_folder.MOST_ANSWERS", 1)
    for name in ("a", "b", "c"):
        here.open(name)

    def fail(*_: object, **__: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "unlink", fail)
    here.close("a", DONE)
    here.close("b", DONE)
    here.drop("c")
    assert here.find("b").ended == DONE
