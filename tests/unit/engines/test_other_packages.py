"""An engine of another package: one module and one entry point, and every command knows it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import engines
from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan, Plan, StageDefaults, resolve
from headrace.cli import main
from headrace.engines import EngineTraits
from headrace.optimize.incumbent import find_incumbent
from headrace.optimize.portability import find_portability
from headrace.optimize.techniques import find_deciding_versions, installed_engines
from headrace.pipeline.thread_budget import budget
from headrace.profiler.layers.table import measure_layers
from headrace.runs.formats.optimization import Artifact
from headrace.runs.hardware import find_versions
from headrace.validate.layer_errors import open_with_outputs
from headrace.validate.variant_spec import parse_variant

ENGINE = """
from headrace.base.protocols import TensorSpec
from headrace.engines import EngineTraits
from headrace.engines.onnx_engine import OnnxEngine


class ToyEngine:
    traits = EngineTraits(title="Toy", reads=(".onnx", ".toy"), uses_cores=False)

    def open(self, artifact, *, threads, options, calls=1):
        model = OnnxEngine().open(artifact, threads=threads, options={})
        model.variant = {**model.variant, "engine": "toy"}
        model.inputs = [TensorSpec(spec.name, "float32", spec.shape) for spec in model.inputs]
        return model


class OddEngine(ToyEngine):
    traits = {"reads": (".odd",)}


NOTHING = None


def return_nothing():
    pass


class OpensNothing:
    def open(self, artifact, *, threads, options, calls=1):
        pass


class BareEngine:
    def open(self, artifact, *, threads, options, calls=1):
        return OnnxEngine().open(artifact, threads=threads, options={})
"""
PIPELINE = """
import headrace as hr
import numpy as np


class Scores(hr.Stage):
    kind = "device"

    def open(self, context):
        model = context.open_model("tiny.onnx")
        return lambda batch: list(model(np.stack(batch)))


