"""`headrace optimize` from the command line: what it writes, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from headrace.base.plan import ModelPlan, Plan
from headrace.cli import main

pytestmark = pytest.mark.usefixtures("speeds")


def optimize(case: Any, folder: Path, *arguments: str) -> int:
    """Run the command with the case's sets and a ledger in the folder."""
    sets = ["--data", str(case.folder / "calibration.npz"), "--golden", str(case.folder / "golden.npz")]
    ledger = ["--ledger", str(folder / "ledger.sqlite")]
    return main(["optimize", str(case.model), *sets, "--max-drop", "2pt", "--no-layout", *ledger, *arguments])


def test_from_a_model_to_a_plan_and_back(case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Plan names a file that is kept, the ledger the decision, and a rollback takes the Plan away again."""
    plan = tmp_path / "plan.toml"
    assert optimize(case, tmp_path, "-o", str(plan)) == 0
    told = capsys.readouterr()
    assert "times as fast" in told.out
    assert "int8 on openvino" in told.err
    assert "600 golden items, a drop of 2 points allowed" in told.err
    assert f"measure the pipeline: headrace optimize {case.model} " in told.out
    assert "--max-drop 2pt" in told.out
    assert "--pipeline MODULE:ATTRIBUTE --source SOURCE" in told.out
    model = Plan.load(plan).model
    assert model.engine == "openvino"
    assert model.artifact is not None
    assert Path(model.artifact).is_file()
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite")]
    assert main(["ledger", "rollback", str(plan), *ledger]) == 0
    assert not plan.exists()
    capsys.readouterr()
    # Again: nothing is tried anew, and the Plan is written at once.
    assert optimize(case, tmp_path, "-o", str(plan), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.optimization/1"
    assert all(attempt["is_recalled"] for attempt in document["attempts"])
    assert plan.exists()


@pytest.mark.full
def test_memory_parts_and_layers_are_in_document_and_page(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the recommended variant needs beside the model as given, what both are worth by class, and how far layers are."""
    page = tmp_path / "page.html"
    assert optimize(case, tmp_path, "--report", str(page), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    chosen = next(one for one in document["attempts"] if one["candidate"] == document["recommended"])
    assert document["baseline"]["memory_bytes"] == 60_000_000
    assert chosen["validation"]["b"]["memory_bytes"] == 40_000_000
    # What is recalled is no less.
    assert optimize(case, tmp_path, "--json") == 0
    recalled = json.loads(capsys.readouterr().out)
    assert recalled["baseline"]["memory_bytes"] == 60_000_000
    assert recalled["front"] == document["front"]
    assert sum(one["num_items"] for one in chosen["validation"]["slices"]) == chosen["validation"]["num_items"]
    shown = page.read_text()
    for expected in (
        "40.0 MB",
        "Memory against speed",
        "Parts of the golden set",
        "Layer by layer",
        "Before and after",
    ):
        assert expected in shown


@pytest.mark.full
def test_the_command_that_measures_the_pipeline_can_be_typed(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It replaces what was just written; a Plan that was changed in its place is taken back first."""
    plan = tmp_path / "plan.toml"
    assert optimize(case, tmp_path, "-o", str(plan), "--budget", "10m", "--json") == 0
    said = json.loads(capsys.readouterr().out)["next_command"]
    assert f"-o {plan}" in said
    assert "--force" in said
    assert "--budget 600s" in said
    ledger = f"--ledger {tmp_path / 'ledger.sqlite'}"
    plan.write_text("[stages.fetch]\nworkers = 7\n")
    assert optimize(case, tmp_path, "--plan", str(plan), "-o", str(plan), "--force", "--json") == 0
    said = json.loads(capsys.readouterr().out)["next_command"]
    assert said.startswith(f"headrace ledger rollback {plan} {ledger} && headrace optimize {case.model} ")


@pytest.mark.full
def test_an_existing_plan_is_changed_and_not_replaced_unasked(case: Any, tmp_path: Path) -> None:
    """`--plan` is the one that is changed; what stands at `-o` stays without --force."""
    base, output = tmp_path / "base.toml", tmp_path / "plan.toml"
    base.write_text("[stages.fetch]\nworkers = 7\n")
    output.write_text("# mine\n")
    assert optimize(case, tmp_path, "--plan", str(base), "-o", str(output)) == 2
    assert output.read_text() == "# mine\n"
    assert optimize(case, tmp_path, "--plan", str(base), "-o", str(output), "--force") == 0
    assert Plan.load(output).stages["fetch"].workers == 7
    assert main(["ledger", "rollback", str(output), "--ledger", str(tmp_path / "ledger.sqlite")]) == 0
    assert output.read_text() == "# mine\n"


CHAINED = """
import headrace as hr

class Net(hr.Module):
    input = hr.ArrayInput()

    def __init__(self, model):
        self.model = model

    def load(self, context):
        self.net = context.open_model()

    def process(self, batch):
        return list(self.net(batch))

first, second = Net({first!r}), Net({second!r})
pipeline = hr.Pipeline(
    source=hr.folder("."), delivery=hr.jsonl("out.jsonl"),
    stages=[hr.fetch("fetch"), *first.stages(prefix={prefixes[0]!r}), *second.stages(prefix={prefixes[1]!r})],
)
"""


def chained(case: Any, folder: Path, prefixes: tuple[str, str] = ("det.", "rec.")) -> str:
    """Write a pipeline of two modules, the second of which runs the case's model, and return its MODULE:ATTRIBUTE."""
    other = folder / "other.onnx"
    model = onnx.load(str(case.model))
    model.doc_string = "the same network as another file"
    onnx.save(model, str(other))
    file = folder / f"chained_{folder.name}.py"  # a module is imported once
    file.write_text(CHAINED.format(first=str(other), second=str(case.model), prefixes=prefixes))
    return f"{file}:pipeline"


@pytest.mark.full
def test_of_several_modules_the_one_that_runs_the_model_is_changed(case: Any, tmp_path: Path) -> None:
    """In its own table; the settings of the others stay, and so does what a Plan says of them."""
    base, output = tmp_path / "base.toml", tmp_path / "plan.toml"
    base.write_text("[models.det]\nthreads = 1\n")
    pipeline = ["--pipeline", chained(case, tmp_path)]
    assert optimize(case, tmp_path, "--plan", str(base), "-o", str(output), *pipeline) == 0
    plan = Plan.load(output)
    assert plan.model == ModelPlan()
    assert plan.models["det"] == ModelPlan(threads=1)
    assert plan.models["rec"].artifact is not None
    assert "[models.rec]" in output.read_text()


def test_a_model_that_no_module_runs_is_told_with_those_that_there_are(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several modules it has to be known which; of one that the Plan cannot name, it is said how to name it."""
    pipeline = ["--pipeline", chained(case, tmp_path)]
    another = tmp_path / "another.onnx"
    another.write_bytes(case.model.read_bytes()[:-1])
    assert main(["optimize", str(another), *pipeline, "--ledger", str(tmp_path / "l.sqlite")]) == 2
    assert "the pipeline has 2 modules (det.process: " in capsys.readouterr().err
    base = tmp_path / "base.toml"
    base.write_text("[models.rec]\nthreads = 1\n")
    assert optimize(case, tmp_path, "--plan", str(base)) == 2
    assert "name the pipeline that runs this one, with --pipeline" in capsys.readouterr().err
    (tmp_path / "of_one_prefix").mkdir()
    assert optimize(case, tmp_path, "--pipeline", chained(case, tmp_path / "of_one_prefix", ("det.", ""))) == 2
    assert "give its stages a prefix or a task" in capsys.readouterr().err


@pytest.mark.full
def test_nothing_better_is_exit_status_4(
    case: Any, tmp_path: Path, speeds: dict[tuple[str, bool], float], capsys: pytest.CaptureFixture[str]
) -> None:
    """And no Plan is written."""
    speeds.update(dict.fromkeys(speeds, 0.5))
    assert optimize(case, tmp_path, "-o", str(tmp_path / "plan.toml")) == 4
    assert "keep the model as it is" in capsys.readouterr().out
    assert not (tmp_path / "plan.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"), [(["--source", "photos/"], "--pipeline"), (["--against", "other.onnx"], "--explain")]
)
def test_an_option_that_would_do_nothing_is_refused(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], wanted: str
) -> None:
    """With the one that it needs, before anything is tried."""
    assert optimize(case, tmp_path, *arguments) == 2
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["no.onnx"], ["no.onnx", "--explain"]])
def test_a_model_that_is_not_there_is_said(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its name, before anything is tried."""
    assert main(["optimize", *arguments, "--ledger", str(tmp_path / "ledger.sqlite")]) in (2, 3)
    assert "no.onnx" in capsys.readouterr().err


@pytest.mark.full
def test_explain_shows_how_a_variant_runs(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers by kind and precision, as text and as JSON."""
    assert main(["optimize", str(case.model), "--explain"]) == 0
    assert "product" in capsys.readouterr().out
    assert main(["optimize", f"{case.model}@openvino", "--explain", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.census/1"
    assert document["is_quantized"] is False
    assert sum(group["num_layers"] for group in document["groups"]) > 3
