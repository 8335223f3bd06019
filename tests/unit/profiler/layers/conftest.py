"""The module that writes ONNX models, loaded by path: test folders are not packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def models() -> ModuleType:
    """Return `layer_models`; skip without the package that writes ONNX files."""
    pytest.importorskip("onnx", reason="models are written by the onnx package; pip install onnx")
    spec = importlib.util.spec_from_file_location("layer_models", Path(__file__).with_name("layer_models.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
