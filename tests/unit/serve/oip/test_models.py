"""What clients are told of a pipeline's models, and which inputs are let in."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.messages import Tensor
from headrace.serve.oip.models import MAX_ITEMS, models_of


def module(wanted: Any) -> hr.Module:
    """Return a module with this input."""

    class Echo(hr.Module):
        input = wanted

        def process(self, batch: Any) -> Sequence[Any]:
            return list(batch)

    return Echo()


def pipeline(wanted: Any) -> hr.Pipeline:
    """Return a pipeline of such a module."""
    return hr.Pipeline(hr.items([]), module=module(wanted), name="echo")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (hr.ImageInput(short_side=32), {"name": "image", "datatype": "BYTES", "shape": [-1, 1]}),
        (hr.BytesInput(), {"name": "bytes", "datatype": "BYTES", "shape": [-1, 1]}),
        (hr.TextInput(), {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}),
        (hr.ArrayInput(dtype="float16", shape=(3, None)), {"name": "input", "datatype": "FP16", "shape": [-1, 3, -1]}),
        (hr.ArrayInput(dtype="uint8"), {"name": "input", "datatype": "UINT8", "shape": [-1, -1]}),
        (hr.ArrayInput(), {"name": "input", "datatype": "FP32", "shape": [-1, -1]}),
    ],
)
def test_a_module_says_what_it_takes(wanted: Any, expected: dict[str, Any]) -> None:
    """By its input; what it gives is known once it has answered."""
    model = models_of(pipeline(wanted))["echo"]
    said = model.describe()
    assert (said["inputs"], said["outputs"]) == ([expected], [])
    configured = model.configure()
    assert configured["input"][0]["dims"] == expected["shape"][1:]
    assert configured["max_batch_size"] == MAX_ITEMS


def test_each_task_is_a_model() -> None:
    """And stages alone are one, by whether they begin with a download."""
    several = hr.Pipeline(hr.items([]), modules={"cats": module(hr.ImageInput()), "dogs": module(hr.TextInput())})
    assert {name: model.task for name, model in models_of(several).items()} == {"cats": "cats", "dogs": "dogs"}
    assert list(models_of(hr.Pipeline(hr.items([]), module=module(hr.TextInput()), name="jobs/a.py:dogs"))) == ["dogs"]
    fetching = hr.Pipeline(hr.items([]), stages=[hr.fetch("fetch"), hr.stage("half", len)])
    assert models_of(fetching)["pipeline"].input.datatype == "BYTES"
    plain = hr.Pipeline(hr.items([]), stages=[hr.stage("half", len)])
    assert not models_of(plain)["pipeline"].is_declared


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "code"),
    [
        ("other", "FP32", [1, 3, 4], "oip.unknown_input"),
        ("input", "FP33", [1, 3, 4], "oip.datatype"),
        ("input", "FP64", [1, 3, 4], "oip.datatype"),
        ("input", "BYTES", [1, 1], "oip.datatype"),
        ("input", "FP32", [], "oip.items"),
        ("input", "FP32", [0, 3, 4], "oip.items"),
        ("input", "FP32", [10**12, 3, 4], "oip.items"),
        ("input", "FP32", [-1, 3, 4], "oip.shape"),
        ("input", "FP32", [1, 4, 4], "oip.shape"),
        ("input", "FP32", [1, 3], "oip.shape"),
        ("input", "FP32", [3, 4], "oip.shape"),
        ("input", "FP32", [1] * 33, "oip.shape"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(name: str, datatype: str, shape: list[int], code: str) -> None:
    """Before it reaches a batch with the items of others."""
    model = models_of(pipeline(hr.ArrayInput(dtype="float32", shape=(3, None))))["echo"]
    model.check_input("input", "FP32", [2, 3, 9])
    with pytest.raises(OipError) as refused:
        model.check_input(name, datatype, shape)
    assert refused.value.code == code


@pytest.mark.parametrize(("shape", "fits"), [([2], True), ([2, 1], True), ([2, 2], False), ([1, 1, 1], False)])
def test_images_come_one_in_a_row_or_without_rows(shape: list[int], fits: bool) -> None:
    """One element is one image."""
    model = models_of(pipeline(hr.ImageInput()))["echo"]
    if fits:
        model.check_input("image", "BYTES", shape)
    else:
        with pytest.raises(OipError):
            model.check_input("image", "BYTES", shape)


def test_what_is_not_declared_is_learned() -> None:
    """Axes that differ are free from then on; nothing is refused for it."""
    model = models_of(pipeline(hr.ArrayInput()))["echo"]
    for length in (4, 4, 5):
        array = np.zeros((1, 3, length), "u1")
        tensor = Tensor("input", "UINT8", array.shape, array)
        model.learn_input(tensor)
        model.learn_outputs([Tensor("result", "UINT8", array.shape, array)])
        said = model.describe()
    assert said["inputs"] == [{"name": "input", "datatype": "UINT8", "shape": [-1, 3, -1]}]
    assert said["outputs"] == [{"name": "result", "datatype": "UINT8", "shape": [-1, 3, -1]}]
    model.check_input("input", "FP64", [1, 2])


@pytest.mark.parametrize(
    "said", [{"dtype": "float33"}, {"dtype": "U5"}, {"shape": (3,)}, {"dtype": "u1", "shape": (0,)}]
)
def test_a_declaration_is_checked(said: dict[str, Any]) -> None:
    """When the module is written."""
    with pytest.raises(SettingsError):
        hr.ArrayInput(**said)
