"""The sample package under `examples/plugin`: installed, then used by the commands as whoever has it would."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[3] / "examples" / "plugin"
JOBS = """
import numpy as np

import headrace as hr


class Sums(hr.Module):
    input = hr.ArrayInput()
    model = "sums.linear"

    def load(self, context):
        self.sums = context.open_model()

    def preprocess(self, value):
        return np.array([value, 1], np.float32)

    def process(self, batch):
        return self.sums(batch)[:, 0].tolist()


def refuse(value):
    raise hr.ItemRejected("size.odd: not this one")


files = hr.Pipeline(hr.folder("none"), stages=[hr.fetch("fetch"), hr.stage("length", len)], delivery=hr.jsonl("x.jsonl"))
lines = hr.Pipeline(hr.folder("none"), stages=[hr.stage("length", len)], delivery=hr.jsonl("x.jsonl"))
refusing = hr.Pipeline(hr.folder("none"), stages=[hr.stage("refuse", refuse)], delivery=hr.jsonl("x.jsonl"))
sums = hr.Pipeline(hr.items([1, 2]), module=Sums(), delivery=hr.jsonl("x.jsonl"))
"""

Headrace = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own, with nothing from the network, and return the folder."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(folder / "installed"), str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "installed"


@pytest.fixture
def headrace(plugin: Path, tmp_path: Path) -> Headrace:
    """Return what types a command in a folder with two pipelines and three files."""
    (tmp_path / "plugin_jobs.py").write_text(JOBS)
    (tmp_path / "files").mkdir()
    for size in (1, 2, 3):
        (tmp_path / "files" / f"{size}.jpg").write_bytes(b"x" * size)
    path = os.pathsep.join([str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=100,
        )

    return run


def results(file: Path) -> dict[str, int]:
    """Return what a CSV file holds, by id."""
    with file.open(newline="") as rows:
        return {row["id"]: json.loads(row["result"]) for row in csv.DictReader(rows)}


@pytest.mark.real_clock
def test_the_queue_passes_the_conformance_suite(plugin: Path, tmp_path: Path) -> None:
    """As its author would see it, by the test that stands beside it."""
    shutil.copy(PLUGIN / "test_queue.py", tmp_path)
    path = os.pathsep.join([str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=250,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_queue_is_filled_looked_into_and_worked_off(headrace: Headrace, tmp_path: Path) -> None:
    """`submit`, `queue` and `profile` know its address; its results go where another part of the package writes them."""
    missing = headrace("queue", "stats", "spool:///jobs")
    assert (missing.returncode, "jobs does not exist" in missing.stderr) == (3, True), missing.stderr
    sent = headrace("submit", "spool:///jobs", "files/", "--json")
    document = json.loads(sent.stdout)
    assert (document["queue"], document["count"]) == ("spool:///jobs", 3)
    assert json.loads(headrace("queue", "stats", "spool:///jobs", "--json").stdout)["visible"] == 3
    source = ("--source", "spool:///jobs", "--drain", "--results", "sizes.csv")
    ran = headrace("profile", "plugin_jobs.py:files", *source, "-o", "runs/a")
    assert ran.returncode == 0, ran.stderr
    assert sorted(results(tmp_path / "sizes.csv").values()) == [1, 2, 3]
    assert json.loads(headrace("queue", "stats", "spool:///jobs", "--json").stdout)["visible"] == 0
    assert json.loads((tmp_path / "runs/a/run.json").read_text())["versions"]["headrace-spool"] == "0.1.0"


def test_a_dead_letter_is_named_with_the_command_that_shows_it(headrace: Headrace) -> None:
    """The end of a run says how to look at what failed, in a queue that headrace does not know."""
    headrace("submit", "spool:///jobs", "files/1.jpg")
    source = ("--source", "spool:///jobs?visibility=9s", "--drain", "--results", "none.csv")
    ran = headrace("run", "plugin_jobs.py:refusing", *source)
    assert "headrace queue peek 'spool:///jobs?visibility=9s' --dead" in ran.stdout, ran.stderr
    shown = json.loads(headrace("queue", "peek", "spool:///jobs?visibility=9s", "--dead", "--json").stdout)
    assert "size.odd: not this one" in shown["messages"][0]["reason"]
    assert "1 dead letter moved back" in headrace("queue", "redrive", "spool:///jobs").stdout


def test_a_source_goes_on_where_its_readers_were(headrace: Headrace, tmp_path: Path) -> None:
    """What is no queue is run and profiled by its address; a second run finds only what was added."""
    (tmp_path / "log.txt").write_text("a\nbb\n")
    source = ("--source", "lines:///log.txt", "--drain")
    first = headrace("run", "plugin_jobs.py:lines", *source, "--results", "first.csv")
    assert (first.returncode, results(tmp_path / "first.csv")) == (0, {"0": 1, "2": 2}), first.stderr
    with (tmp_path / "log.txt").open("a") as file:
        file.write("ccc\nunfinished")
    second = headrace("profile", "plugin_jobs.py:lines", *source, "--results", "second.csv", "-o", "runs/second")
    assert (second.returncode, results(tmp_path / "second.csv")) == (0, {"5": 3}), second.stderr
    refused = headrace("submit", "lines:///log.txt", "files/")
    assert (refused.returncode, "lines:// is a source, for --source" in refused.stderr) == (2, True)


def test_an_engine_opens_a_model(headrace: Headrace, tmp_path: Path) -> None:
    """By its name in the Plan; the run folder says which one it was."""
    (tmp_path / "sums.linear").write_text('{"weights": [[2.0], [0.5]]}')
    profiled = headrace(
        "profile", "plugin_jobs.py:sums", "--set", "model.engine=linear", "--results", "sums.csv", "-o", "runs/sums"
    )
    assert (profiled.returncode, results(tmp_path / "sums.csv")) == (0, {"0": 2.5, "1": 4.5}), profiled.stderr
    (variant,) = json.loads((tmp_path / "runs/sums/run.json").read_text())["variants"]
    assert (variant["engine"], variant["artifact"]) == ("linear", "sums.linear")
    wrong = headrace("run", "plugin_jobs.py:sums", "--set", "model.engine=linar", "--results", "none.csv")
    assert (
        "model.engine = 'linar' is not possible; allowed: onnx, openvino, torch, emulated, halves, linear"
        in wrong.stderr
    )


def test_names_are_shown_where_one_is_wrong_and_completed(headrace: Headrace) -> None:
    """Messages and the shell know the package's schemes."""
    wrong = headrace("run", "plugin_jobs.py:lines", "--source", "kafka://host/topic")
    assert all(f"{scheme}://" in wrong.stderr for scheme in ("redis+sentinel", "spool", "lines", "s3"))
    assert "got 'kafka'" in wrong.stderr
    wrong = headrace("run", "plugin_jobs.py:lines", "--source", "files", "--results", "kafka://host/topic")
    assert (
        "--results = 'kafka' is not possible; allowed: .jsonl, .ndjson, s3, gs, az, sqlite, postgresql, .csv"
        in wrong.stderr
    )
    script = headrace("completion", "bash").stdout
    assert "redis+sentinel:// spool:// s3:// gs:// az:// records:// fsspec:// video:// rtsp://" in script
    assert " udp:// v4l2:// lines://" in script


