"""Attempts of the ledger that are done again, shown, exported and drawn."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli import main
from headrace.ledger.ledger import Ledger
from headrace.optimize.techniques import REFUTED
from headrace.runs.formats.profile import Estimate

pytestmark = pytest.mark.usefixtures("speeds")


def optimize(case: Any, folder: Path, golden: Path | None = None, *arguments: str) -> int:
    """Run the command with a ledger in the folder."""
    golden = golden or case.folder / "golden.npz"
    sets = ["--data", str(case.folder / "calibration.npz"), "--golden", str(golden)]
    more = ["--max-drop", "2pt", "--no-layout", "--price", "36/h", "--ledger", str(folder / "ledger.sqlite")]
    return main(["optimize", str(case.model), *sets, *more, *arguments])


def ledger_command(folder: Path, *arguments: str) -> int:
    """Run `headrace ledger`."""
    return main(["ledger", *arguments, "--ledger", str(folder / "ledger.sqlite")])


def accepted(folder: Path) -> Any:
    """Return the attempt that was accepted."""
    with Ledger(folder / "ledger.sqlite") as ledger:
        return next(one for one in ledger.attempts.attempts() if (one.technique, one.verdict) == ("int8", "accept"))


def test_an_attempt_comes_out_the_same(case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict and intervals; also where the ledger with its files lies elsewhere now."""
    (tmp_path / "before").mkdir()
    assert optimize(case, tmp_path / "before") == 0
    shutil.move(tmp_path / "before", tmp_path / "after")
    attempt = accepted(tmp_path / "after")
    assert attempt.money == pytest.approx(attempt.seconds / 100)
    capsys.readouterr()
    assert ledger_command(tmp_path / "after", "replay", attempt.id, "--json") == 0
    replayed = json.loads(capsys.readouterr().out)["replayed"]
    assert (replayed["is_same"], replayed["verdict"], replayed["drift"]) == (True, "accept", [])
    assert replayed["drop"]["mid"] == pytest.approx(attempt.drop.mid)
    assert ledger_command(tmp_path / "after", "show", attempt.id) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"again: headrace ledger replay {attempt.id}" in told
    assert f"{attempt.id}: it came out the same within its intervals" in told
    with Ledger(tmp_path / "after" / "ledger.sqlite") as ledger:
        (event,) = ledger.events.events("replay", attempt=attempt.id)
        assert (event.verdict, event.golden_sha256) == ("accept", attempt.validation.golden_sha256)
        asked = [one for one in ledger.attempts.attempts() if one.drop is not None]
        assert ledger.attempts.golden_uses(attempt.validation.golden_sha256) == len(asked) + 1


