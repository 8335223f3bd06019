"""The parts of the benchmark of video that need no camera."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("av")
pytest.importorskip("onnx")

from benchmarks.video.clips import label_of
from benchmarks.video.held import is_held
from benchmarks.video.senders import damage


def test_damage_is_reproducible_and_damages() -> None:
    """The seed alone decides; most of a thousand are other bytes."""
    data = bytes(range(256)) * 20
    assert damage(data, random.Random(3)) == damage(data, random.Random(3))
    assert sum(damage(data, random.Random(seed)) != data for seed in range(1000)) > 950


def test_what_is_held() -> None:
    """All frames came, next to none was dropped, and answers are not too old."""
    good = {"dropped_share": 0.01, "came_share": 0.99, "age_p99": 0.5}
    assert is_held(good)
    for worse in ({"dropped_share": 0.011}, {"came_share": 0.97}, {"age_p99": 0.51}):
        assert not is_held({**good, **worse})


def test_labels() -> None:
    """A photograph is shown for two seconds, and then the next one."""
    assert [label_of(seconds) for seconds in (0.0, 1.9, 2.0, 8.0)] == ["chelsea", "chelsea", "coffee", "chelsea"]
    assert label_of(0.0, first=1) == "coffee"
