"""What an NVIDIA GPU could run is told on machines that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.engines.onnx_engine import why_not
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.catalogue import Methods
from headrace.optimize.goal import Goal
from headrace.optimize.gpu import GPU
from headrace.optimize.search import optimize


def test_gpu_engines_are_among_what_was_not_tried(case: Any, tmp_path: Path) -> None:
    """CUDA, TensorRT and Torch-TensorRT, each with what is missing."""
    if why_not("cuda") is None:
        pytest.skip("this ONNX Runtime has CUDA")
    document = optimize(
        case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=Goal(), methods=Methods(of_the_file=GPU)
    )
    skipped = {one.technique: one.why for one in document.skipped}
    for name in ("cuda", "tensorrt", "torch-tensorrt"):
        assert "is not available here, because" in skipped[name]
