"""The stories of `headrace demo` come out as they are told."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.demo.stories import find_folder, read_story
from headrace.diagnose.analysis import Analysis
from headrace.runs.reader import read_run

#: {story: what diagnose says of it on a quiet machine}
VERDICTS = {
    "augmentation": "PREPROCESS in clean",
    "gumgum": "DOWNLOAD_LATENCY in fetch",
    "many_small_steps": "POSTPROCESS in postprocess",
    "masks": "SERIALIZATION in send",
    "nms": "POSTPROCESS in postprocess",
    "png": "DECODE in decode",
    "products": "DECODE in decode",
    "recommender": "DEVICE_COMPUTE in process",
    "shelves": "DOWNLOAD_LATENCY in fetch",
    "slow_storage": "DOWNLOAD_LATENCY in fetch",
    "traffic": "DECODE",
    "wrong_thing": "DECODE in decode",
}
#: Told in every run of the tests: their slow parts wait, so any machine tells them. The others take minutes together.
QUICK = {"masks", "slow_storage"}
#: How many times as long as any other stage the slow one has to take for the story to be that of this machine: computing is
#: faster on a faster machine, and an emulated device is not.
CLEARLY = 1.5


def is_of_this_machine(run: Path, stage: str) -> bool:
    """Whether nothing else was in the way of the slow run, and its slow stage is by far the slowest here too."""
    profile = Analysis(read_run(run)).profile
    services = {one.name: one.service.mean or 0.0 for one in profile.stages}
    others = [seconds for name, seconds in services.items() if name != stage]
    is_slowest = stage not in services or services[stage] > CLEARLY * max(others)  # what is none is in the source
    return profile.environment.grade != "C" and is_slowest


@pytest.mark.measures
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VERDICTS]
)
def test_a_story_comes_out_as_it_is_told(name: str, tmp_path: Path) -> None:
    """Where it is this machine's story: the cause is named, and the fix, which is to gain more than the belief, gains."""
    for package in read_story(find_folder(name)).needs:
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", name, "-o", str(tmp_path / "story")],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (verdict,) = re.findall(r"^  (.+?)   \[confidence", done.stdout, flags=re.MULTILINE)
    last = done.stdout.rpartition("$ headrace compare")[2]
    assert "throughput of B is" in last, done.stdout
    assert "B is worse" not in last, done.stdout
    if is_of_this_machine(tmp_path / "story" / "runs" / "slow", VERDICTS[name].rpartition(" ")[2]):
        predicted = [float(factor) for factor in re.findall(r"predicted: x([\d.]+) \(", done.stdout)]
        assert verdict == VERDICTS[name], done.stdout
        assert predicted[0] < predicted[-1], done.stdout
        assert "B is better" in last, done.stdout
