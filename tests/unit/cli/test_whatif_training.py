"""`headrace whatif` and `headrace ledger measured` on run folders of trainings."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from headrace.base.documents import encode_document
from headrace.cli import main
from headrace.diagnose.training import simulation_whatif
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.formats.training import LoaderInfo, TrainingProcess, process_file
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import Kind, Phase, Stretch
from headrace.train.recorder import StretchSpans

_MILLISECOND = 1_000_000


def _write_run(path: Path, *, wait: int = 30, workers: int = 0, lost: int = 0, options: tuple[str, ...] = ()) -> Path:
    """Write a training of 40 steps: a wait of which 10 ms compute, 8 ms forward, 12 ms backward, 4 ms optimizer."""
    folder = RunFolder.create(path, pipeline="train.py", options=options, unit="step")
    writer = SpanWriter(path / "spans")
    wall, cpu = 10**12, 10**9
    host, process = "", 0
    for number in range(40):
        marks = []
        parts = ((Phase.WAIT, wait, 10), (Phase.FORWARD, 8, 8), (Phase.BACKWARD, 12, 12), (Phase.OPTIMIZER, 4, 4))
        for phase, long, computing in parts:
            marks.append((phase, number, (wall, cpu, 0)))
            # A little more each time, so that steps differ.
            wall += long * _MILLISECOND + number * 1000
            cpu += computing * _MILLISECOND + number * 1000
        marks.append((Phase.AFTER, number, (wall, cpu, 0)))
        kind = Kind.PLAIN if number else Kind.EPOCH_START
        spans = StretchSpans(Stretch.STEP, number, marks, rank=0, kind=kind, samples=32)
        host, process = next(iter(spans)).host, next(iter(spans)).process
        writer.stage_finished(spans)
    writer.close()
    loader = LoaderInfo(
        kind="torch.utils.data.dataloader.DataLoader", dataset="Photos", num_items=None, workers=workers,
        prefetch_factor=2 if workers else None, batch_size=32, in_order=True, persistent_workers=False, pin_memory=False,
    )  # fmt: skip
    said = TrainingProcess(
        host=host, process=process, rank=0, world_size=1, script="train.py", framework="torch", torch_version="2", threads=1,
        device="cpu", modules=(), num_parameters=1, parameter_bytes=4, optimizers=(), loaders=(loader,),
        lost_spans=lost,
    )  # fmt: skip
    file = process_file(path, host, process)
    file.parent.mkdir()
    file.write_bytes(encode_document(said))
    folder.finish("finished")
    return path


def test_change_of_a_training_is_predicted_and_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the prediction in the ledger to what two run folders say of it."""
    before, ledger = _write_run(tmp_path / "before"), str(tmp_path / "ledger.sqlite")
    assert main(["whatif", str(before), "--set", "loader.workers=4", "--ledger", ledger]) == 0
    text = capsys.readouterr().out
    assert "train.py, run before" in text
    assert "samples/s measured" in text
    assert "step, mean" in text
    assert "by hand: bounds" in text
    assert "takes for granted" in text
    assert f"headrace ledger measured p1 {before} {before}-changed --ledger" in text
    without, after = _write_run(tmp_path / "without", wait=12), _write_run(tmp_path / "after", wait=12, workers=4)
    assert main(["ledger", "measured", "p1", str(before), str(without), "--ledger", ledger]) != 0
    assert "was recorded with loader.workers=0" in capsys.readouterr().err
    assert main(["ledger", "show", "p1", "--plan", "--ledger", ledger]) == 2
    assert "p1 is of a training, which has no Plan" in capsys.readouterr().err
    assert main(["ledger", "measured", "p1", str(before), str(after), "--ledger", ledger, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["predictions"]
    assert entry["measured"]["ratio"]["mid"] == pytest.approx(54 / 36, rel=0.01)


def test_other_options_are_said_beside_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else the options of the two sides changed is in the ratio, and the ledger says so."""
    before, ledger = _write_run(tmp_path / "before"), str(tmp_path / "ledger.sqlite")
    assert main(["whatif", str(before), "--set", "loader.workers=4", "--ledger", ledger]) == 0
    after = _write_run(tmp_path / "after", wait=12, workers=4, options=("--workers", "4", "--half"))
    capsys.readouterr()
    assert main(["ledger", "measured", "p1", str(before), str(after), "--ledger", ledger, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["predictions"]
    assert "before: train.py, after: train.py --workers 4 --half" in entry["measured"]["how"]


def test_the_comparison_in_turn_has_the_arguments_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them it would be another training that is compared."""
    run = _write_run(tmp_path / "run", options=("train.py", "--data", "my photos"))
    assert main(["whatif", str(run), "--set", "loader.workers=4", "--ledger", str(tmp_path / "ledger.sqlite")]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "headrace train compare" in line)
    words = shlex.split(line.partition("headrace ")[2])
    assert words[2:4] == ["train.py --data 'my photos'", "CHANGED.py --data 'my photos'"]


def _compared(workers: int) -> ComparisonDocument:
    """Return a comparison in turn, whose side after had so many workers."""
    sides = [
        Side(name=name, pipeline="train.py", plan_id="", plan={"loader.workers": count})
        for name, count in (("train.py", 0), (f"train.py --workers {workers}", workers))
    ]
    return ComparisonDocument(
        a=sides[0], b=sides[1], metric="throughput", unit="samples/s", higher_is_better=True, paired=True, num_pairs=6,
        ratio=1.6, ratio_low=1.5, ratio_high=1.7, margin=0.02, budget=None, verdict="better", is_regression=False,
        pairs_needed=None, environment={"started_unix_seconds": time.time() + 1},
    )  # fmt: skip


def test_two_trainings_in_turn_prove_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of `headrace train compare`, unless the side after had another loader than was predicted."""
    before, ledger, file = _write_run(tmp_path / "before"), str(tmp_path / "ledger.sqlite"), tmp_path / "c.json"
    assert main(["whatif", str(before), "--set", "loader.workers=4", "--ledger", ledger]) == 0
    file.write_bytes(encode_document(_compared(2)))
    assert main(["ledger", "measured", "p1", str(file), "--ledger", ledger]) != 0
    assert "train.py --workers 2 was recorded with loader.workers=2" in capsys.readouterr().err
    file.write_bytes(encode_document(_compared(4)))
    assert main(["ledger", "measured", "p1", str(file), "--ledger", ledger, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["predictions"]
    assert entry["measured"]["ratio"]["mid"] == pytest.approx(1.6)
    assert "6 interleaved pairs" in entry["measured"]["how"]


def test_document_says_that_its_unit_is_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON is the document of pipelines, with the unit; a faster backward pass counts by its share without workers."""
    run = _write_run(tmp_path / "run")
    assert main(["whatif", str(run), "--speedup", "backward=2", "--no-ledger", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["unit"], document["plan"]) == ("headrace.prediction/1", "step", {})
    assert document["throughput"]["ratio"]["mid"] == pytest.approx(54 / 48, rel=0.01)
    assert document["bound_ratio"] == pytest.approx(54 / 48, rel=0.01)


def test_several_values_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--vary` predicts each value; more workers than useful change nothing."""
    run = _write_run(tmp_path / "run")
    assert main(["whatif", str(run), "--vary", "loader.workers=1,2,8", "--no-ledger"]) == 0
    text = capsys.readouterr().out
    assert all(f"loader.workers={count}" in text for count in (1, 2, 8))


def test_keys_of_pipelines_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown keys, names and options of pipelines say what a training has."""
    run = str(_write_run(tmp_path / "run"))
    assert main(["whatif", run, "--set", "fetch.workers=4", "--no-ledger"]) == 2
    assert "loader.persistent" in capsys.readouterr().err
    assert main(["whatif", run, "--speedup", "fetch=4", "--no-ledger"]) == 2
    assert "optimizer" in capsys.readouterr().err
    assert main(["whatif", run, "--cache", "read=0.5", "--no-ledger"]) == 2
    assert "--set cache=ram" in capsys.readouterr().err
    assert main(["whatif", run, "--no-ledger"]) == 2
    assert "nothing is changed" in capsys.readouterr().err


def test_what_was_not_recorded_is_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers that nobody watched: status 4, the reason, and what to do."""
    run = _write_run(tmp_path / "run", workers=2)
    assert main(["whatif", str(run), "--set", "loader.workers=4", "--no-ledger"]) == 4
    assert "what loading cost in the workers was not recorded" in capsys.readouterr().err


def test_run_that_is_not_trusted_needs_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that lost spans is refused, and with `--untrusted` predicted with a warning."""
    run = str(_write_run(tmp_path / "run", lost=3))
    assert main(["whatif", run, "--speedup", "backward=2", "--no-ledger"]) == 4
    assert "3 spans could not be written" in capsys.readouterr().err
    assert main(["whatif", run, "--speedup", "backward=2", "--no-ledger", "--untrusted"]) == 0
    assert "the run is not trusted" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("setting", ["accumulate=1", "batch=32", "loader.workers=0"])
def test_what_the_run_had_is_no_change(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly once the throughput, with no interval around it, and said."""
    assert main(["whatif", str(_write_run(tmp_path / "run")), "--set", setting, "--no-ledger", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ratio = document["throughput"]["ratio"]
    assert (
        (ratio["low"], ratio["mid"], ratio["high"]) == (1.0, 1.0, 1.0)
        if isinstance(ratio, dict)
        else ratio == [1.0] * 3
    )
    assert "nothing is changed: the run was recorded like that" in document["warnings"]


def test_one_rate_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose` measures what `whatif` begins from: with the turns of epochs, without the first step."""
    run = _write_run(tmp_path / "run")
    main(["whatif", str(run), "--set", "loader.workers=4", "--no-ledger", "--json"])
    base = json.loads(capsys.readouterr().out)["throughput"]["base"]
    main(["diagnose", str(run), "--json"])
    assert json.loads(capsys.readouterr().out)["throughput"] == base


def _predict(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> float:
    assert main(["whatif", str(run), "--no-ledger", "--json", *options]) == 0
    return float(json.loads(capsys.readouterr().out)["throughput"]["ratio"]["mid"])


def test_batch_by_what_a_search_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`headrace train batch --json`, a plain table, and a run with other batches say what a step costs."""
    before = _write_run(tmp_path / "before")
    trials = [
        {"batch_size": size, "outcome": "ran", "step_seconds": seconds}
        for size, seconds in ((32, 0.024), (64, 0.044), (128, None))
    ]
    search, table = tmp_path / "search.json", tmp_path / "table.json"
    search.write_text(json.dumps({"schema": "headrace.batch_search/1", "trials": trials}))
    table.write_text(json.dumps({"32": 0.024, "64": 0.044}))
    found = [_predict(capsys, before, "--set", "batch=64", "--curve", f"step={file}") for file in (search, table)]
    # 30 ms of loading and 20 ms of computing for 32 samples, and 4 ms for the update.
    assert found[0] == found[1] == pytest.approx(2 * 54 / 104, rel=0.02)
    assert _predict(capsys, before, "--set", "batch=32", "--curve", f"step={before}") == 1.0


def test_format_by_what_a_trial_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headrace pack --try --json` says what an item of each format costs."""
    monkeypatch.setattr(simulation_whatif, "WARMTH", 0.0)
    before, trial = _write_run(tmp_path / "before"), tmp_path / "try.json"
    figures = [
        {"format": name, "order": "random", "cache": "cold", "us": us}
        for name, us in (("folder", 600.0), ("tar", 100.0))
    ]
    trial.write_text(json.dumps({"schema": "headrace.pack.try/1", "items": 9, "figures": figures}))
    found = _predict(capsys, before, "--set", "format=tar", "--formats", str(trial))
    assert found == pytest.approx(54 / (54 - 32 * 0.5), rel=0.02)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--set", "batch=64", "--curve", "step"], "expected step=RUN or step=FILE"),
        (["--set", "batch=64", "--curve", "step=none.json"], "none.json cannot be read"),
        (["--set", "batch=64", "--curve", "model=none.json"], "model"),
        (["--set", "format=tar", "--formats", "none.json"], "none.json cannot be read"),
        (["--to-device", "augment=quickly"], "--to-device augment"),
        (["--to-device", "forward=1ms"], "forward"),
    ],
)
def test_costs_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    """Each is misuse, and says what was expected."""
    before = _write_run(tmp_path / "before")
    assert main(["whatif", str(before), "--no-ledger", *options]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "{}", '{"schema": "headrace.pack.try/1", "figures": [1, {"us": 3}]}', '{"schema": 1, "figures": {}}'],
)
def test_files_that_are_no_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    """Whatever stands in the file, it is misuse and no traceback, for formats and for curves."""
    before, file = _write_run(tmp_path / "before"), tmp_path / "file.json"
    file.write_text(content)
    assert main(["whatif", str(before), "--no-ledger", "--set", "format=tar", "--formats", str(file)]) == 2
    assert main(["whatif", str(before), "--no-ledger", "--set", "batch=8", "--curve", f"step={file}"]) == 2
    assert "Traceback" not in capsys.readouterr().err
