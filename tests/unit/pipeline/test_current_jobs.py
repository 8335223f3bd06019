"""Code of users that asks for the job it works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError

Run = Callable[..., Any]


class Asks(hr.Module):
    """Adds the ids of its jobs in each step."""

    input = hr.BytesInput()

    def preprocess(self, value: bytes) -> str:
        """One job."""
        [job] = hr.current_jobs()
        return f"{job.id}:"

    def process(self, batch: Any) -> list[str]:
        """As many as inputs."""
        return [f"{value}{job.id}:" for value, job in zip(batch, hr.current_jobs(), strict=True)]

    def postprocess(self, result: str) -> str:
        """One again."""
        [job] = hr.current_jobs()
        return f"{result}{job.id}"


@pytest.mark.parametrize(
    "stages",
    [{}, {"process": {"batch": 4}}, {"postprocess": {"executor": "inline"}, "process": {"workers": 2}}],
    ids=str,
)
def test_each_step_sees_its_own_jobs(run: Run, stages: dict[str, Any]) -> None:
    """Whichever worker runs it, and in whatever batch."""
    ran = run(Asks().stages(), [b"x"] * 20, {"stages": stages})
    assert all(result == f"{name}:{name}:{name}" for name, result in ran.results.items())
    assert len(ran.results) == 20


def test_a_batch_that_is_split_sees_the_jobs_of_its_part(run: Run) -> None:
    """The others of a batch with a culprit are asked again, in parts."""

    def process(batch: Any) -> list[str]:
        jobs = hr.current_jobs()
        assert len(jobs) == len(batch)
        if b"bad" in batch:
            raise ValueError("bad")
        return [job.id for job in jobs]

    stages = [hr.stage("process", process, kind="device")]
    ran = run(stages, [b"bad", *[b"x"] * 7], {"stages": {"process": {"batch": 8}}})
    assert all(name == result for name, result in ran.results.items())
    assert len(ran.results) == 7


def test_outside_of_a_worker_there_is_none() -> None:
    """The error says where it may be called."""
    with pytest.raises(SettingsError, match="within preprocess, process, postprocess"):
        hr.current_jobs()
