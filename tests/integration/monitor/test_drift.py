"""`--drift` and `headrace monitor drift` on real photographs: darkened, blurred, enlarged, torn, of a new camera."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from headrace.cli import main
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.folder import DriftFolder
from headrace.monitor.drift.learning import learn
from headrace.monitor.drift.recorded import read_windows
from headrace.monitor.drift.watching import DriftWatcher, current_scores
from headrace.monitor.published import forget_published, published
from headrace.runs.formats.drift import BASELINE_SCHEMA, DRIFT_SCHEMA
from headrace.samples.generator import crops
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from headrace.stages.decode import decode

APP = """
import headrace as hr

class Light(hr.Module):
    input = hr.ImageInput(short_side=64, crop=56)
    def preprocess(self, image):
        return image
    def process(self, batch):
        return ["light" if image.mean() > 110 else "dark" for image in batch]

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility=60, drain=True), module=Light(), delivery=hr.jsonl("out.jsonl")
)
"""
_CAMERAS = ("gate", "hall")


@pytest.fixture(scope="module")
def photographs() -> list[np.ndarray]:
    """Crops of the photographs, small."""
    return [decode(crop.data, short_side=96) for crop in crops(440, 11)]


def _write(folder: Path, images: list[np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Save images of two cameras."""
    for number, image in enumerate(images):
        place = folder / _CAMERAS[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place / f"{number:04d}.jpg"), cv2.cvtColor(change(image), cv2.COLOR_RGB2BGR))
    return folder


