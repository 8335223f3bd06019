from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.profiler.layers import measure_layers

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def exported(path: Path) -> Path:
    """Write convolution, ReLU, pooling and classifier for any number of images of 3 x 32 x 32."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 256, 10)
    )
    batch = torch.export.Dim("n", min=1, max=64)
    program = torch.export.export(model.eval(), (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(program, str(path))
    return path


def test_an_exported_program_gives_the_operations_by_hand(tmp_path: Path) -> None:
    """The same table from PyTorch, at a batch size other than the exported one; the number of threads is put back."""
    before = torch.get_num_threads()
    document = measure_layers(
        exported(tmp_path / "m.pt2"), engine="torch", threads=1, batch_size=5, inputs=None, seconds=0.5
    )
    flops = {layer.operator: layer.flops for layer in document.layers}
    assert flops == {
        "conv2d": 5 * 2 * 16 * 32 * 32 * 27,
        "relu": 5 * 16 * 32 * 32,
        "max_pool2d": 5 * 4 * 16 * 16 * 16,
        "flatten": 0,
        "linear": 5 * 2 * 4096 * 10,
    }
    assert sum(layer.seconds for layer in document.layers) == pytest.approx(document.latency_seconds)
    assert document.num_calls > 0
    assert not any("not in the engine's profile" in warning for warning in document.warnings)
    assert any("no ONNX file" in warning for warning in document.warnings)
    assert torch.get_num_threads() == before


def test_what_torch_cannot_measure_says_why(tmp_path: Path) -> None:
    """A missing file, one of another kind, inputs of another shape, an option."""
    settings: dict[str, Any] = {"engine": "torch", "threads": 1, "batch_size": 2, "inputs": None, "calls": 4}
    with pytest.raises(EngineError, match="does not exist"):
        measure_layers(tmp_path / "none.pt2", **settings)
    (tmp_path / "text.pt2").write_text("text")
    with pytest.raises(EngineError, match=r"torch\.export\.save"):
        measure_layers(tmp_path / "text.pt2", **settings)
    path = exported(tmp_path / "m.pt2")
    with pytest.raises(EngineError, match="31 for 32"):
        measure_layers(path, **{**settings, "inputs": np.zeros((2, 3, 31, 32), np.float32)})
    with pytest.raises(SettingsError, match="takes none"):
        measure_layers(path, **{**settings, "options": {"spin": True}})
