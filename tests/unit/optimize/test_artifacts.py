"""Models are kept whole, whatever number of files they are, under one hash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.base.errors import EngineError
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.engines.model_files import model_files
from headrace.ledger.ledger import Ledger
from headrace.optimize.artifacts import ArtifactStore
from headrace.validate.variant_spec import parse_variant


def in_two(case: Any, folder: Path, location: str = "net.onnx.data") -> Path:
    """Return a model like the case's whose weights are in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / location).parent.mkdir(exist_ok=True)
    model = onnx.load(str(case.model))
    onnx.save(
        model, str(folder / "net.onnx"), save_as_external_data=True, location=location, size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    return folder / "net.onnx"


@pytest.mark.parametrize("location", ["net.onnx.data", "weights/all.bin"])
def test_weights_beside_a_model_are_kept_with_it(case: Any, tmp_path: Path, location: str) -> None:
    """Under the names that the model has for them, so that it opens when the given files are gone; the hash is of all."""
    given, store = in_two(case, tmp_path / "given", location), ArtifactStore(tmp_path / "artifacts")
    expected, size = model_files(given).sha256(), model_files(given).num_bytes
    kept = store.add(given)
    shutil.rmtree(tmp_path / "given")
    assert (kept.sha256, kept.num_bytes) == (expected, size)
    assert model_files(Path(kept.file)).sha256() == expected
    answers = [parse_variant(str(file)).open()(case.inputs[:2]) for file in (case.model, kept.file)]
    np.testing.assert_array_equal(*answers)


def test_other_weights_beside_the_same_file_are_another_model(case: Any, tmp_path: Path) -> None:
    """Else the first one's weights would answer for the second."""
    given, store = in_two(case, tmp_path / "given"), ArtifactStore(tmp_path / "artifacts")
    first = store.add(given)
    weights = given.with_name("net.onnx.data")
    weights.write_bytes(bytes(len(weights.read_bytes())))
    assert store.add(given).sha256 != first.sha256
    assert store.find(first.sha256) == first


def test_openvino_weights_are_kept_beside_its_xml(case: Any, tmp_path: Path) -> None:
    """OpenVINO finds them by their name."""
    openvino = pytest.importorskip("openvino")
    (tmp_path / "given").mkdir()
    openvino.save_model(openvino.convert_model(str(case.model)), tmp_path / "given" / "net.xml", compress_to_fp16=False)
    kept = ArtifactStore(tmp_path / "artifacts").add(tmp_path / "given" / "net.xml")
    shutil.rmtree(tmp_path / "given")
    assert len(parse_variant(f"{kept.file}@openvino").open()(case.inputs[:2])) == 2


def test_a_model_without_its_weights_is_not_kept(case: Any, tmp_path: Path) -> None:
    """It is said which file is missing, and nothing is left in the store."""
    given = in_two(case, tmp_path / "given")
    given.with_name("net.onnx.data").unlink()
    with pytest.raises(EngineError, match=r"net\.onnx\.data.*not there"):
        ArtifactStore(tmp_path / "artifacts").add(given)
    assert not list(tmp_path.glob("artifacts/*"))


@pytest.mark.full
@pytest.mark.usefixtures("speeds")
def test_a_model_of_several_files_is_optimized_replayed_and_taken_back(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, with the given files gone after the search."""
    given, ledger, plan = in_two(case, tmp_path / "given"), str(tmp_path / "ledger.sqlite"), tmp_path / "plan.toml"
    sets = ["--data", str(case.folder / "calibration.npz"), "--golden", str(case.folder / "golden.npz")]
    more = ["--max-drop", "2pt", "--no-layout", "--ledger", ledger, "-o", str(plan)]
    assert main(["optimize", str(given), *sets, *more]) == 0
    shutil.rmtree(given.parent)
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        attempts = opened.attempts.attempts()
    same_file = next(one for one in attempts if one.technique == "openvino")
    accepted = next(one for one in attempts if one.verdict == "accept" and one.technique == "int8")
    capsys.readouterr()
    for one in (same_file, accepted):
        assert main(["ledger", "replay", one.id, "--ledger", ledger]) == 0, capsys.readouterr()
    kept = str(same_file.artifact.file)
    assert main(["validate", kept, f"{kept}@openvino", *sets[2:], "--max-drop", "2pt"]) in (0, 4), capsys.readouterr()
    assert Plan.load(plan).model.artifact == accepted.artifact.file
    assert main(["ledger", "rollback", str(plan), "--ledger", ledger]) == 0
    assert not plan.exists()
