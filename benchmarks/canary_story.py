"""The transcript of the guide on canaries: four candidates beside a pipeline that runs, each tried by typed commands.

    python -m benchmarks.canary_story    # prints it as Markdown; two minutes

A camera gives frames without end, and a small network says whether they are dark or bright. The candidates: one that takes
several times as long, one that gives other answers, one that answers some frames with a NaN, and an honest one whose weights
were rounded. The run serves with the settings of the commands' defaults.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADRACE = [sys.executable, "-m", "headrace"]
JOBS = '''"""A camera that never stops, and a module that says whether its frames are dark or bright."""

import time

import numpy as np

import headrace as hr
from headrace.sources.finite import Entry, FiniteSource


class Camera(FiniteSource):
    def entries(self):
        random = np.random.default_rng(0)
        for number in range(10**9):
            time.sleep(0.002)
            yield Entry(f"frame-{number}", random.random((3, 32, 32), np.float32) * random.random(dtype=np.float32))


class Light(hr.Module):
    model = "light.onnx"
    input = hr.ArrayInput()

    def load(self, context):
        self.light = context.open_model()

    def process(self, batch):
        return self.light(batch).argmax(axis=1).tolist()


pipeline = hr.Pipeline(source=Camera(), module=Light(), delivery=hr.jsonl("results.jsonl"))
'''
CANDIDATES = ("slow", "wrong", "broken", "honest")


def save_light(path: Path, *, bias: float = -6.0, work: int = 0, rounded: bool = False, breaks: bool = False) -> None:
    """Write a network of one convolution that tells dark frames from bright ones.

    Args:
        path: The file.
        bias: What must be reached to be bright.
        work: Channels of convolutions whose outcome is multiplied by zero.
        rounded: Round the weights.
        breaks: Take the root of what may be negative.
    """
    random = np.random.default_rng(1)
    weights = {"kernel": random.random((16, 3, 3, 3)), "to_logits": np.stack([np.zeros(16), np.ones(16)], axis=1)}
    weights["bias"] = np.array([0.0, bias * weights["kernel"].mean() * 27])
    if rounded:
        weights = {name: array.round(3) for name, array in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["maps"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "to_logits", "bias"], ["logits"]),
    ]
    last = "logits"
    if work:
        weights |= {
            "first": random.random((work, 3, 3, 3)),
            "more": random.random((work, work, 3, 3)),
            "zero": np.zeros(()),
        }
        nodes += [
            helper.make_node("Conv", ["x", "first"], ["wide"], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["wide", "more"], ["wider"], pads=[1, 1, 1, 1]),
            helper.make_node("ReduceMean", ["wider"], ["one"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Mul", ["one", "zero"], ["nothing"]),
            helper.make_node("Reshape", ["nothing", "column"], ["nothings"]),
            helper.make_node("Add", ["logits", "nothings"], ["sum"]),
        ]
        last = "sum"
    if breaks:
        nodes += [helper.make_node("Sqrt", ["logits"], ["root"])]
        last = "root"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    constants = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
    if work:
        constants.append(numpy_helper.from_array(np.array([-1, 1], np.int64), "column"))
    graph = helper.make_graph(
        nodes, "light",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make_folder(folder: Path) -> None:
    """Write the pipeline, its models and their Plans."""
    (folder / "jobs.py").write_text(JOBS)
    save_light(folder / "light.onnx")
    save_light(folder / "slow.onnx", work=24)
    save_light(folder / "wrong.onnx", bias=-5.0)
    save_light(folder / "broken.onnx", breaks=True)
    save_light(folder / "honest.onnx", rounded=True)
    (folder / "plan.toml").write_text("[stages.process]\nbatch = 8\n")
    for name in CANDIDATES:
        (folder / f"{name}.toml").write_text(f'[model]\nartifact = "{name}.onnx"\n')


def type_command(folder: Path, command: str) -> str:
    """Return a command and what it prints, as a transcript."""
    arguments = shlex.split(command)[1:]
    done = subprocess.run([*HEADRACE, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return f"$ {command}\n{done.stdout}{done.stderr}"


def tell(folder: Path, candidates: Sequence[str]) -> list[str]:
    """Return the transcripts of one pipeline beside which candidates are tried, one after the other."""
    command = "headrace run jobs.py:pipeline --plan plan.toml --canary canary --ledger ledger.sqlite"
    told = []
    with (folder / "run.log").open("w") as log:
        running = subprocess.Popen([*HEADRACE, *shlex.split(command)[1:]], cwd=folder, stdout=log, stderr=log)
        try:
            wait_for(folder / "results.jsonl")
            for name in candidates:
                started = type_command(folder, f"headrace canary start {name}.toml --ledger ledger.sqlite")
                told.append(started + "\n" + type_command(folder, "headrace canary status --wait 5m"))
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(60)
    told.append(type_command(folder, "headrace ledger list --events --ledger ledger.sqlite"))
    return told


def wait_for(file: Path) -> None:
    """Wait until a file has something in it."""
    give_up_at = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"nothing was written to {file} within a minute")
        time.sleep(0.1)


def main() -> int:
    """Print the transcripts."""
    os.environ.setdefault("COLUMNS", "110")
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder))
        for part in tell(Path(folder), CANDIDATES):
            print(f"```\n{part.rstrip()}\n```\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
