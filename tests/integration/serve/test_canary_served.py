"""A canary behind HTTP: answers name the Plan that made them, and users may say what they are worth."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.arms import Split
from headrace.base.policies.canary import CanaryPolicy
from headrace.runs.canary_folder import CanaryFolder, Feedback
from headrace.runs.formats.canary import CanaryState
from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH
from tests.integration.serve.service import Service
from tests.integration.serve.test_serve_command import PIPELINE

PHOTOGRAPH = PHOTOGRAPHS[0].path.read_bytes()
#: It stays at half of the jobs: so few of them prove nothing.
STRICT = CanaryPolicy(shares=(0.5, 1.0), max_more_failures=1e-6)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A served pipeline that may have a canary."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    service = Service(tmp_path, "jobs.py:pipeline", "--canary", "canary")
    service.wait_until_ready()
    yield service
    service.process.kill()
    service.process.communicate()


def plan_of(service: Service, job_id: str) -> str:
    """Return which Plan answered a job."""
    request = urllib.request.Request(f"{service.url}/v1/jobs?id={job_id}", PHOTOGRAPH)
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.headers["X-Headrace-Plan"])


def wait_for(folder: CanaryFolder, condition: Callable[[CanaryState], bool]) -> CanaryState:
    """Return the canary's state once it is so."""
    give_up_at = time.monotonic() + 240
    while (state := folder.read()) is None or not condition(state):
        assert time.monotonic() < give_up_at, state
        time.sleep(0.02)
    return state


def count_bad(folder: CanaryFolder, state: CanaryState) -> int:
    """Return how many answers are known to be bad."""
    seen = folder.sum_seen(state.id).feedback.values()
    return round(sum(counts.bad_stable + counts.bad_canary for counts in seen))


@pytest.mark.smoke
def test_answers_come_from_the_arm_of_their_id_and_feedback_counts(service: Service, tmp_path: Path) -> None:
    """Half of the ids are answered by the canary's Plan, after the rollback none; each answer takes one feedback."""
    folder = CanaryFolder(tmp_path / "canary")
    folder.start(Plan(model=ModelPlan(artifact=str(SCENES_MODEL_PATH), threads=1)), STRICT)
    state = wait_for(folder, lambda state: bool(state.plan_id))
    split = Split(salt=state.id, share=0.5)
    ids = [f"job-{number}" for number in range(12)]
    expected = [state.plan_id if split.is_canary(job) else state.stable_plan_id for job in ids]
    assert [plan_of(service, job) for job in ids] == expected

    said = json.dumps({"id": ids[0], "good": False}).encode()
    assert service.ask("/v1/feedback", said)[0] == 202
    assert service.ask("/v1/feedback", said)[1]["code"] == "feedback.unknown_job"
    assert service.ask("/v1/feedback", b"[]")[1]["code"] == "feedback.body"
    folder.pass_on(Feedback(ids[1], good=False))  # as another process does that was told
    state = wait_for(folder, lambda state: count_bad(folder, state) == 2)
    assert any(found.metric == "feedback" for found in state.findings)

    with folder.locked():
        folder.write(state.done("rolled back", time.time(), "a test", "user"))
    service.read_until("rolled back")
    assert {plan_of(service, f"{job}-again") for job in ids} == {state.stable_plan_id}
