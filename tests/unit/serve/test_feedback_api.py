"""`POST /v1/feedback`, where several processes answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.records import DELIVERED, Job
from headrace.pipeline.arms import Arm, Arms
from headrace.runs.canary_folder import CanaryFolder, Feedback
from headrace.serve.feedback_api import FeedbackApi
from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes
from tests.unit.serve.asking import Asker
from tests.unit.serve.test_jobs_api import body_of


class Answered:
    """A job that a model has answered."""

    has_run = True

    def __init__(self, job: Job, arm: Arm | None) -> None:
        self.job, self.arm = job, arm


class Worker:
    """One of the processes that share a canary."""

    def __init__(self, folder: Path, *, is_shared: bool = True) -> None:
        self.arms, self.folder = Arms("plan-stable"), CanaryFolder(folder)
        self.arms.begin("salt", "plan-canary", 0.5)
        self.routes = Routes()
        FeedbackApi(lambda: self.arms, lambda: self.folder if is_shared else None).add_to(self.routes)

    def answer(self, job_id: str) -> None:
        """Answer a job."""
        job = Job(job_id, b"x")
        self.arms.note_end(Answered(job, self.arms.draw(job)), DELIVERED)

    def say(self, job_id: str) -> Answer:
        """Say that an answer was bad."""
        body = b'{"id": "%s", "good": false}' % job_id.encode()
        answer = self.routes.answer(Asker().request("POST", "/v1/feedback", body))
        assert answer is not None
        return answer

    def count(self) -> int:
        """Hear what was passed on; return how many bad answers are known."""
        for said in self.folder.hear():
            self.arms.note_feedback(said.id, bad=not said.good)
        seen = self.arms.watch.seen().feedback.values()
        return round(sum(counts.bad_stable + counts.bad_canary for counts in seen))


def test_any_process_takes_it_and_who_answered_counts_it_once(tmp_path: Path) -> None:
    """However often it is said, and to whom."""
    one, other = Worker(tmp_path), Worker(tmp_path)
    other.answer("a")
    for worker in (one, one, other, other):
        answer = worker.say("a")
        assert answer.status == 202
    one.say("nobody has answered this")
    assert (one.count(), other.count()) == (0, 1)
    other.answer("b")
    assert body_of(one.say("b"))["state"] == "passed on"
    assert (one.count(), other.count()) == (0, 2)


def test_a_process_alone_knows_all_that_was_answered(tmp_path: Path) -> None:
    """What it does not know is nobody's."""
    worker = Worker(tmp_path, is_shared=False)
    worker.answer("a")
    assert body_of(worker.say("a"))["state"] == "counted"
    assert (worker.say("a").status, body_of(worker.say("a"))["code"]) == (404, "feedback.unknown_job")


def test_without_a_canary_nothing_is_passed_on(tmp_path: Path) -> None:
    """There is nothing that it could count for."""
    worker = Worker(tmp_path)
    worker.arms.end()
    assert worker.say("a").status == 404
    assert worker.folder.hear() == []


def test_who_sends_too_much_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file cannot fill the disk, and a new canary begins with none."""
    monkeypatch.setattr("headrace.runs.canary_folder._MOST_FEEDBACK_BYTES", 10)
    worker = Worker(tmp_path)
    assert [worker.say("a").status for _ in range(2)] == [202, 503]
    worker.folder.forget_seen()
    assert worker.say("b").status == 202
    assert worker.folder.hear() == [Feedback("b", False)]


def test_a_line_is_heard_once_it_is_whole(tmp_path: Path) -> None:
    """And what is none is passed over."""
    folder = CanaryFolder(tmp_path)
    file = tmp_path / "feedback.jsonl"
    file.write_bytes(b'no json\n{"id": "a", "go')
    assert folder.hear() == []
    with file.open("ab") as more:
        more.write(b'od": true}\n')
    assert folder.hear() == [Feedback("a", True)]
    assert folder.hear() == []


def test_the_next_canary_is_heard_from_its_first_word(tmp_path: Path) -> None:
    """Whether its file is shorter or longer than the last one's, of which it may get the number in the file system."""
    worker, other = CanaryFolder(tmp_path), CanaryFolder(tmp_path)
    for num_said in (5, 5, 8, 3):
        said = [Feedback(f"job-{number}", True) for number in range(num_said)]
        for one in said:
            other.pass_on(one)
        assert worker.hear() == said
        other.forget_seen()
