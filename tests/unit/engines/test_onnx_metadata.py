"""What a model file says of itself is the same on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engines.onnx_metadata import read_metadata
from headrace.samples.catalogue import SCENES_MODEL_PATH
from headrace.validate.variant_spec import parse_variant


def test_engines_tell_the_same() -> None:
    """The names of the classes, which modules ask for, do not go away with another engine."""
    on_onnx, on_openvino = (parse_variant(f"{SCENES_MODEL_PATH}@{engine}").open() for engine in ("onnx", "openvino"))
    assert "names" in on_onnx.metadata
    assert dict(on_openvino.metadata) == dict(on_onnx.metadata)


@pytest.mark.parametrize("content", [b"", b"no model", b"\xff" * 40, b"\x72\xff\xff\xff\xff\x0f", b"\x72\x05\x0a"])
def test_what_is_no_model_says_nothing(tmp_path: Path, content: bytes) -> None:
    """Whoever opens it says what is wrong with it."""
    (tmp_path / "model.onnx").write_bytes(content)
    assert read_metadata(tmp_path / "model.onnx") == {}
    assert read_metadata(tmp_path / "gone.onnx") == {}
