"""What a stage does, by what is known of it."""

from __future__ import annotations

import pytest

from headrace.diagnose.verdict.work import find_work
from headrace.runs.run_folder import StageInfo


def info(name: str, kind: str = "cpu", role: str = "map", work: str = "") -> StageInfo:
    """Return a stage of one worker."""
    return StageInfo(
        name=name, kind=kind, role=role, releases_gil=True, executor="thread", station=name, workers=1, queue_capacity=16,
        work=work,
    )  # fmt: skip


def test_what_a_stage_says_counts() -> None:
    """Headrace's own stages say what they do, whatever they are called."""
    found = find_work([info("a", "io", work="download"), info("b", work="resize"), info("c", "device", work="model")])
    assert found == {"a": "download", "b": "preprocess", "c": "model"}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("get", "io", "download"),
        ("jpeg_decode", "cpu", "decode"),
        ("scale", "cpu", "preprocess"),
        ("faces.load", "io", "download"),
    ],
)
def test_a_user_s_stage_before_the_model(name: str, kind: str, expected: str) -> None:
    """By its name, else by its kind: what waits downloads, what computes prepares."""
    assert find_work([info(name, kind), info("process", "device")])[name] == expected


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [("boxes", "cpu", "postprocess"), ("tell", "io", "callback"), ("resize", "cpu", "postprocess")],
)
def test_a_user_s_stage_after_the_model(name: str, kind: str, expected: str) -> None:
    """Behind the model what computes is postprocessing, and what waits tells somebody."""
    assert find_work([info("process", "device"), info(name, kind)])[name] == expected


def test_without_a_model_a_stage_computes() -> None:
    """Where there is no model nothing comes before or after it."""
    assert find_work([info("crunch"), info("out", "io", "deliver")]) == {"crunch": "compute", "out": "deliver"}
