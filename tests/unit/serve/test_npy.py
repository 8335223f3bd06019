"""Arrays that come to `/v1/jobs` as NumPy files."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import BadMessage
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import JobsApi
from headrace.serve.npy import arrays_of, read_npy
from tests.unit.serve.asking import Asker, Later
from tests.unit.serve.oip.sums import Sums
from tests.unit.serve.test_jobs_api import Door, body_of

ANY = hr.ArrayInput()
PAIR = hr.ArrayInput(dtype="float32", shape=(2,))


def saved(array: np.ndarray, **options: Any) -> bytes:
    """Return the NumPy file of an array."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 4), np.uint8),
        np.array(7.5),
        np.array([True, False]),
    ],
)
def test_what_was_saved_is_read(array: np.ndarray) -> None:
    """Whatever its type, shape and order."""
    read = read_npy(saved(array), ANY)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert np.array_equal(read, array)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"\xff\xd8jpeg", "send a NumPy file"),
        (b"", "send a NumPy file"),
        ("https://example.com/a.npy", "nothing is fetched"),
        (saved(np.arange(4, dtype=np.float32))[:-1], "has 16 bytes, got 15"),
        (saved(np.arange(4, dtype=np.float32)) + b"x", "has 16 bytes, got 17"),
        (saved(np.array([{"a": 1}], object), allow_pickle=True), "has dtype object"),
        (saved(np.array(["text"])), "expected one of numbers"),
        (saved(np.zeros(2, np.float32)).replace(b"(2,)", b"(9,)"), "has 36 bytes, got 8"),
        (saved(np.zeros(2)).replace(b"(2,), }", b"((((((("), "send a NumPy file"),
        (b"\x93NUMPY\x09\x00" + saved(np.zeros(2))[8:], "send a NumPy file"),
        (saved(np.zeros(2, np.float64)), "expected float32"),
        (saved(np.zeros(3, np.float32)), "has shape [3]; expected [2]"),
        (saved(np.zeros((2, 1), np.float32)), "expected [2]"),
    ],
)
def test_what_is_no_such_array_is_refused(payload: Any, said: str) -> None:
    """With what came, and what was expected."""
    with pytest.raises(BadMessage, match=r"message\.array") as refused:
        read_npy(payload, PAIR)
    assert said in refused.value.reason


@pytest.mark.parametrize("payload", [b"\xff\xd8jpeg", "https://example.com/a.jpg", b"\x93NUM"])
def test_who_wants_any_value_gets_what_is_no_file_as_it_is(payload: Any) -> None:
    """`hr.ArrayInput()` is the value from the job, of any type."""
    assert read_npy(payload, ANY) is payload


def test_a_header_that_lies_of_its_size_costs_nothing() -> None:
    """An array of terabytes is refused by the bytes that came, before there is room for it."""
    payload = saved(np.zeros(2, np.float32))
    start = payload.index(b"(2,)")
    payload = payload[:start] + payload[start:].replace(b"(2,), }" + b" " * 11, b"(999999999999,), }")
    with pytest.raises(BadMessage, match="999,996 bytes, got 8"):
        read_npy(payload, ANY)


def test_only_modules_that_get_the_job_itself_take_arrays() -> None:
    """Behind a stage of the user's own, what comes in is that stage's matter."""
    items = hr.items([])
    assert arrays_of(hr.Pipeline(items, module=Sums())) == {"": Sums.input}
    assert arrays_of(hr.Pipeline(items, stages=[hr.stage("read", len), *Sums().stages()])) == {}


def test_a_pipeline_of_arrays_gets_arrays() -> None:
    """From the bytes of a file and from the `data` of an envelope; other bytes are refused with 422."""
    door, routes = Door(), Routes()
    JobsApi(door, Later(), calls_back=False, arrays={"": PAIR}).add_to(routes)
    payload = saved(np.array([1, 2], np.float32))
    envelope = json.dumps({"data": base64.b64encode(payload).decode()}).encode()
    routes.answer(Asker().request("POST", "/v1/jobs", payload))
    routes.answer(Asker().request("POST", "/v1/jobs", envelope, content_type="application/json"))
    assert [work.payload.tolist() for work in door.works] == [[1, 2], [1, 2]]
    refused = routes.answer(Asker().request("POST", "/v1/jobs", b"\xff\xd8jpeg"))
    assert (refused.status, body_of(refused)["code"], len(door.works)) == (422, "message.array", 2)