pipeline = hr.Pipeline(
    hr.folder("items", patterns=["*.txt"]),
    stages=[hr.fetch("fetch"), hr.stage("vector", lambda data: np.full(4, len(data), np.float32)), Scores("scores")],
    delivery=hr.collect(),
)
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with two engines and one that cannot be imported, for this process and its children."""
    site = tmp_path / "site"
    metadata = site / "toy_package-1.5.dist-info"
    metadata.mkdir(parents=True)
    (site / "toy_engine.py").write_text(ENGINE)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toy-package\nVersion: 1.5\nRequires-Dist: numpy>1\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[headrace.engines]\ntoy = toy_engine:ToyEngine\nbare = toy_engine:BareEngine\ngone = toy_gone:Engine\n"
        "odd = toy_engine:OddEngine\nnone = toy_engine:NOTHING\nreturns = toy_engine:return_nothing\n"
        "opens = toy_engine:OpensNothing\n"
    )
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    monkeypatch.setattr(engines, "ENGINES", engines.ENGINES.with_parts({}))  # reads the packages anew
    yield site
    sys.modules.pop("toy_engine", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_model: Callable[..., Path]) -> Path:
    """A working folder with a pipeline, its model and three items."""
    make_model()
    (tmp_path / "toy_jobs.py").write_text(PIPELINE)
    (tmp_path / "items").mkdir()
    for number in range(3):
        (tmp_path / "items" / f"{number}.txt").write_text("x" * number)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_jobs", raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_plan_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs the model, and the document names it; its times are measured ones."""
    assert main(["run", "toy_jobs.py", "--set", "model.engine=toy", "-o", "out", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["counters"]["delivered"], document["emulated"]) == (3, False)
    run = json.loads(Path("out/run.json").read_text())
    assert [variant["engine"] for variant in run["variants"]] == ["toy"]
    assert run["versions"]["toy-package"] == "1.5"


@pytest.mark.usefixtures("folder")
def test_it_is_validated_against_another(capsys: pytest.CaptureFixture[str]) -> None:
    """The same file on both: the answers are the same, and so are types of numbers by two names."""
    main(["validate", "tiny.onnx", "tiny.onnx@toy", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {gate["name"]: gate["outcome"] for gate in document["gates"]}["parity"] == "passed"
    assert document["b"]["variant"]["engine"] == "toy"


def test_an_unknown_engine_is_refused_with_all_that_are_known() -> None:
    """Those of other packages among them, in order of the alphabet."""
    with pytest.raises(
        SettingsError, match="allowed: onnx, openvino, torch, emulated, bare, gone, none, odd, opens, returns, toy"
    ):
        engines.check_engine("onyx")


def test_traits_without_a_word_are_the_careful_ones() -> None:
    """An engine that says nothing runs, and is tried with no file; it computes on the cores."""
    assert engines.traits_of("bare") == EngineTraits()
    assert engines.traits_of("toy").title == "Toy"
    assert list(engines.file_engines()) == ["onnx", "openvino", "toy"]


def test_a_file_of_its_own_format_is_its_own() -> None:
    """A variant that names no engine is opened by the first that reads its file."""
    assert parse_variant("a.toy").model.engine == "toy"
    assert parse_variant("a.onnx").model.engine == "onnx"


def test_a_plan_that_names_no_engine_uses_the_model_as_given() -> None:
    """For a file that the default engine does not open, too."""
    given = Artifact(sha256="0" * 64, file="a.toy", num_bytes=1)
    assert find_incumbent(ModelPlan(), given, threads=1) is None
    assert find_incumbent(ModelPlan(engine="bare"), given, threads=1) is not None


def test_one_that_cannot_be_imported_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Named, it is an error with the package's name; else it is left out with a warning, and nothing else fails."""
    with caplog.at_level(logging.WARNING, "headrace"):
        assert "gone" not in list(engines.file_engines())
    assert "the engine gone is left out" in caplog.text
    with pytest.raises(SettingsError, match="toy-package brings it as toy_gone:Engine, which cannot be imported"):
        engines.engine("gone")


def test_traits_of_another_type_are_refused() -> None:
    """With the engine's name; whoever did not ask for it goes on without it."""
    with pytest.raises(
        SettingsError, match=r"'odd': toy-package .* has traits = .*; expected a headrace\.engines\.EngineTraits"
    ):
        engines.traits_of("odd")
    assert "odd" not in list(engines.file_engines())


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("none", "NOTHING, which is None; expected a function or class that makes a headrace.base.protocols.Engine"),
        ("returns", "return_nothing, which returned None; expected a headrace.base.protocols.Engine"),
        ("opens", "OpensNothing, which opened None; expected a headrace.base.protocols.Model"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_engine_that_gives_nothing_names_its_package(
    capsys: pytest.CaptureFixture[str], engine: str, said: str
) -> None:
    """Not the line of the user's stage that asked for the model."""
    assert main(["run", "toy_jobs.py", "--set", f"model.engine={engine}"]) == 2
    assert f"model.engine = {engine!r}: toy-package brings it as toy_engine:{said}" in capsys.readouterr().err


def test_it_is_among_what_optimize_tries() -> None:
    """In a process of its own, as a user's shell would start it."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "optimize", "--techniques"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = [line.partition(":")[0] for line in ran.stdout.splitlines() if line[:1].strip()]
    assert names[:4] == ["as-given", "openvino", "toy", "bf16"]
    assert "bare" not in names
    assert "toy" in installed_engines()


@pytest.mark.full
def test_portability_has_a_row_for_it(make_model: Callable[..., Path]) -> None:
    """It is called with the file, in a process of its own."""
    found = {one.engine: one.outcome for one in find_portability(make_model(), frozenset()).places if not one.options}
    assert found["toy"] == "runs"


def test_what_it_cannot_do_is_said(make_model: Callable[..., Path]) -> None:
    """Layers have neither times nor values: an engine may leave both out."""
    with pytest.raises(
        SettingsError, match="layers of the engine 'toy' cannot be measured; they can for: onnx, openvino, torch"
    ):
        measure_layers(make_model(), engine="toy", threads=1, batch_size=1, inputs=None)
    with pytest.raises(EngineError, match="engine toy does not show what lies between its layers"):
        open_with_outputs(parse_variant(f"{make_model()}@toy"), ["scores"])


def test_another_version_of_it_is_another_variant() -> None:
    """An attempt is not recalled after the package, or what it requires, has changed."""
    assert find_deciding_versions("toy").items() >= {("toy-package", "1.5"), ("numpy", find_versions()["numpy"])}
    assert "toy-package" not in find_deciding_versions("onnx")


def test_threads_of_other_hardware_are_not_counted() -> None:
    """It says that it computes elsewhere: no warning of more threads than there are cores."""
    stages = [StageDefaults(name="scores", kind="device")]
    plan = resolve(Plan.from_table({"model": {"engine": "toy", "threads": 99}}), stages, 2)
    assert budget(plan, stages, 2).warnings == ()