@pytest.fixture(scope="module")
def usual(photographs: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images as they should be."""
    return _write(tmp_path_factory.mktemp("usual"), photographs, lambda image: image)


def _compare(usual: Path, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    main(["-q", "monitor", "drift", "compare", str(usual), str(folder), "--json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _alarms(document: dict[str, Any]) -> dict[str, str]:
    return {one["statistic"]: one["direction"] for one in document["scores"] if one["alarm"] and one["stratum"] is None}


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda image: (image * 0.5).astype(np.uint8), {"brightness": "down"}),
        (lambda image: cv2.GaussianBlur(image, (0, 0), 2.0), {"sharpness": "down"}),
        (lambda image: cv2.resize(image, None, fx=2, fy=2), {"pixels": "up", "bytes": "up"}),
    ],
    ids=["darkened", "blurred", "enlarged"],
)
def test_changed_photographs_are_told_by_what_changed(
    photographs: list[np.ndarray], usual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: Callable[[np.ndarray], np.ndarray], expected: dict[str, str],
) -> None:  # fmt: skip
    """The statistic that is named for the change is among the alarms, in its direction."""
    document = _compare(usual, _write(tmp_path / "changed", photographs[:150], change), capsys, "--key", "folder")
    assert document["schema"] == DRIFT_SCHEMA
    assert document["verdict"] == "drift"
    assert expected.items() <= _alarms(document).items()


@pytest.mark.full
def test_unchanged_photographs_are_as_usual(usual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other crops of the same photographs are no drift, with a page that says so."""
    others = [decode(crop.data, short_side=96) for crop in crops(150, 12)]
    folder = _write(tmp_path / "others", others, lambda image: image)
    document = _compare(usual, folder, capsys, "--html", str(tmp_path / "drift.html"))
    assert document["verdict"] == "steady"
    assert "Nothing has drifted" in (tmp_path / "drift.html").read_text()


@pytest.mark.full
def test_torn_files_are_told_with_their_code(usual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sender that cuts off files."""
    for number, file in enumerate(sorted(usual.rglob("*.jpg"))[:150]):
        data = file.read_bytes()
        (tmp_path / f"{number}.jpg").write_bytes(data[: len(data) // 2] if number % 4 == 0 else data)
    document = _compare(usual, tmp_path, capsys)
    assert _alarms(document)["refused"] == "up"
    assert document["refusals"]["decode.truncated"] > 0


def _fill_queue(folder: Path, files: list[Path], cameras: tuple[str, ...]) -> None:
    bodies = [
        encode_job(file.read_bytes(), attributes={"camera": cameras[number % len(cameras)]})
        for number, file in enumerate(files)
    ]
    SqliteQueue(folder / "jobs.db").send(bodies)


def _run(folder: Path, *more: str) -> str:
    command = [
        sys.executable,
        "-c",
        "from headrace.cli import main; raise SystemExit(main())",
        "run",
        "app.py:pipeline",
    ]
    done = subprocess.run(
        [*command, "--drift", "watch", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.full
def test_workers_count_together_and_a_run_goes_on_where_the_last_ended(usual: Path, tmp_path: Path) -> None:
    """Two supervised workers and a third run: no item is counted twice or lost, by camera, with their answers."""
    (tmp_path / "app.py").write_text(APP)
    files = sorted(usual.rglob("*.jpg"))
    _fill_queue(tmp_path, files, _CAMERAS)
    _run(tmp_path, "--drift-key", "camera", "--drift-window", "10", "--supervise", "2")
    _fill_queue(tmp_path, files[:100], _CAMERAS)
    said = _run(tmp_path, "--drift-key", "camera", "--drift-window", "10")
    folder = DriftFolder(tmp_path / "watch")
    windows, damaged = folder.windows()
    every = [*windows, *folder.take_parts()]
    assert not damaged
    assert sum(window.items for window in every) == len(files) + 100
    assert {name for window in every for name in window.strata} == set(_CAMERAS)
    answers = sum(part.counts.get("answers", 0) for window in every for part in window.strata.values())
    assert len(files) + 100 <= answers <= len(files) + 110  # a batch of warm-up may be one item seen twice
    document = folder.scores()
    assert document is not None
    assert document.verdict == "recording"
    assert "recording:" in said


@pytest.mark.full
def test_a_run_is_compared_while_it_goes_on(photographs: list[np.ndarray], usual: Path, tmp_path: Path) -> None:
    """Darkened images of a queue raise an alarm that is logged, kept and exported; the next run remembers it."""
    (tmp_path / "app.py").write_text(APP)
    baseline = learn(read_windows(usual, window_items=10), simulate=False)
    DriftFolder(tmp_path / "watch", make=True).write_baseline(baseline)
    dark = _write(tmp_path / "dark", photographs, lambda image: (image * 0.4).astype(np.uint8))
    for _ in range(2):
        _fill_queue(tmp_path, sorted(dark.rglob("*.jpg")), ("gate",))
    said = _run(tmp_path)
    assert "images are darker" in said
    scores = current_scores(str(tmp_path / "watch"))
    assert scores["brightness"] >= 1
    watcher = DriftWatcher(Collector(window_items=10), DriftFolder(tmp_path / "watch"), 10)
    watcher.step()
    assert watcher.document is not None
    assert watcher.document.verdict == "drift"
    watcher.close()
    assert published()["headrace_drift_alarm", ("brightness",)] == 1
    forget_published()


def test_what_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options without a folder, another key than the baseline's, a folder that cannot be made: exit status 2, one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "file").write_text("")
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "baseline.json").write_text("{")
    for options, message in (
        (["--drift-key", "camera"], "--drift-key needs --drift DIR"),
        (["--drift", "file/inside"], "--drift file/inside cannot be made"),
        (["--drift", "watch"], "is damaged"),
    ):
        assert main(["run", "app.py:pipeline", *options]) == 2
        assert message in capsys.readouterr().err
    for arguments, message in (
        (["show", "nothing"], "nothing is not a folder"),
        (["learn", "watch", "--force"], "0 windows were recorded; a baseline takes 40 at least"),
        (["compare", "file", "file"], "file is not a folder"),
    ):
        assert main(["monitor", "drift", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.full
def test_learn_show_and_their_documents(usual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`learn --images` writes a baseline and what it promises; `show` says where things stand; both as JSON too."""
    watch = str(tmp_path / "watch")
    assert main(["-q", "monitor", "drift", "learn", watch, "--images", str(usual), "--key", "folder", "--json"]) == 0
    baseline = json.loads(capsys.readouterr().out)
    assert baseline["schema"] == BASELINE_SCHEMA
    assert baseline["key"] == "folder"
    assert set(baseline["strata"]) == set(_CAMERAS)
    assert "false alarms" in baseline["promise"]["says"]
    assert main(["-q", "monitor", "drift", "learn", watch, "--images", str(usual)]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["monitor", "drift", "show", watch, "--check"]) == 0
    assert capsys.readouterr().out.startswith("NOTHING JUDGED")


def test_a_disk_that_is_full_costs_counts_and_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows that cannot be written are counted as lost, and said once."""
    folder = DriftFolder(tmp_path, make=True)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "add_window", full)
    collector = Collector(window_items=8)
    collector.step = 1
    watcher = DriftWatcher(collector, folder, 8)
    from headrace.base.records import Job

    for number in range(24):
        collector.enter(Job(str(number), b""), "text", "decode", "text", None, 0)
    watcher.step()
    for number in range(24, 32):
        collector.enter(Job(str(number), b""), "text", "decode", "text", None, 0)
    assert sum(part.lost for part in collector.take(rest=True)) == 24
    assert len([one for one in caplog.records if "No space left on device" in one.message]) == 1
    folder.leave()
