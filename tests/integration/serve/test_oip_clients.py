"""The Open Inference Protocol as its clients meet it: `headrace serve` in a process of its own, asked by NVIDIA's clients."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.samples.catalogue import PHOTOGRAPHS
from tests.integration.serve.test_serve_command import Service

tritonclient = pytest.importorskip("tritonclient")
http_client = pytest.importorskip("tritonclient.http")
grpc_client = pytest.importorskip("tritonclient.grpc")

JOBS = """
import time
import headrace as hr

class Means(hr.Module):
    input = hr.ArrayInput(dtype="float32", shape=(2,))

    def process(self, batch):
        time.sleep(0.002)
        return [{"mean": one.mean(), "of": "two numbers"} for one in batch]

class Sizes(hr.Module):
    input = hr.ImageInput(short_side=32, crop=32)

    def process(self, batch):
        return [image.shape for image in batch]

pipeline = hr.Pipeline(hr.items([]), modules={"means": Means(), "sizes": Sizes()})
"""


class Clients:
    """A service, and a client for each transport."""

    def __init__(self, folder: Path) -> None:
        (folder / "jobs.py").write_text(JOBS)
        self.service = Service(folder, "jobs.py:pipeline", "--grpc-port", "0")
        while not (found := re.search(r"listening on grpc://(\S+)", self.service.said)):
            self.service.said += self.service.process.stderr.readline()
        self.service.wait_until_ready()
        self.places = [(http_client, self.service.url.removeprefix("http://")), (grpc_client, found[1])]
        self.all = [(kind, kind.InferenceServerClient(place)) for kind, place in self.places]

    def close(self) -> None:
        """End all."""
        for _, client in self.all:
            client.close()
        self.service.end()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Open one service for all tests."""
    opened = Clients(tmp_path_factory.mktemp("served"))
    yield opened
    opened.close()


@pytest.fixture(params=["http", "grpc"])
def pair(request: pytest.FixtureRequest, clients: Clients) -> tuple[Any, Any]:
    """Return the module of one transport and a client of it."""
    return clients.all[["http", "grpc"].index(request.param)]


def make_input(kind: Any, name: str, array: np.ndarray, datatype: str, **options: Any) -> Any:
    """Return an input of a client."""
    made = kind.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **options)
    return made


def test_numbers_go_and_come(pair: tuple[Any, Any]) -> None:
    """With id, urgency and time."""
    kind, client = pair
    numbers = np.array([[1, 2], [3, 5]], np.float32)
    got = client.infer(
        "means", [make_input(kind, "input", numbers, "FP32")], request_id="7", priority=1, timeout=20_000_000
    )
    assert got.as_numpy("mean").tolist() == [[1.5], [4.0]]
    assert got.as_numpy("mean").dtype == np.float32
    assert got.as_numpy("of").ravel().tolist() == [b"two numbers"] * 2


def test_images_go_as_bytes(pair: tuple[Any, Any]) -> None:
    """A JPEG is one element; text comes back as bytes."""
    kind, client = pair
    images = np.array([[photo.path.read_bytes()] for photo in PHOTOGRAPHS[:2]], np.object_)
    got = client.infer("sizes", [make_input(kind, "image", images, "BYTES")])
    assert got.as_numpy("result").ravel().tolist() == [b"[32,32,3]"] * 2


def test_json_is_enough(clients: Clients) -> None:
    """Over HTTP inputs and outputs need not be bytes."""
    kind, client = clients.all[0]
    numbers = make_input(kind, "input", np.array([[1, 2]], np.float32), "FP32", binary_data=False)
    wanted = [kind.InferRequestedOutput("mean", binary_data=False)]
    assert client.infer("means", [numbers], outputs=wanted).as_numpy("mean").tolist() == [[1.5]]


def test_errors_are_said(pair: tuple[Any, Any]) -> None:
    """Unknown models, wrong shapes, and images that are none."""
    kind, client = pair
    numbers = np.array([[1, 2, 3]], np.float32)
    asked = [
        ("other", "input", numbers, "FP32", "there is no model other"),
        ("means", "input", numbers, "FP32", "shape"),
    ]
    asked.append(("sizes", "image", np.array([[b"no image"]], np.object_), "BYTES", "decode"))
    for model, name, array, datatype, said in asked:
        with pytest.raises(tritonclient.utils.InferenceServerException, match=said):
            client.infer(model, [make_input(kind, name, array, datatype)])


def test_the_service_says_how_it_is(pair: tuple[Any, Any]) -> None:
    """Health, metadata, configuration, statistics, index."""
    kind, client = pair
    options = {"as_json": True} if kind is grpc_client else {}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("means", "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata(**options)["name"] == "headrace"
    assert client.get_model_metadata("sizes", **options)["inputs"][0]["datatype"] == "BYTES"
    config = client.get_model_config("means", **options)
    assert config.get("config", config)["max_batch_size"] == 256
    assert len(client.get_inference_statistics(**options)["model_stats"]) == 2
    index = client.get_model_repository_index(**options)
    assert {one["name"] for one in (index["models"] if isinstance(index, dict) else index)} == {"means", "sizes"}


def test_a_time_that_has_passed_ends_the_request(pair: tuple[Any, Any]) -> None:
    """One microsecond is over before any stage begins."""
    kind, client = pair
    numbers = make_input(kind, "input", np.array([[1, 2]], np.float32), "FP32")
    with pytest.raises(tritonclient.utils.InferenceServerException, match=r"deadline"):
        client.infer("means", [numbers], timeout=1)


def test_many_clients_get_their_own_answers(clients: Clients) -> None:
    """Over both transports at once, while their items share batches."""
    answers: dict[float, float] = {}

    def ask(kind: Any, address: str, first: int) -> None:
        with kind.InferenceServerClient(address) as client:
            for number in range(first, first + 20):
                numbers = make_input(kind, "input", np.full((1, 2), number, np.float32), "FP32")
                answers[number] = client.infer("means", [numbers]).as_numpy("mean")[0, 0]

    threads = [threading.Thread(target=ask, args=(*clients.places[number % 2], 100 * number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 * 20
    assert all(asked == got for asked, got in answers.items())
