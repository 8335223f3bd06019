"""`headrace serve` as a user meets it: a process of its own, asked over HTTP."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.loading import load_pipeline
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.budget import Budget
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.whole import whole_document
from headrace.runs.reader import read_run
from headrace.runs.whole_run import WholeRun, read_whole
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
    analysis = Analysis(read_run(folder / "served"))
    checks = {one.name: one for one in analysis.profile.checks}
    for name in ("forced_flow", "flow_balance", "exact_counters"):
        assert checks[name].status == "ok", checks[name]
    assert checks["forced_flow"].says
    assert analysis.replay.demands.num_jobs >= 12
    parts = diagnosis_document(analysis, budget=Budget(1.0)).latency_parts
    assert ("decode", "work") in {(one.stage, one.kind) for one in parts}


def test_processes_of_a_service_are_profiled_together(folder: Path) -> None:
    """Each writes a run folder; those of all are one run."""
    service = Service(folder, "jobs.py:pipeline", "--profile", "-o", "served", "--supervise", "2")
    service.wait_until_ready()
    with ThreadPoolExecutor(8) as clients:
        asked = clients.map(lambda one: service.ask("/v1/jobs", PHOTOGRAPHS[one % 4].path.read_bytes())[0], range(40))
        assert list(asked) == [200] * 40
    service.end()
    whole = read_whole(folder / "served")
    assert isinstance(whole, WholeRun)
    assert all((run.path / "profiling.json").is_file() for run in whole.members)
    probed = 2  # each process tries its model once, if it has come that far
    assert 40 <= whole_document(whole, budget_seconds=1.0).delivered <= 40 + probed


def test_the_folder_of_a_running_service_is_not_taken(service: Service, folder: Path) -> None:
    """Not even with --force; who tries is told before anything is said to listen, and the service records on."""
    service.wait_until_ready()
    status, said = refused(folder, "jobs.py:pipeline", "-o", "served", "--force")
    assert (status, "listening" in said) == (2, False)
    assert "a run that goes on now writes into served" in said
    assert service.ask("/v1/jobs", PHOTOGRAPHS[0].path.read_bytes())[0] == 200
    service.end()
    assert read_run(folder / "served").info.counters.delivered >= 1
    for more in ([], ["--supervise", "2"]):
        status, said = refused(folder, "jobs.py:pipeline", "-o", "served", *more)
        assert (status, "listening" in said, "holds an earlier run" in said) == (2, False, True)


def test_a_closed_terminal_ends_it_orderly(service: Service, folder: Path) -> None:
    """SIGHUP to one process is as SIGTERM: the run is recorded to its end."""
    service.wait_until_ready()
    status, out, said = service.end(signal.SIGHUP)
    assert status == 0, said
    assert "process" in out
    assert "requests refused" not in out
    assert read_run(folder / "served").info.status != "running"


def _is_ready(address: str) -> bool:
    """Return whether models are loaded: until then all is answered 503."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def test_a_terminal_that_is_gone_loses_nothing(folder: Path) -> None:
    """The live view and the table have nowhere to go; what was answered is recorded, and the end is no error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace", "serve", "jobs.py:pipeline", "--port", "0", "-o", "served"]
    with open(theirs, "rb") as terminal:
        process = subprocess.Popen(
            command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
        )
    said = b""
    while b"busy" not in said:
        said += os.read(ours, 4096)
    address = re.search(rb"http://[0-9.:]+", said)[0].decode()
    image = PHOTOGRAPHS[0].path.read_bytes()
    give_up_at = time.monotonic() + 60
    while not _is_ready(address):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    with urllib.request.urlopen(f"{address}/v1/jobs?wait=60s", image, timeout=60) as answer:
        assert answer.status == 200
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    info = read_run(folder / "served").info
    assert info.status != "running"
    assert info.counters.delivered >= 1


@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--token-file", "token"], []])
def test_who_opens_it_to_all_is_warned(folder: Path, options: list[str]) -> None:
    """Where others can reach it and nothing is asked of them."""
    (folder / "token").write_text("secret")
    service = Service(folder, "--queue", "sqlite:///jobs.db", *options)
    _, _, said = service.end()
    assert ("warning: others can reach 0.0.0.0" in said) == (len(options) == 2)


@pytest.mark.parametrize(
    "options", [["jobs.py:pipeline"], ["jobs.py:pipeline", "--supervise", "1"], ["--queue", "sqlite:///a"]]
)
def test_who_was_refused_is_counted_at_the_end(folder: Path, options: list[str]) -> None:
    """Also what never became a job."""
    service = Service(folder, *options)
    service.wait_until_ready()
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    _, out, said = service.end()
    assert "requests refused: 1 http.body_size" in out, said


def refused(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return exit status and what was said of a command that does not begin to serve."""
    command = [sys.executable, "-m", "headrace", "serve", *arguments, "--port", "0"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stderr
