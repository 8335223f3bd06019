"""Simulated windows of clustered images against a baseline of 40 of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from benchmarks.watch.clustered import Cameras, World
from headrace.base.errors import SettingsError
from headrace.monitor.drift.judging import Judge, judge
from headrace.monitor.drift.learning import LEAST_WINDOWS, learn
from headrace.report.drift_page import render_drift
from headrace.runs.formats.drift import DriftBaseline, DriftDocument, DriftWindow, StratumSums, Sums

_SMALL = World(cameras=8, images=160)


def _start(world: World = _SMALL, seed: int = 1) -> tuple[Cameras, DriftBaseline]:
    cameras = Cameras(world, np.random.default_rng(seed))
    return cameras, learn(list(cameras.windows(LEAST_WINDOWS)), key="camera", simulate=False)


def _alarms(document: DriftDocument) -> set[tuple[str, str | None, str]]:
    return {(one.statistic, one.stratum, one.direction) for one in document.scores if one.alarm}


@pytest.mark.parametrize(
    "world",
    [
        _SMALL,
        World(cameras=8, images=160, wandering=1.0),
        World(cameras=8, images=160, silent=0.2, bursts=0.1),
        World(cameras=8, images=160, heavy_tails=True),
        World(cameras=8, images=160, together=0.5),
        World(cameras=8, images=160, refused_clustering=0.01),
        World(cameras=1, images=160, correlation=0.05),
    ],
    ids=["clustered", "wandering", "silent and bursting", "heavy tails", "weather", "clustered refusals", "one camera"],
)
def test_no_alarm_while_nothing_moves(world: World) -> None:
    """In a hundred windows, whatever chance does."""
    cameras, baseline = _start(world)
    one = Judge(baseline)
    for window in cameras.windows(100):
        one.add(window)
        assert not one.is_alarm()
    assert one.document().verdict == "steady"


def test_a_shift_of_all_cameras_is_found_and_named() -> None:
    """Its direction, size, and the window in which it began."""
    cameras, baseline = _start()
    windows = [*cameras.windows(20), *cameras.windows(8, shift=0.5, statistics=1)]
    document = judge(baseline, windows)
    assert document.verdict == "drift"
    assert _alarms(document) == {("brightness", None, "up")}
    found = document.scores[0]
    assert found.shift_sd == pytest.approx(0.5, abs=0.25)
    assert found.since is not None
    assert abs(found.since - windows[20].began) <= 120
    assert "brighter" in document.says[0]


def test_a_small_shift_is_found_within_eight_windows() -> None:
    """0.2 standard deviations of images, 20 cameras, windows of 500."""
    cameras, baseline = _start(World())
    assert judge(baseline, cameras.windows(8, shift=0.2)).verdict == "drift"


def test_one_bad_camera_is_found_alone() -> None:
    """The other cameras hide it where all are taken together."""
    cameras, baseline = _start(World())
    alarms = _alarms(judge(baseline, cameras.windows(6, camera_shift=-2.0, statistics=1)))
    assert ("brightness", "camera 0", "down") in alarms
    assert {stratum for _, stratum, _ in alarms} <= {"camera 0", None}


def test_more_files_that_cannot_be_decoded_are_found() -> None:
    """1 % to 3 % of 500 files a window."""
    cameras, baseline = _start(World())
    document = judge(baseline, cameras.windows(6, refused=0.03))
    assert ("refused", None, "up") in _alarms(document)
    assert document.refused_ratio is not None


def _without(windows: Iterable[DriftWindow], camera: str) -> list[DriftWindow]:
    return [
        msgspec.structs.replace(one, strata={name: part for name, part in one.strata.items() if name != camera})
        for one in windows
    ]


def test_a_silent_camera_is_news_and_moves_nothing() -> None:
    """Its absence changes no mean: each camera is compared with itself."""
    cameras, baseline = _start()
    document = judge(baseline, _without(cameras.windows(30), "camera 3"))
    assert document.verdict == "steady"
    assert [(one.stratum, one.what) for one in document.news] == [("camera 3", "silent")]


def test_a_new_camera_is_news_and_no_drift() -> None:
    """However different its images are."""
    cameras, baseline = _start()
    strange = StratumSums(means={"brightness": Sums(50, 5000.0, 500_500.0)}, counts={"items": 50})
    windows = [msgspec.structs.replace(one, strata=one.strata | {"new": strange}) for one in cameras.windows(20)]
    document = judge(baseline, windows)
    assert document.verdict == "steady"
    assert [(one.stratum, one.what, one.items) for one in document.news] == [("new", "new", 1000)]


def test_one_strange_window_is_no_drift() -> None:
    """A broken window of ten standard deviations passes without an alarm."""
    cameras, baseline = _start()
    windows = [*cameras.windows(5), *cameras.windows(1, shift=10.0), *cameras.windows(5)]
    assert judge(baseline, windows[:6]).verdict == "steady"
    assert judge(baseline, windows).verdict == "steady"


def test_drift_that_ends_is_no_drift_any_more() -> None:
    """The evidence goes within some windows."""
    cameras, baseline = _start()
    windows = [*cameras.windows(20, shift=1.0), *cameras.windows(25)]
    assert judge(baseline, windows[:20]).verdict == "drift"
    assert judge(baseline, windows).verdict == "steady"


def test_too_few_windows_make_no_baseline() -> None:
    """The error says how many there are and how many it takes."""
    cameras = Cameras(_SMALL, np.random.default_rng(1))
    with pytest.raises(SettingsError, match="39 windows were recorded; a baseline takes 40"):
        learn(list(cameras.windows(39)))


def test_a_baseline_says_what_it_can_show() -> None:
    """The promise is simulated for this baseline: fewer images show larger shifts alone."""
    promises = [
        learn(list(Cameras(world, np.random.default_rng(2)).windows(40)), key="camera").promise
        for world in (World(cameras=4, images=400), World(cameras=4, images=20))
    ]
    many, few = promises
    assert many.simulated_windows >= 10_000
    assert many.false_alarms <= many.simulated_windows / 5_000
    assert many.smallest_shift_sd is not None
    assert few.smallest_shift_sd is None or few.smallest_shift_sd > many.smallest_shift_sd
    assert f"{many.simulated_windows:,} simulated windows" in many.says


def test_larger_images_explain_a_slower_stage() -> None:
    """One sentence: which images, how much larger, since when, how much longer the stage takes, and by size alone."""
    random = np.random.default_rng(4)

    def windows(number: int, scale: float, start: int) -> Iterable[DriftWindow]:
        for index in range(start, start + number):
            pixels = random.normal(6.0 + np.log10(scale), 0.2, 200)
            seconds = -2.0 + 0.9 * (pixels - 6.0) + random.normal(0, 0.05, 200)
            columns = {"pixels": pixels, "seconds.decode": seconds, "seconds.decode*pixels": pixels * seconds}
            means = {name: Sums(200, float(values.sum()), float((values**2).sum())) for name, values in columns.items()}
            part = StratumSums(means=means, counts={"items": 200, "files": 200})
            yield DriftWindow(began=60.0 * index, ended=60.0 * index + 60, items=200, sampled=200, strata={"": part})

    baseline = learn(list(windows(40, 1.0, 0)), simulate=False)
    document = judge(baseline, windows(6, 2.0, 40))
    (line,) = document.latency
    assert "images have 2x as many pixels" in line
    assert "decode takes 1.9x the CPU time (by their size alone 1.9x)" in line
    assert line in document.says
    (slower,) = document.slower
    assert (slower.stage, slower.statistic, slower.stratum, slower.says) == ("decode", "pixels", None, line)
    assert len(slower.points) == 6
    assert all(abs((point.size or 0) / 2.0 - 1) < 0.2 for point in slower.points)
    assert all(abs((point.seconds or 0) / 1.87 - 1) < 0.2 for point in slower.points)
    page = render_drift(document)
    assert page.index('id="chart-slower-0"') < page.index('id="chart-drift-0"')
    assert page.count("pixels of an image") >= 2
    assert "CPU time of decode" in page


@pytest.mark.filterwarnings("error")
def test_windows_that_are_all_alike_divide_by_no_zero() -> None:
    """As of images of one size: their means are equal to the last digit, while items differ within each window."""
    part = StratumSums(means={"bytes": Sums(10, 50.0, 260.0)}, counts={"items": 10, "files": 10})
    windows = [
        DriftWindow(began=float(at), ended=at + 1.0, items=10, sampled=10, strata={"": part})
        for at in range(LEAST_WINDOWS)
    ]
    assert learn(windows, simulate=False).means["bytes"].memory == 1.0


def test_a_page_calls_nothing_steady_that_was_not_judged() -> None:
    """As just after `learn`."""
    _, baseline = _start()
    page = render_drift(judge(baseline, []))
    assert "Nothing was judged yet" in page
    assert "Nothing has drifted" not in page
