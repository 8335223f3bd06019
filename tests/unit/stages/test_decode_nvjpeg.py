"""nvJPEG as a decoder: refused without a GPU, and with a stand-in for NVIDIA's library called as its documentation says."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import headrace as hr
from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.plan import DecodePlan
from headrace.stages import decode_nvjpeg
from headrace.stages.decode import DecodeChain

Encode = Callable[..., bytes]
PLAN = DecodePlan(decoder="nvjpeg")


class _Pixels:
    def __init__(self, pixels: np.ndarray) -> None:
        self._pixels = pixels

    def cpu(self) -> np.ndarray:
        return self._pixels


class _StandIn:
    """Decodes by simplejpeg what NVIDIA's library would; what begins otherwise it does not know."""

    def __init__(self, *, device_id: int, backends: list[Any], options: str) -> None:
        self.given = (device_id, backends, options)

    def decode(self, data: bytes, params: Any) -> _Pixels | None:
        assert params == {"apply_exif_orientation": False}
        return _Pixels(simplejpeg.decode_jpeg(data)) if data[:2] == b"\xff\xd8" else None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A machine with the driver and nvImageCodec."""
    module: Any = types.ModuleType("nvidia.nvimgcodec")
    module.BackendKind = types.SimpleNamespace(HW_GPU_ONLY="hardware", GPU_ONLY="gpu", HYBRID_CPU_GPU="both")
    module.Backend, module.Decoder, module.DecodeParams = str, _StandIn, dict
    package: Any = types.ModuleType("nvidia")
    package.nvimgcodec = module
    monkeypatch.setitem(sys.modules, "nvidia", package)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    monkeypatch.setattr(decode_nvjpeg, "has_driver", lambda: True)
    found: types.ModuleType = module
    return found


def test_without_a_driver_the_run_is_refused(
    encode: Encode, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Plan that names nvJPEG ends before the first job where there is no GPU, with the reason and what else there is."""
    monkeypatch.setattr(decode_nvjpeg, "has_driver", lambda: False)
    pipeline = hr.Pipeline(
        hr.items([encode(picture, "JPEG")]), stages=[hr.decode("decode", hr.ImageInput())], delivery=hr.collect()
    )
    with pytest.raises(SettingsError, match=r"no NVIDIA driver; expected auto, simplejpeg, opencv or pillow"):
        hr.run(pipeline, hr.Plan.from_table({"decode": {"decoder": "nvjpeg"}}))


def test_without_its_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver is there and nvImageCodec is not, the message says what to install."""
    monkeypatch.setattr(decode_nvjpeg, "has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(SettingsError, match="pip install nvidia-nvimgcodec-cu12"):
        DecodeChain(PLAN, None, {})


def test_without_a_device_it_is_refused(library: Any) -> None:
    """What the library says of a machine without a device is handed on."""

    def fail(**options: Any) -> None:
        raise RuntimeError("no CUDA-capable device is detected")

    library.Decoder = fail
    with pytest.raises(SettingsError, match=r"finds no GPU .no CUDA-capable device is detected"):
        DecodeChain(PLAN, None, {})


@pytest.mark.usefixtures("library")
def test_jpegs_come_from_it_upright_and_whole(encode: Encode, picture: Image.Image) -> None:
    """It decodes JPEGs, every pixel whatever the model takes, turned as EXIF says; other formats come from other decoders."""
    exif = Image.Exif()
    exif[274] = 6
    turned, counts = encode(picture, "JPEG", exif=exif.tobytes()), dict[str, int]()
    chain = DecodeChain(PLAN, 16, counts)
    image = chain.decode(turned)
    assert image.shape == (picture.width, picture.height, 3)
    assert (image == DecodeChain(DecodePlan(scale="full"), None, {}).decode(turned)).all()
    chain.decode(encode(picture, "PNG"))
    chain.decode(encode(picture.convert("CMYK"), "JPEG"))
    assert counts.pop("decode.decoder.nvjpeg") == 1
    assert sum(counts.values()) == 2


@pytest.mark.usefixtures("library")
def test_a_torn_jpeg_is_refused_before_it(encode: Encode, picture: Image.Image) -> None:
    """Data that is missing is a coded rejection, whatever nvJPEG would make of it."""
    data = encode(picture, "JPEG")
    with pytest.raises(DecodeRejected, match=r"decode\.corrupt"):
        DecodeChain(PLAN, None, {}).decode(data[: len(data) // 2] + b"\xff\xd9")