TWO_LAYERS = """
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import headrace as hr

rng = np.random.default_rng(0)
weights = [numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), name) for name in ("v", "w")]
nodes = [helper.make_node("MatMul", ["x", "v"], ["middle"]), helper.make_node("MatMul", ["middle", "w"], ["y"])]
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "two.onnx")


class Two(hr.Module):
    input = hr.ArrayInput()
    model = "two.onnx"

    def load(self, context):
        self.two = context.open_model()

    def process(self, batch):
        return self.two(batch).round(4).tolist()


pipeline = hr.Pipeline(hr.items(list(rng.normal(size=(20, 4)).astype(np.float32))), module=Two(), delivery=hr.jsonl("x.jsonl"))
"""


def test_a_model_in_halves_answers_like_the_whole(headrace: Headrace, tmp_path: Path) -> None:
    """Cut between its layers and called twice at a time; and what is no place to cut is said."""
    (tmp_path / "two_layers.py").write_text(TWO_LAYERS)
    run = ["run", "two_layers.py:pipeline", "--set", "process.batch=4"]
    halves = [*run, "--set", "model.engine=halves", "--set", "model.instances=2"]
    whole = headrace(*run, "--results", "whole.jsonl")
    cut = headrace(*halves, "--set", "model.options.at=middle", "--results", "cut.jsonl")
    assert (whole.returncode, cut.returncode) == (0, 0), whole.stderr + cut.stderr
    found = [
        {one["id"]: one["result"] for one in map(json.loads, (tmp_path / name).read_text().splitlines())}
        for name in ("whole.jsonl", "cut.jsonl")
    ]
    assert len(found[0]) == 20
    for name, result in found[0].items():
        assert found[1][name] == pytest.approx(result, abs=2e-4)
    wrong = headrace(*halves, "--set", "model.options.at=nowhere", "--results", "wrong.jsonl")
    assert wrong.returncode == 3
    assert "two.onnx cannot be cut at 'nowhere'" in wrong.stderr
