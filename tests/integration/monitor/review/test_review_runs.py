"""What runs keep for review: beside a shadow, by several workers, and after a SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.monitor.review.store import find_file, read_samples
from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH

_JOBS = f"""
import time
from pathlib import Path
import headrace as hr

class Scenes(hr.Module):
    model = {str(SCENES_MODEL_PATH)!r}
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        self.scenes = context.open_model()

    def preprocess(self, image):
        return hr.images.normalize(image)

    def process(self, batch):
        time.sleep(0.003)
        return list(self.scenes(batch))

pipeline = hr.Pipeline(source=hr.items([Path({str(PHOTOGRAPHS[0].path)!r})] * 300), module=Scenes(), delivery=hr.collect())
queue = hr.Pipeline(source=hr.queue("sqlite:///jobs.db"), module=Scenes(), delivery=hr.jsonl("results.jsonl"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pipelines, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.py").write_text(_JOBS)
    return tmp_path


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments, "-q"], env=environment, stdout=subprocess.DEVNULL
    )


@pytest.mark.smoke
def test_a_shadow_has_something_to_say(folder: Path) -> None:
    """Some answers have a twin of the same model, which agrees; none is kept for disagreeing, all are counted."""
    assert _start("run", "jobs.py:pipeline", "--shadow", str(SCENES_MODEL_PATH), "--review", "kept").wait(120) == 0
    samples, problems = read_samples(Path("kept"))
    assert problems == []
    assert sum(one.num_answers for sample in samples for one in sample.cells) == 300
    items = [item for sample in samples for item in sample.items]
    assert all(item.disagreement in (None, 0.0) for item in items)
    assert not any("disagreement" in item.why for item in items)
    assert {
        find_file(Path("kept"), sample.id, item.file) is not None for sample in samples for item in sample.items
    } == {True}


def test_workers_keep_samples_of_their_own(folder: Path) -> None:
    """With two of them every delivered job is counted once, in the one or the other."""
    photos = folder / "photos"
    photos.mkdir()
    for number in range(80):
        (photos / f"{number}.jpg").symlink_to(PHOTOGRAPHS[number % len(PHOTOGRAPHS)].path)
    assert _start("submit", "sqlite:///jobs.db", "photos").wait(120) == 0
    assert _start("run", "jobs.py:queue", "--drain", "--supervise", "2", "--review", "kept").wait(120) == 0
    samples, _ = read_samples(Path("kept"))
    assert sum(one.num_answers for sample in samples for one in sample.cells) == 80
    assert len({item.job for sample in samples for item in sample.items}) == sum(len(one.items) for one in samples)


def test_what_was_written_survives_sigkill(folder: Path) -> None:
    """The sample is whole, and its folder is open to who makes room."""
    endless = _JOBS.replace("* 300", "* 100_000")
    Path("jobs.py").write_text(endless.replace("time.sleep(0.003)", "time.sleep(0.001)"))
    process = _start("run", "jobs.py:pipeline", "--review", "kept")
    pause, deadline = 0.1, time.monotonic() + 60
    while not list(Path("kept").glob("samples/*/sample.json")) and time.monotonic() < deadline:
        time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (sample,), problems = read_samples(Path("kept"))
    assert problems == []
    assert sum(one.num_answers for one in sample.cells) > 0
    assert all(find_file(Path("kept"), sample.id, item.file) for item in sample.items if item.file)
    assert json.loads((Path("kept") / "samples" / sample.id / "sample.json").read_bytes())["schema"].endswith("/1")
