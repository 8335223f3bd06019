"""A search with a Plan that uses another variant already: that is what has to be beaten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.cli import main
from headrace.cli.optimization_text import as_text
from headrace.ledger.ledger import Ledger
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.goal import Goal
from headrace.optimize.incumbent import find_incumbent
from headrace.optimize.search import optimize
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.validate import measuring
from headrace.validate.model_speed import Speed

SPEEDS = {("onnx", False): 1.0, ("openvino", False): 0.9, ("onnx", True): 2.0, ("openvino", True): 3.0}


@pytest.fixture(autouse=True)
def speeds() -> Iterator[None]:
    """Speeds by (engine, is quantized) of both sides: nothing is timed, what is tested is what is made of it."""

    def of(model: Any) -> float:
        quantized = "int8" in Path(model.variant["artifact"]).name
        return SPEEDS[model.variant["engine"], quantized] * (1.1 if model.variant["threads"] == 2 else 1.0)

    def measured(a: Any, b: Any, batch: Any, **_: Any) -> Speed:
        ratio = of(b) / of(a)
        return Speed(
            ratio=ratio, low=0.98 * ratio, high=1.02 * ratio, noise=0.01, a_seconds=0.01 / of(a), b_seconds=0.01 / of(b),
            rounds=16,
        )  # fmt: skip

    with measuring.using(measure_speed=measured, census_seconds=0.05):
        yield


@pytest.fixture
def plain(case: Any, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """{engine: the `[model]` table of int8 on it}, as a search without a Plan makes them."""
    document = searched(case, tmp_path, None)
    return {one.settings["engine"]: one.settings for one in document.attempts if one.technique == "int8"}


def searched(case: Any, folder: Path, in_use: ModelPlan | None, ledger: Ledger | None = None) -> OptimizationDocument:
    """Search with a goal that 600 items can prove."""
    return optimize(
        case.model, store=ArtifactStore(folder / "artifacts"), goal=Goal(max_drop=0.02, batch=8), in_use=in_use,
        calibration=case.calibration, golden=case.golden, memory=ledger.attempts if ledger else None,
    )  # fmt: skip


@pytest.mark.full
def test_what_is_slower_than_the_plans_variant_is_no_gain(
    case: Any, plain: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Plan uses the fastest there is: it stays as it is, and ratios, judgement and words are about that variant."""
    plan, ledger = tmp_path / "plan.toml", ["--ledger", str(tmp_path / "ledger.sqlite")]
    plan.write_text(Plan(model=ModelPlan(**plain["openvino"])).as_toml())
    before = plan.read_bytes()
    sets = ["--data", str(case.folder / "calibration.npz"), "--golden", str(case.folder / "golden.npz")]
    command = ["optimize", str(case.model), *sets, "--max-drop", "2pt", "--no-layout", "--batch", "8", *ledger]
    assert main([*command, "--plan", str(plan), "-o", str(plan), "--force", "--json"]) == 4
    document = msgspec.json.decode(capsys.readouterr().out, type=OptimizationDocument)
    assert plan.read_bytes() == before
    assert "keep what the Plan uses" in document.says
    assert document.in_use is not None
    assert (document.in_use.technique, document.in_use.verdict) == ("in-use", "accept")
    assert document.in_use.artifact.file == plain["openvino"]["artifact"]
    ratios = {(one.technique, one.settings["engine"]): one.speedup.mid for one in document.attempts if one.speedup}
    assert ratios["as-given", "onnx"] == pytest.approx(1 / 3)
    assert ratios["int8", "onnx"] == pytest.approx(2 / 3)
    assert ("int8", "openvino") not in ratios  # it is in use, and not held against itself
    assert any("is what the Plan uses" in one.why for one in document.skipped)
    with Ledger(tmp_path / "ledger.sqlite") as known:
        told = [one.would_change for one in known.events.events("skip") if "is what the Plan uses" in one.says]
    assert told == ["another variant in the Plan, or none (without --plan)"]
    assert "(in use)" in as_text(document, None)
    # Done again, it is held against the same.
    slower = next(one for one in document.attempts if one.technique == "int8")
    assert main(["ledger", "replay", slower.id, *ledger]) == 0
    assert "came out the same" in capsys.readouterr().out


