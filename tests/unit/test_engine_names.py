"""Engines are known by name in their own folder alone: everywhere else they are asked what they can do."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace
from headrace.engines.traits import BUILT_IN

SOURCE = Path(headrace.__file__).parent
_PACKAGE = "a package, or headrace's extra, of the same name"
_KEY = "a key of JSON documents"
#: (file, name): why it is none of an engine.
ALLOWED = {
    ("base/plan.py", "onnx"): "the default of a Plan",
    ("__init__.py", "emulated"): "headrace.emulated, a stage",
    ("cli/run.py", "emulated"): _KEY,
    ("compare/comparison.py", "emulated"): _KEY,
    ("compare/words.py", "emulated"): _KEY,
    ("optimize/onnx_files.py", "onnx"): _PACKAGE,
    ("optimize/torch_files.py", "torch"): _PACKAGE,
    ("profiler/layers/graph_count.py", "onnx"): _PACKAGE,
    ("profiler/layers/torch_profile.py", "torch"): _PACKAGE,
    ("profiler/nvtx.py", "torch"): _PACKAGE,
    ("runs/hardware.py", "onnx"): _PACKAGE,
    ("runs/hardware.py", "openvino"): _PACKAGE,
    ("runs/hardware.py", "torch"): _PACKAGE,
    ("stages/augment.py", "emulated"): "where a stage runs",
    ("stages/augment.py", "torch"): _PACKAGE,
    ("store/collating.py", "torch"): _PACKAGE,
    ("train/armed/sitecustomize.py", "torch"): _PACKAGE,
    ("train/keras_callback.py", "torch"): "a backend of Keras",
    ("train/session.py", "torch"): "whose loop a training is",
}


def names_in(source: Path) -> set[tuple[str, str]]:
    """Return (file, name) of each string outside `engines/` that is an engine's name."""
    files = [file for file in source.rglob("*.py") if file.relative_to(source).parts[0] != "engines"]
    return {
        (str(file.relative_to(source)), node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in BUILT_IN
    }


def test_no_other_folder_names_an_engine() -> None:
    """What is left is listed with its reason."""
    assert names_in(SOURCE) <= set(ALLOWED)


def test_a_name_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """In a comparison, a default, a match; not in the folder of engines."""
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines/table.py").write_text('NAMES = ["onnx"]\n')
    (tmp_path / "a.py").write_text(
        'def f(x="torch"):\n    match x:\n        case "openvino":\n            return x == "emulated"\n'
    )
    assert {name for _, name in names_in(tmp_path)} == {"torch", "openvino", "emulated"}
