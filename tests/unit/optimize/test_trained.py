"""Techniques that train: what they make, when they stop, and what is kept of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_pruning")

from headrace.ledger.ledger import Ledger  # noqa: E402
from headrace.optimize.artifacts import ArtifactStore  # noqa: E402
from headrace.optimize.search import Goal, optimize  # noqa: E402
from headrace.optimize.trained import converted  # noqa: E402
from headrace.runs.formats.optimization import OptimizationDocument  # noqa: E402
from headrace.validate.golden import Golden  # noqa: E402

torch.set_num_threads(1)  # of networks this small, more only wait for one another
RECIPE = Path(__file__).with_name("small_recipe.py")


@pytest.fixture
def bars() -> Any:
    """The module of the small recipe, fresh."""
    spec = importlib.util.spec_from_file_location("small_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["small_recipe"] = module
    spec.loader.exec_module(module)
    return module


def searched(bars: Any, folder: Path, recipe: Any, ledger: Ledger | None = None) -> OptimizationDocument:
    """Search with the recipe."""
    store = ArtifactStore(folder / "artifacts")
    calibration, _ = bars.make_items(64, 10)
    inputs, labels = bars.make_items(1200, 11)
    return optimize(
        Path(converted(recipe, "small_recipe:recipe", store).file),
        store=store, goal=Goal(max_drop=0.02, batch=8), recipe=recipe, memory=ledger.attempts if ledger else None,
        calibration=Golden(name="calibration", inputs=calibration, labels=None, sha256="c"),
        golden=Golden(name="golden", inputs=inputs, labels=labels, sha256="g"),
    )  # fmt: skip


@pytest.mark.usefixtures("speeds")
def test_a_pruned_and_quantized_network_is_recommended_and_the_cliff_is_kept_as_a_reason(
    bars: Any, tmp_path: Path
) -> None:
    """Two rounds stand, the third is spoiled: it is in the ledger with its reason, and nothing is made of it."""
    bars.recipe.spoil_after = 2
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(bars, tmp_path, bars.recipe, ledger)
        by_name = {(one.technique, one.settings["engine"]): one for one in document.attempts}
        chosen = next(one for one in document.attempts if one.candidate == document.recommended)
        assert chosen.technique in ("pruned-1-int8", "pruned-2-int8")
        assert (chosen.kind, chosen.verdict, chosen.settings["engine"]) == ("trained", "accept", "openvino")
        cliff = by_name["pruned-3", "onnx"]
        assert (cliff.verdict, cliff.gate) == ("reject", "accuracy")
        assert "rolled back" in cliff.says
        assert ("pruned-3-int8", "onnx") not in by_name
        assert (by_name["distilled", "onnx"].verdict, by_name["zeroed", "onnx"].gate) == ("reject", "speed")
        assert "pruned-3" in {one.technique for one in ledger.attempts.attempts()}
        first, second = by_name["pruned-1", "onnx"].artifact, by_name["pruned-2", "onnx"].artifact
        assert (first.parent, second.parent) == (document.model.sha256, first.sha256)
        assert second.num_bytes < first.num_bytes < document.model.num_bytes
