"""Guides whose code is typed by readers run as printed; the one of SQS workers has its test beside the queue."""

from __future__ import annotations

import functools
import http.server
import json
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import headrace as hr
from headrace.base.protocols import Queue
from headrace.base.records import Burial
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.testing import Call, Receiver, Reply
from headrace.testing.conformance import QueueConformance

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def blocks(guide: str) -> list[str]:
    """Return the Python of a guide, block by block."""
    return re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the guide to own stages in a folder with its CSV file and return its names."""
    (tmp_path / "orders.csv").write_text("id,shop,photo\n1,north,abc\n2,south,de\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks("own-stages.md"):
        exec(block, names)
    return names


def test_the_stages_and_the_source_of_the_guide_run(own: dict[str, Any]) -> None:
    """Functions, state, fan-out and rows of a file come to what the guide is about."""
    assert own["lengths"] == {"0": 4, "1": 5}
    assert own["prices"] == {"0": 700.0, "1": 40.0}
    assert json.loads(Path("runs/prices/run.json").read_text())["counters"]["notes"]["lookup.asked"] == 2
    assert own["longest"] == {"0": {"text": "a mill wheel", "longest": 5}, "1": {"text": "", "longest": 0}}
    assert dict(own["labels"].results) == {
        "1": {"id": "1", "shop": "north", "attempt": 1, "bytes": 3},
        "2": {"id": "2", "shop": "south", "attempt": 1, "bytes": 2},
    }


def test_urgent_jobs_go_first(own: dict[str, Any]) -> None:
    """The guide's queue gives a run the urgent jobs first, and buries each message where it came from."""
    urgent, usual = (open_queue(f"sqlite:///jobs.db?queue={name}") for name in ("urgent", "usual"))
    queue = own["UrgentFirst"](urgent, usual)
    queue.send([encode_job(b"usual", id="a")])
    urgent.send([encode_job(b"urgent", id="b"), encode_job(b"bad", id="c")])
    first = queue.receive(10)
    assert [b'"b"' in first[0].body, b'"c"' in first[1].body] == [True, True]
    assert queue.dead_letter([Burial(first[1], "test")]) == {}
    assert queue.nack([first[0].receipt]) == {}
    assert (urgent.statistics().dead, usual.statistics().dead) == (1, 0)
    results = hr.collect()
    hr.run(hr.Pipeline(hr.queue(queue, drain=True), stages=[hr.stage("size", len)], delivery=results))
    assert dict(results.results) == {"b": 6, "a": 5}
    queue.close()


@pytest.mark.full
@pytest.mark.real_clock
class TestUrgentFirst(QueueConformance):
    """The suite that the guide names, on the guide's queue."""

    @pytest.fixture
    def make_queue(self, own: dict[str, Any], tmp_path: Path) -> Callable[[], Queue]:
        """Open the guide's queue as the guide's own test does."""
        make: Callable[[], Queue] = own["TestUrgentFirst"].make_queue.__wrapped__(self, tmp_path)
        return make


class _Photos(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Stay silent."""


class _Receiver(Receiver):
    """Takes what comes without an id too."""

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        self.calls.append(Call(len(self.calls) + 1, path, headers, body))
        return Reply()


class _Celery:
    """As much of Celery as gives back the task's function."""

    def __init__(self, name: str, broker: str) -> None:
        pass

    def task(self, **options: Any) -> Callable[[Any], Any]:
        return lambda function: function


def test_the_task_and_the_module_of_the_guide_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of the Celery task and the module send a receiver the same results."""
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((8, 8, 3), 90, np.uint8))
    cv2.imwrite(str(tmp_path / "dark.png"), np.full((8, 8, 3), 10, np.uint8))
    celery = types.ModuleType("celery")
    celery.Celery = _Celery  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "celery", celery)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks("from-celery.md"):
        exec(block, names)
    handler = functools.partial(_Photos, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, _Receiver() as receiver:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in ("grey", "dark"):
            names["send"](name, f"http://127.0.0.1:{server.server_port}/{name}.png", receiver.url)
        plan = hr.Plan.from_table({"network": {"allow": ["127.0.0.1"]}})
        result = hr.run(names["pipeline"], plan)
        for name in ("grey", "dark"):
            names["brightness"](name, f"http://127.0.0.1:{server.server_port}/{name}.png", receiver.url)
        server.shutdown()
    assert result.counters.delivered == 2
    sent = [(body["id"], body["result"]) for body in (json.loads(call.body) for call in receiver.calls)]
    assert dict(sent[:2]) == dict(sent[2:]) == {"grey": 90, "dark": 10}


def _save_onnx(path: Path, nodes: list[onnx.NodeProto], shape: list[Any], answer: list[Any], **arrays: Any) -> None:
    """Write a model of one input `x` and one output `y`."""
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, answer)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(made, path)


def test_a_module_behind_another_one_takes_its_crops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two models of the guide: each half of a scene is a box, and the second model names its strongest colour."""
    halves = np.array([[[0, 0, 32, 64], [32, 0, 64, 64]]], np.float32)
    nothing = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=1)
    flat = helper.make_node("Squeeze", ["mean", "last"], ["zero"])
    nodes = [
        nothing,
        flat,
        helper.make_node("Mul", ["zero", "none"], ["no"]),
        helper.make_node("Add", ["no", "boxes"], ["y"]),
    ]
    _save_onnx(
        tmp_path / "det.onnx",
        nodes,
        ["n", 3, "h", "w"],
        ["n", 2, 4],
        boxes=halves,
        none=np.float32(0),
        last=np.array([3]),
    )
    colour = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)
    _save_onnx(tmp_path / "rec.onnx", [colour], ["n", 3, 32, 32], ["n", 3])
    (tmp_path / "scenes").mkdir()
    scene = np.zeros((64, 64, 3), np.uint8)
    scene[:, :32, 2], scene[:, 32:, 0] = 200, 200  # BGR: red on the left, blue on the right
    cv2.imwrite(str(tmp_path / "scenes" / "a.png"), scene)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide", "hr": hr, "np": np}
    for block in blocks("calling-models.md"):
        exec(block, names)
    results = hr.collect()
    hr.run(names["pipeline"].replace_delivery(results))
    assert list(dict(results.results).values()) == [[([0, 0, 32, 64], 0), ([32, 0, 64, 64], 2)]]
