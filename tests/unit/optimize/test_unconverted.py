"""A recipe's network on the torch engine: what is tried, with what reason it is turned down, and that a worker can open it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from headrace.base.plan import Plan  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.engines import networks, open_model  # noqa: E402
from headrace.optimize.techniques import find_deciding_versions  # noqa: E402
from headrace.validate import measuring  # noqa: E402

torch.set_num_threads(1)
#: Found before tests take PATH away.
COMPILER = shutil.which("g++")
JOBS = """
import numpy as np, torch
import headrace as hr
from headrace.engines.networks import register
EXAMPLE = np.zeros((1, 3, 8, 8), np.float32)

def make():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                               torch.nn.Flatten(), torch.nn.Linear(8, 4))

class Recipe:
    example = EXAMPLE
    def build(self):
        torch.manual_seed(5)
        return make().eval()

recipe = Recipe()
class Work(hr.Module):
    input = hr.ArrayInput()
    def process(self, batch):
        return batch
pipeline = hr.Pipeline(hr.folder('photos'), module=Work(), delivery=hr.jsonl('out.jsonl'))
"""
REGISTERED = "register('small', make, example=EXAMPLE)\n"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a golden set, no network registered, and no compiler; without --data int8 takes no time."""
    monkeypatch.chdir(tmp_path)
    for name in networks.names():
        networks.unregister(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    random = np.random.default_rng(0)
    inputs = random.standard_normal((800, 3, 8, 8)).astype(np.float32)
    torch.manual_seed(5)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)
    )  # fmt: skip
    with torch.inference_mode():
        np.savez("golden.npz", inputs=inputs, labels=network(torch.from_numpy(inputs)).argmax(1).numpy())
    return tmp_path


def searched(module: str, jobs: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """Search with the recipe of a module of this text, which is the pipeline's module too."""
    Path(f"{module}.py").write_text(jobs)
    sets = ["--golden", "golden.npz", "--max-drop", "1pt", "--no-layout", "--json"]
    status = main(
        ["optimize", f"{module}.py:recipe", "--pipeline", f"{module}.py:pipeline", *sets, "--ledger", "l.sqlite", *more]
    )
    told = capsys.readouterr()
    assert told.out, told.err
    return status, json.loads(told.out)


def test_a_slower_one_is_turned_down_with_its_ratio_and_what_cannot_be_compiled_is_told(
    capsys: pytest.CaptureFixture[str], speeds: Any
) -> None:
    """The reason is in the attempt; without a compiler the two compiled ones are not tried."""
    speeds["torch", False] = 0.66
    _, document = searched("slow_jobs", JOBS + REGISTERED, capsys)
    found = next(one for one in document["attempts"] if one["technique"] == "torch")
    assert (found["verdict"], found["gate"], found["settings"]["engine"]) == ("reject", "speed", "torch")
    assert "0.66 times as fast" in found["says"]
    skipped = {one["technique"]: one["why"] for one in document["skipped"]}
    assert "g++ is not on PATH" in skipped["torch-compiled"]
    assert "g++ is not on PATH" in skipped["torch-bf16"]


def test_the_plan_of_a_faster_one_opens_as_a_worker_opens_it(capsys: pytest.CaptureFixture[str], speeds: Any) -> None:
    """It names the registered network and the weights in the store; the answers are the network's."""
    speeds["torch", False] = 9.0
    status, document = searched("fast_jobs", JOBS + REGISTERED, capsys, "-o", "plan.toml")
    assert status == 0
    assert document["recommended"].endswith("@torch,threads=1,network=small,channels_last=true")
    plan = Plan.load("plan.toml")
    assert plan.model.options == {"network": "small", "channels_last": True}
    with np.load("golden.npz") as golden:
        answers = open_model(plan.model, None, 1)(golden["inputs"][:50])
        assert (answers.argmax(1) == golden["labels"][:50]).all()


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="there is no g++")
def test_all_three_are_compiled_and_judged_to_the_end(
    capsys: pytest.CaptureFixture[str], speeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened, compiled, held against the file, asked on the golden set; the Plan of the fastest opens, and answers alike."""
    monkeypatch.setenv("CXX", str(COMPILER))
    monkeypatch.setenv("PATH", os.path.dirname(str(COMPILER)))
    speeds["torch", False] = 9.0
    with measuring.using(cpu_flags=lambda: frozenset({"avx512_bf16"})):  # slow without, and right
        status, document = searched("all_jobs", JOBS + REGISTERED, capsys, "-o", "plan.toml")
    judged = {one["technique"]: one for one in document["attempts"] if one["settings"]["engine"] == "torch"}
    assert sorted(judged) == ["torch", "torch-bf16", "torch-compiled"]
    for one in judged.values():
        gates = {gate["name"]: gate["outcome"] for gate in one["validation"]["gates"]}
        assert {**gates, "parity": "passed", "speed": "passed"} == gates
    fastest = judged["torch-bf16"]
    assert "accuracy" in {gate["name"] for gate in fastest["validation"]["gates"]}
    assert (status, document["recommended"]) == (0, fastest["candidate"])
    model = open_model(Plan.load("plan.toml").model, None, 1)
    assert (model.variant["precision"], model.variant["compiled"]) == ("bf16", True)
    with np.load("golden.npz") as golden:
        assert (model(golden["inputs"][:50]).argmax(1) == golden["labels"][:50]).mean() > 0.9


@pytest.mark.usefixtures("speeds")
def test_what_no_plan_could_name_is_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is registered, or only a network of other weights: it is said what to do, or what does not fit."""
    _, document = searched("bare_jobs", JOBS, capsys)
    skipped = {one["technique"]: one["why"] for one in document["skipped"]}
    assert "networks.register" in skipped["torch"]
    other = (
        "register('other', lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)), example=EXAMPLE)\n"
    )
    _, document = searched("other_jobs", JOBS + other, capsys)
    skipped = {one["technique"]: one["why"] for one in document["skipped"]}
    assert "'other': Error(s) in loading state_dict" in skipped["torch"]
    assert all(one["settings"]["engine"] != "torch" for one in document["attempts"])


def test_a_network_whose_code_has_changed_is_tried_anew(capsys: pytest.CaptureFixture[str], speeds: Any) -> None:
    """Its name, its weights and the converted file are what they were."""
    speeds["torch", False] = 0.66
    changed = JOBS.replace("def make():", "def make():  # with another forward")
    found = []
    for module, jobs in (("one_jobs", JOBS), ("changed_jobs", changed)):
        _, document = searched(module, jobs + REGISTERED, capsys)
        found += [one for one in document["attempts"] if one["technique"] == "torch"]
    assert [one["is_recalled"] for one in found] == [False, False]
    assert len({one["artifact"]["sha256"] for one in found}) == 1
    assert len({one["key"] for one in found}) == 2


def test_another_pytorch_makes_another_attempt_of_its_own_variants_alone() -> None:
    """What was found on ONNX Runtime is still known after PyTorch was replaced."""
    assert find_deciding_versions("torch").keys() - find_deciding_versions("onnx").keys() == {"torch"}
