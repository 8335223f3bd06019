"""The page of a drift monitor."""

from __future__ import annotations

import numpy as np

from benchmarks.watch.clustered import Cameras, World
from headrace.monitor.drift.judging import judge, recording
from headrace.monitor.drift.learning import learn
from headrace.report.drift_page import render_drift


def test_a_drift_is_told_with_charts_and_tables() -> None:
    """What moved stands on top; the table has every statistic; the chart has a point for each window."""
    cameras = Cameras(World(cameras=4, images=80), np.random.default_rng(3))
    baseline = learn(list(cameras.windows(40)), key="camera", simulate=False)
    document = judge(baseline, [*cameras.windows(6), *cameras.windows(6, shift=1.5, statistics=1)], "<b>watch</b>")
    page = render_drift(document)
    assert "Something has drifted" in page
    assert "Images are brighter" in page
    assert "<b>watch</b>" not in page.replace("<b>&lt;b&gt;", "")
    assert 'id="chart-drift-0"' in page
    assert "https://" not in page.split("<script")[0]
    assert len(document.series["brightness"]) == 12


def test_while_recording_it_says_how_much_is_missing() -> None:
    """A page without charts."""
    assert "Recording; there is no baseline yet" in render_drift(recording([], "watch"))
    assert "a baseline takes 40 more" in render_drift(recording([], "watch"))