@pytest.mark.full
def test_what_came_out_otherwise_and_what_is_otherwise(
    case: Any, tmp_path: Path, speeds: dict[tuple[str, bool], float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another speed is told with both intervals, and so is another version; the exit status is 1."""
    assert optimize(case, tmp_path) == 0
    attempt = accepted(tmp_path)
    changed = msgspec.structs.replace(attempt.asked, versions={**attempt.asked.versions, "onnxruntime": "0.1"})
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        other = ledger.attempts.write_attempt(msgspec.structs.replace(attempt, asked=changed, hardware="another"))
    speeds.update({key: 1.1 * value for key, value in speeds.items()})
    capsys.readouterr()
    assert ledger_command(tmp_path, "replay", other.id) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"the speed-up is {1.1 * attempt.speedup.mid:.3g}" in told
    assert f"and was {attempt.speedup.mid:.3g} (" in told
    assert "the machine" in told
    assert "was 0.1" in told


@pytest.mark.full
@pytest.mark.parametrize("what", ["golden", "artifact", "model", "old", "refuted"])
def test_what_is_not_there_any_more_is_refused(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """A set or file that changed or went, and an attempt that does not say what it was judged by, or that no gate judged."""
    golden = tmp_path / "golden.npz"
    shutil.copy(case.folder / "golden.npz", golden)
    assert optimize(case, tmp_path, golden) == 0
    attempt, folder = accepted(tmp_path), tmp_path / "artifacts"
    if what == "golden":
        shutil.copy(case.folder / "calibration.npz", golden)
    elif what == "artifact":
        (folder / attempt.artifact.sha256[:16] / Path(attempt.artifact.file).name).write_bytes(b"changed")
    elif what == "model":
        shutil.rmtree(folder / attempt.model[:16])
    else:
        refuted = msgspec.structs.replace(attempt.artifact, parameters={REFUTED: "too much lost"})
        changes: dict[str, Any] = {"old": {"asked": None}, "refuted": {"artifact": refuted}}[what]
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            attempt = ledger.attempts.write_attempt(msgspec.structs.replace(attempt, **changes))
    capsys.readouterr()
    assert ledger_command(tmp_path, "replay", attempt.id) == 2
    told = capsys.readouterr().err
    wanted = {
        "golden": "another set", "artifact": "another one", "model": "as it was given", "old": "before",
        "refuted": "the recipe's own data",
    }  # fmt: skip
    assert wanted[what] in told


@pytest.mark.full
def test_a_decision_is_shown_with_what_it_changed(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line, and how to take it back; another id is refused."""
    assert optimize(case, tmp_path, None, "-o", str(tmp_path / "my plan.toml")) == 0
    capsys.readouterr()
    assert ledger_command(tmp_path, "show", "d1") == 0
    told = capsys.readouterr().out
    assert '+engine = "openvino"' in told
    assert f"headrace ledger rollback '{tmp_path / 'my plan.toml'}'" in told
    assert ledger_command(tmp_path, "show", "d7") == 2
    assert "no decision d7" in capsys.readouterr().err


def test_the_ledger_as_a_page(case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """History with reasons and money, accuracy against speed; an existing file is not replaced unasked."""
    assert optimize(case, tmp_path, None, "-o", str(tmp_path / "plan.toml")) == 0
    page = tmp_path / "page.html"
    assert ledger_command(tmp_path, "render", "--html", str(page)) == 0
    text = page.read_text()
    for expected in ("What was tried", "int8 on openvino", "Accuracy and speed", "Decisions", "cost"):
        assert expected in text
    assert ledger_command(tmp_path, "render", "--html", str(page)) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.full
def test_attempts_go_to_mlflow_once(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With parameters, metrics and the verdict; a second export adds nothing."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server is more than a test of this needs
    assert optimize(case, tmp_path) == 0
    uri = (tmp_path / "mlruns").as_uri()
    capsys.readouterr()
    assert ledger_command(tmp_path, "export", "--mlflow", uri) == 0
    assert "new attempts" in capsys.readouterr().out
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("headrace").experiment_id
    runs = client.search_runs([experiment])
    attempt = accepted(tmp_path)
    run = next(one for one in runs if one.data.tags["headrace.attempt"].endswith(f"#{attempt.id}"))
    assert run.data.metrics["speedup"] == pytest.approx(attempt.speedup.mid)
    assert run.data.params["engine"] == attempt.settings["engine"]
    assert run.data.tags["headrace.verdict"] == "accept"
    assert ledger_command(tmp_path, "export", "--mlflow", uri) == 0
    assert "0 new attempts" in capsys.readouterr().out
    assert len(client.search_runs([experiment])) == len(runs)


def test_without_mlflow_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for every optional package."""
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "headrace.ledger.mlflow_export", raising=False)  # if another test loaded it
    with Ledger(tmp_path / "ledger.sqlite"):
        pass
    assert ledger_command(tmp_path, "export", "--mlflow", "file:///tmp/none") == 3
    assert "headrace[mlflow]" in capsys.readouterr().err


@pytest.mark.full
def test_intervals_that_touch_are_the_same(case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured a little otherwise then is no difference."""
    assert optimize(case, tmp_path) == 0
    attempt = accepted(tmp_path)
    near = Estimate(*(1.03 * value for value in (attempt.speedup.low, attempt.speedup.mid, attempt.speedup.high)))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        other = ledger.attempts.write_attempt(msgspec.structs.replace(attempt, speedup=near))
    capsys.readouterr()
    assert ledger_command(tmp_path, "replay", other.id) == 0
    assert "the same within its intervals" in capsys.readouterr().out