@pytest.mark.full
def test_what_beats_the_plans_variant_is_recommended_over_it(
    case: Any, plain: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Once and a half as fast as the int8 in use; its answers are held against the model as given. The same is recalled."""
    used = ModelPlan(**plain["onnx"])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, tmp_path, used, ledger)
        chosen = next(one for one in document.attempts if one.candidate == document.recommended)
        assert chosen.settings["engine"] == "openvino"
        assert chosen.speedup is not None
        assert chosen.speedup.mid == pytest.approx(1.5)
        assert "times as fast as what the Plan uses" in document.says
        assert chosen.asked is not None
        assert chosen.asked.against["artifact"] == used.artifact
        again = searched(case, tmp_path, used, ledger)
        assert again.recommended == document.recommended
        assert all(one.is_recalled for one in (*again.attempts, again.in_use) if one)


def test_a_slow_plan_may_go_back_to_the_model_as_given(case: Any, tmp_path: Path) -> None:
    """It is one of the candidates, and its answers need no golden set to be right."""
    slow = ModelPlan(engine="openvino", options={"precision": "f32"})
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = optimize(
            case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=Goal(max_drop=0.02, batch=8), in_use=slow,
            golden=case.golden, weigh=lambda spec, batch: 40 if spec.model.engine == "onnx" else 60, memory=ledger.attempts,
        )  # fmt: skip
        assert ledger.attempts.golden_uses(case.golden.sha256) == 1  # about what the Plan uses
    chosen = next(one for one in document.attempts if one.candidate == document.recommended)
    assert (chosen.technique, chosen.settings["engine"]) == ("as-given", "onnx")
    assert chosen.drop is not None
    assert chosen.drop.mid == 0
    assert chosen.validation.b.memory_bytes == 40


def test_the_model_as_given_needs_no_golden_set(case: Any, tmp_path: Path) -> None:
    """It is as right as itself; everything else stays open."""
    slow = ModelPlan(engine="openvino", options={"precision": "f32"})
    document = optimize(case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=Goal(batch=8), in_use=slow)
    accepted = [one.technique for one in document.attempts if one.verdict == "accept"]
    assert accepted == ["as-given"]
    assert "as-given on onnx is 1.11 times as fast as what the Plan uses" in document.says


@pytest.mark.parametrize(
    "model",
    [ModelPlan(), ModelPlan(threads=2), ModelPlan(threads=1, artifact="net.onnx")],
    ids=["none", "threads", "same"],
)
def test_a_plan_with_the_model_as_given_has_no_other_incumbent(model: ModelPlan, case: Any, tmp_path: Path) -> None:
    """Threads alone make no other variant where the Plan names no file; nor does the very file."""
    if model.artifact:
        model = ModelPlan(threads=1, artifact=str(case.model))
    assert find_incumbent(model, ArtifactStore(tmp_path).add(case.model), 1) is None


def test_other_threads_of_the_file_as_given_are_the_plans(case: Any, tmp_path: Path) -> None:
    """Somebody chose them: what is recommended must be faster than that."""
    found = find_incumbent(ModelPlan(artifact=str(case.model), threads=2), ArtifactStore(tmp_path).add(case.model), 1)
    assert found is not None
    assert found.spec.model.threads == 2


def test_an_emulated_device_is_no_incumbent(tmp_path: Path, case: Any) -> None:
    """Anything is faster than a device whose times are settings, if they are large enough."""
    slow = ModelPlan(engine="emulated", options={"launch_seconds": 1.0, "item_seconds": 1.0})
    with pytest.raises(SettingsError, match=r"emulated device.*leave it out"):
        find_incumbent(slow, ArtifactStore(tmp_path).add(case.model), 1)


def test_the_plans_file_is_found_from_other_folders_too(
    tmp_path: Path, case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Plan may name it from where it runs; the ledger is asked from anywhere."""
    (tmp_path / "used.onnx").write_bytes(case.model.read_bytes())
    monkeypatch.chdir(tmp_path)
    table = ModelPlan(artifact="used.onnx", engine="openvino", options={"precision": "f32"})
    found = find_incumbent(table, ArtifactStore(tmp_path / "artifacts").add(case.model), 1)
    assert found is not None
    assert found.spec.model.artifact == found.artifact.file == str(tmp_path / "used.onnx")


def test_a_plan_whose_file_is_gone_is_told(tmp_path: Path, case: Any) -> None:
    """With what to do, before anything is tried."""
    with pytest.raises(EngineError, match=r"the Plan's model gone.onnx cannot be read.*--plan"):
        find_incumbent(ModelPlan(artifact="gone.onnx"), ArtifactStore(tmp_path).add(case.model), 1)


def test_a_model_of_several_files_is_known_by_all_of_them(case: Any, tmp_path: Path) -> None:
    """By size and hash: the weights of OpenVINO's own format lie beside it."""
    openvino = pytest.importorskip("openvino")
    file, weights = tmp_path / "net.xml", tmp_path / "net.bin"
    openvino.save_model(openvino.convert_model(str(case.model)), str(file))
    original, table = (
        ArtifactStore(tmp_path / "artifacts").add(case.model),
        ModelPlan(artifact=str(file), engine="openvino"),
    )
    before = find_incumbent(table, original, 1)
    assert before is not None
    assert before.artifact.num_bytes == file.stat().st_size + weights.stat().st_size
    weights.write_bytes(bytes(reversed(weights.read_bytes())))
    after = find_incumbent(table, original, 1)
    assert after is not None
    assert after.decides != before.decides


@pytest.mark.full
def test_a_replay_needs_what_the_plan_used(
    case: Any, plain: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held against another file under its name, a speed would be no replay."""
    used = tmp_path / "used.onnx"
    used.write_bytes(Path(plain["openvino"]["artifact"]).read_bytes())
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, tmp_path, ModelPlan(**{**plain["openvino"], "artifact": str(used)}), ledger)
    slower = next(one for one in document.attempts if one.technique == "int8")
    used.write_bytes(case.model.read_bytes())
    assert main(["ledger", "replay", slower.id, "--ledger", str(tmp_path / "ledger.sqlite")]) == 3
    assert "it is another model, or was changed" in capsys.readouterr().err
