"""Four pipelines in good health, of the shapes that faults are injected into.

    download_heavy      fetch over HTTP, decode at scale, resize, preprocess, process (ONNX), deliver by HTTP;
                        limited by the cores, which all stages share
    decode_heavy        fetch (bytes), decode in full, resize, preprocess, process (computed), deliver;
                        limited by the cores, most of which decode takes
    python_preprocess   fetch (bytes), preprocess in pure Python, process (computed), deliver;
                        limited by the GIL and the cores
    device_heavy        decode, crop (fan-out), preprocess, process (emulated device), join, deliver;
                        limited by the device, which is kept fed

An item takes 2 to 8 ms of CPU time on a usual machine, so that two cores do some hundred a second. Elsewhere these are other
numbers; a fault is judged by ratios.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.image_server import ServerSettings
from headrace.base.plan import Plan
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.stages import images
from headrace.stages.decode import DecodeStage
from headrace.stages.fetch import FetchStage
from headrace.stages.inputs import BytesInput, ImageInput
from headrace.stages.module import Module, ModuleContext
from headrace.stages.stage import Fan, Joined, Stage, fan_out, join, stage

#: Different images of a run.
NUM_IMAGES = 16
MEGAPIXELS = {"download_heavy": 2.0, "decode_heavy": 2.5, "device_heavy": 0.5}
#: Crops that `device_heavy` cuts from an image, and calls of the model for a batch of them: each crop and its mirror image.
CROPS, CALLS = 4, 2


class Classifier(Module):
    """The small model that names scenes, by ONNX Runtime, on each image and its mirror image."""

    model: Path | None = SCENES_MODEL_PATH
    input = ImageInput(short_side=256, crop=224)

    def load(self, context: ModuleContext) -> None:
        """Open the model that the Plan names."""
        self.open_model = context.open_model()

    def preprocess(self, value: np.ndarray) -> np.ndarray:
        """Return float32 (3, 224, 224)."""
        return images.normalize(value)

    def process(self, batch: np.ndarray) -> list[int]:
        """Return the number of each image's scene."""
        logits: np.ndarray = self.open_model(batch) + self.open_model(np.ascontiguousarray(batch[..., ::-1]))
        return [int(best) for best in logits.argmax(axis=1)]


class Computed(Module):
    """A model that costs a stated CPU time per call and per item, in C without the GIL.

    Args:
        call_seconds: Per call.
        item_seconds: Per item of the batch.
    """

    def __init__(self, call_seconds: float, item_seconds: float) -> None:
        self.call_seconds = call_seconds
        self.item_seconds = item_seconds

    def process(self, batch: Any) -> list[int]:
        """Return a zero for each item."""
        work.burn(self.call_seconds + self.item_seconds * len(batch))
        return [0] * len(batch)


class ComputedOnImages(Computed):
    """The same, on images."""

    input = ImageInput(short_side=256, crop=224)

    def preprocess(self, value: np.ndarray) -> np.ndarray:
        """Return float32 (3, 224, 224)."""
        return images.normalize(value)


class ComputedOnBytes(Computed):
    """The same, on bytes that pure Python prepares.

    Args:
        call_seconds: Per call.
        item_seconds: Per item of the batch.
        python_seconds: CPU time of preparing one item.
    """

    input = BytesInput()

    def __init__(self, call_seconds: float, item_seconds: float, python_seconds: float) -> None:
        super().__init__(call_seconds, item_seconds)
        self.python_seconds = python_seconds

    def preprocess(self, value: bytes) -> np.ndarray:
        """Return float32 (64,)."""
        work.spin(self.python_seconds)
        return np.frombuffer(value[:64], np.uint8).astype(np.float32)


class OnDevice(Classifier):
    """A model on the emulated device, which needs no file."""

    model: Path | None = None


def cut(image: np.ndarray) -> Fan:
    """Return the four quarters of an image."""
    height, width = image.shape[0] // 2, image.shape[1] // 2
    corners = [(top, left) for top in (0, height) for left in (0, width)]
    return Fan([image[top : top + height, left : left + width] for top, left in corners])


def collect(joined: Joined) -> list[Any]:
    """Return the results of all crops."""
    return joined.results


def prepare_crop(crop: np.ndarray) -> np.ndarray:
    """Return float32 (3, 112, 112)."""
    return images.normalize(images.fit(crop, ImageInput(short_side=112, crop=112)))


def download_heavy() -> Case:
    """Return the shape that downloads its images and posts its results."""
    return Case(
        shape="download_heavy",
        stages=(FetchStage("fetch"), *Classifier().stages()),
        payloads=_photographs("download_heavy"),
        plan=Plan()
        .with_settings(["fetch.workers=12", "process.batch=8", "model.threads=1", "deliver.workers=4"])
        .allowing(["127.0.0.1"]),  # where the shape's own server is
        server=ServerSettings(latency_seconds=0.015, callback_seconds=0.002),
    )


def decode_heavy() -> Case:
    """Return the shape that decodes every pixel."""
    return Case(
        shape="decode_heavy",
        stages=(FetchStage("fetch"), *ComputedOnImages(0.0003, 0.0005).stages()),
        payloads=_photographs("decode_heavy"),
        plan=Plan().with_settings(["fetch.workers=2", "process.batch=8", "decode.scale=full"]),
    )


def python_preprocess() -> Case:
    """Return the shape whose preprocessing is a loop of pure Python."""
    return Case(
        shape="python_preprocess",
        stages=(FetchStage("fetch"), *ComputedOnBytes(0.0003, 0.001, 0.002).stages()),
        payloads=_records,
        plan=Plan().with_settings(["fetch.workers=2", "preprocess.workers=2", "process.batch=8"]),
    )


def device_heavy() -> Case:
    """Return the shape that cuts crops from each image and gives them to a device."""
    module = OnDevice()
    process = next(one for one in module.stages() if one.name == "process")
    stages: tuple[Stage, ...] = (
        DecodeStage("decode", ImageInput(short_side=256)),
        fan_out("crop", cut),
        stage("preprocess", prepare_crop, releases_gil=True),
        process,
        join("join", collect),
    )
    return Case(
        shape="device_heavy",
        stages=stages,
        payloads=_photographs("device_heavy"),
        plan=Plan().with_settings(
            ["crop.executor=inline", "process.batch=16", "model.engine=emulated",
             "model.options.launch_seconds=0.008", "model.options.item_seconds=0.001"]
        ),
    )  # fmt: skip


def _photographs(shape: str) -> Callable[[], Sequence[bytes]]:
    return functools.partial(work.photographs, NUM_IMAGES, MEGAPIXELS[shape])


def _records() -> Sequence[bytes]:
    return [bytes([number]) * 2048 for number in range(NUM_IMAGES)]


#: Makes a healthy case, by shape.
SHAPES: Mapping[str, Callable[[], Case]] = {
    "download_heavy": download_heavy,
    "decode_heavy": decode_heavy,
    "python_preprocess": python_preprocess,
    "device_heavy": device_heavy,
}
