"""Which arm a job falls to where an attribute is drawn instead of its id."""

from __future__ import annotations

import pytest

from headrace.base.policies.arms import EPOCH_SECONDS
from headrace.base.records import Job
from headrace.pipeline.arms import Arms


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; change it."""
    found = [10 * EPOCH_SECONDS]
    monkeypatch.setattr("headrace.pipeline.arms.time.time", lambda: found[0])
    return found


def begin() -> Arms:
    """Half of the cameras are the canary's."""
    found = Arms("stable")
    found.begin("salt", "canary", 0.5, key="camera")
    return found


def is_canary(found: Arms, job_id: str, camera: str | None, attempt: int = 1) -> bool:
    """Draw a job."""
    job = Job(job_id, b"", attributes={} if camera is None else {"camera": camera})
    job.attempt = attempt
    arm = found.draw(job)
    assert arm is not None
    return arm.is_canary


def test_a_camera_sees_one_model(now: list[float]) -> None:
    """All of its jobs fall to one arm for five minutes; over many epochs it is in both."""
    found = begin()
    seen = set()
    for epoch in range(40):
        now[0] = (10 + epoch) * EPOCH_SECONDS
        drawn = {is_canary(found, f"{epoch}-{number}", "north") for number in range(20)}
        assert len(drawn) == 1
        seen |= drawn
    assert seen == {True, False}
    cameras = {camera: is_canary(found, f"of {camera}", str(camera)) for camera in range(400)}
    assert 140 < sum(cameras.values()) < 260


def test_a_job_that_comes_again_stays_in_its_arm(now: list[float]) -> None:
    """Also when the next epoch has begun."""
    found = begin()
    first = [is_canary(found, str(number), f"camera {number}") for number in range(50)]
    now[0] += EPOCH_SECONDS
    assert [is_canary(found, str(number), f"camera {number}", attempt=2) for number in range(50)] == first


def test_a_job_without_the_attribute_is_drawn_alone(now: list[float]) -> None:
    """Jobs that name no camera are not one camera."""
    found = begin()
    assert {is_canary(found, str(number), None) for number in range(50)} == {True, False}
