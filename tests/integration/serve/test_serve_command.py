"""`headrace serve` as a user meets it: a process of its own, asked over HTTP."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.loading import load_pipeline
from headrace.diagnose import profile_document
from headrace.runs.reader import read_run
from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH
from tests.integration.serve.service import Service

pytestmark = pytest.mark.smoke

PIPELINE = f"""
import headrace as hr

class Scenes(hr.Module):
    model = {str(SCENES_MODEL_PATH)!r}
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        self.scenes = context.open_model()

    def preprocess(self, image):
        return hr.images.normalize(image)

    def process(self, batch):
        return self.scenes(batch).argmax(axis=1).tolist()

pipeline = hr.Pipeline(source=hr.items([]), module=Scenes())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pipeline."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    return tmp_path


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    """That pipeline, served."""
    service = Service(folder, "jobs.py:pipeline", "-o", "served")
    yield service
    service.process.kill()
    service.process.communicate()


def answers_of_a_run(folder: Path) -> list[int]:
    """Return what the same pipeline makes of the photographs without a server."""
    pipeline = load_pipeline(f"{folder / 'jobs.py'}:pipeline")
    results = hr.collect()
    hr.run(pipeline.replace_source(hr.items([one.path for one in PHOTOGRAPHS])).replace_delivery(results))
    answers = [result for _, result in sorted(results.results, key=lambda result: int(result[0]))]
    assert len(set(answers)) > 3, "answers that are all alike would prove little"
    return answers


def test_photographs_are_named_and_the_run_is_recorded(service: Service, folder: Path) -> None:
    """Images come in as bytes and as a form, answers are right, and SIGTERM ends it with a run folder."""
    service.wait_until_ready()
    expected = answers_of_a_run(folder)
    for photograph, result in zip(PHOTOGRAPHS, expected, strict=True):
        status, answer = service.ask("/v1/jobs?id=one", photograph.path.read_bytes(), **{"Content-Type": "image/jpeg"})
        assert (status, answer) == (200, {"id": "one", "result": result})
    body = b'--XX\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n%b\r\n--XX--\r\n'
    form = body % PHOTOGRAPHS[1].path.read_bytes()
    assert (
        service.ask("/v1/jobs", form, **{"Content-Type": "multipart/form-data; boundary=XX"})[1]["result"]
        == expected[1]
    )
    assert service.ask("/livez") == (200, {"status": "live"})
    status, out, said = service.end()
    assert (status, "Traceback" in said) == (0, False), said
    assert "delivered" in out
    assert (folder / "served" / "run.json").is_file()


def test_what_is_no_image_is_the_clients_fault(service: Service) -> None:
    """A code, a status, and the service goes on."""
    service.wait_until_ready()
    status, answer = service.ask("/v1/jobs", b"no image")
    assert (status, answer["code"]) == (422, "decode.format")
    status, answer = service.ask("/v1/jobs", b'{"url": "http://127.0.0.1/x"}', **{"Content-Type": "application/json"})
    assert (status, answer["code"]) == (422, "ssrf.address")
    status, answer = service.ask("/v1/jobs", b'{"path": "/etc/passwd"}', **{"Content-Type": "application/json"})
    assert (status, answer["code"]) == (422, "file.refused")
    assert service.ask("/v1/jobs", PHOTOGRAPHS[0].path.read_bytes())[0] == 200


def test_photographs_are_named_for_clients_of_triton(service: Service) -> None:
    """By the Open Inference Protocol, as by the other: two images in one request, as bytes behind its JSON."""
    service.wait_until_ready()
    images = [photograph.path.read_bytes() for photograph in PHOTOGRAPHS[:2]]
    behind = b"".join(len(image).to_bytes(4, "little") + image for image in images)
    model = service.ask("/v2/models/pipeline")[1]
    assert model["outputs"] == [{"name": "result", "datatype": "INT64", "shape": [-1, 1]}]  # seen when it tried itself
    said = model["inputs"][0]
    head = json.dumps({"inputs": [{**said, "shape": [2, 1], "parameters": {"binary_data_size": len(behind)}}]}).encode()
    results = [service.ask("/v1/jobs", image)[1]["result"] for image in images]
    length = {"Inference-Header-Content-Length": str(len(head))}
    status, answer = service.ask("/v2/models/pipeline/infer", head + behind, **length)
    expected = {"name": "result", "datatype": "INT64", "shape": [2, 1], "data": results}
    assert (status, answer["outputs"]) == (200, [expected])
    assert answer["parameters"]["plan_id"]
    (counted,) = service.ask("/v2/models/pipeline/stats")[1]["model_stats"]
    assert (counted["inference_count"], counted["inference_stats"]["success"]["count"]) == (2, 1)


def test_jobs_go_into_a_queue(folder: Path) -> None:
    """The API in front of a queue stores a job before it answers; a worker then finds it there."""
    service = Service(folder, "--queue", "sqlite:///jobs.db")
    try:
        body = json.dumps({"id": "order-7", "url": "http://example.com/1.jpg", "callback": "http://example.com/done"})
        answer = service.ask("/v1/jobs", body.encode(), **{"Content-Type": "application/json"})
        assert answer == (202, {"id": "order-7", "state": "queued"})
        assert service.ask("/v1/jobs", b"{", **{"Content-Type": "application/json"})[0] == 400
        assert service.ask("/readyz")[0] == 200
    finally:
        status, _, said = service.end()
    assert status == 0, said
    shown = subprocess.run(
        [sys.executable, "-m", "headrace", "queue", "peek", "sqlite:///jobs.db", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "order-7" in shown.stdout
    assert "http://example.com/done" in shown.stdout


def test_a_proxys_clients_learn_no_lines_of_the_server(folder: Path) -> None:
    """With `--hide-failures` the answer names the job, and the terminal says what happened to it."""
    (folder / "broken.py").write_text(
        "import headrace as hr\n\n"
        "class Broken(hr.Module):\n    input = hr.BytesInput()\n\n"
        "    def process(self, batch):\n        raise ValueError('no row 7')\n\n"
        "pipeline = hr.Pipeline(source=hr.items([]), module=Broken())\n"
    )
    service = Service(folder, "broken.py:pipeline", "--hide-failures")
    service.wait_until_ready()
    status, answer = service.ask("/v1/jobs?id=seven", b"x")
    _, _, said = service.end()
    assert (status, answer["code"]) == (500, "serve.failed")
    assert answer["error"] == "the pipeline failed at this item; the server's log says why (job seven)"
    assert "item seven: ValueError: no row 7 (broken.py:7)" in said


def test_a_profiled_service_is_diagnosed(folder: Path) -> None:
    """Images that come with their request go past the downloads, and answers leave from several threads: both are trusted."""
    service = Service(folder, "jobs.py:pipeline", "--profile", "-o", "served")
    service.wait_until_ready()
    with ThreadPoolExecutor(8) as clients:
        statuses = list(
            clients.map(lambda one: service.ask("/v1/jobs", PHOTOGRAPHS[one % 4].path.read_bytes())[0], range(96))
        )
    service.end()
    assert statuses == [200] * 96
    checks = {one.name: one for one in profile_document(read_run(folder / "served")).checks}
    for name in ("forced_flow", "flow_balance", "exact_counters"):
        assert checks[name].status == "ok", checks[name]
    assert checks["forced_flow"].says
