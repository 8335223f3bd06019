"""Batch sizes tried with PyTorch in child processes, and a parent that outlives them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # each child imports PyTorch, which takes seconds

from headrace.base.errors import SettingsError  # noqa: E402
from headrace.cli.train_words import run_word  # noqa: E402
from headrace.runs.formats.batch_search import LossComparison, SizeTrial  # noqa: E402
from headrace.train.search.batch_search import SearchSettings, search_batch_size  # noqa: E402
from headrace.train.search.children import TrainingFailed, run_child  # noqa: E402
from headrace.train.search.loss_search import LossSettings, compare_losses  # noqa: E402
from headrace.train.search.recipe import load_maker, make_recipe  # noqa: E402
from headrace.train.search.step_trial import run_steps  # noqa: E402

RECIPE = """
import os, signal
import torch
from headrace.train import Recipe

class Activations(torch.nn.Module):
    def __init__(self, floats):
        super().__init__()
        self.layer, self.floats = torch.nn.Linear(8, 1), floats

    def forward(self, inputs):
        return (self.layer(inputs) * torch.ones(len(inputs), self.floats)).sin().mean()

def make(floats=0, samples=8):
    model = Activations(floats) if floats else torch.nn.Linear(8, 1)
    data = torch.utils.data.TensorDataset(torch.randn(samples, 8))
    return Recipe(
        model=model, loss=lambda model, batch: model(batch[0]).square().mean(), data=data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch_size=4,
    )

def wide():  # 16 MB a tensor and sample
    return make(floats=4_000_000, samples=64)

def killed():
    recipe = make()
    def loss(model, batch):
        if len(batch[0]) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return model(batch[0]).square().mean()
    return Recipe(model=recipe.model, loss=loss, data=recipe.data, optimizer=recipe.optimizer)

def wrong():
    return 3

def broken():
    raise RuntimeError("no such table: photos")

def wants(width, depth=2, *more, **others):
    raise AssertionError

def normalised():
    recipe = make()
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    return Recipe(model=model, loss=recipe.loss, data=recipe.data, optimizer=recipe.optimizer)

def many_losses():
    recipe = make()
    return dict(model=recipe.model, loss=lambda model, batch: model(batch[0]), data=recipe.data, optimizer=recipe.optimizer)

def number():
    recipe = make()
    return dict(model=recipe.model, loss=lambda model, batch: 0.5, data=recipe.data, optimizer=recipe.optimizer)

def closure():
    recipe = make()
    return dict(model=recipe.model, loss=recipe.loss, data=recipe.data, optimizer=torch.optim.LBFGS)

def scheduled():
    recipe = make()
    return dict(model=recipe.model, loss=recipe.loss, data=recipe.data, optimizer=lambda parameters: (1, 2))

def misspelt():
    return {"modle": 1}

def endless():
    import pathlib, time
    pathlib.Path(__file__).with_name("child.txt").write_text(f"{os.getpid()}\\n")
    time.sleep(600)
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Return a file with recipes; each test has its own folder."""
    (tmp_path / "training.py").write_text(RECIPE)
    return str(tmp_path / "training.py")


def _quick(memory_bytes: int | None = None) -> SearchSettings:
    return SearchSettings(memory_bytes=memory_bytes, seconds=0.01)


def test_a_search_tries_every_size_of_a_small_data_set_or_ends_where_nothing_is_gained(recipe: str) -> None:
    """Sizes double from 1; what is recommended was measured; each tells its throughput and memory."""
    told: list[int] = []
    document = search_batch_size(recipe, _quick(), on_trial=lambda trial: told.append(trial.batch_size))
    assert told == [trial.batch_size for trial in document.trials] == [1, 2, 4, 8][: len(told)]
    assert len(told) >= 3
    assert document.batch_size in told
    assert (document.num_samples, document.num_parameters, document.present_batch_size) == (8, 9, 4)
    assert all(trial.samples_per_second and trial.peak_bytes and trial.num_steps >= 5 for trial in document.trials)


def test_the_limit_on_memory_ends_a_search_and_the_parent_lives(recipe: str) -> None:
    """Some 50 MB a sample under a limit of a gigabyte: the search ends far below the data set's 64 samples."""
    document = search_batch_size(f"{recipe}:wide", _quick(1000 * 10**6))
    assert max(trial.batch_size for trial in document.trials) < 64
    chosen = next(trial for trial in document.trials if trial.batch_size == document.batch_size)
    assert chosen.peak_bytes is not None
    assert chosen.peak_bytes <= 0.9 * document.limit_bytes
    assert document.limit_from == "--memory"


def test_a_child_above_its_limit_is_killed_and_says_how_much_it_took(recipe: str) -> None:
    """A batch of 64 needs gigabytes; what is left is a reason, not an exception."""
    answer = run_child("steps", f"{recipe}:wide", limit_bytes=900 * 10**6, batch_size=64, seconds=0.01)
    assert answer.results == []
    assert answer.shortage.startswith("it took ")
    assert answer.shortage.endswith("more than 900 MB")


def test_a_model_that_takes_no_single_sample_is_searched_from_two_on(recipe: str) -> None:
    """Batch normalisation has no variance of one."""
    document = search_batch_size(f"{recipe}:normalised", _quick())
    assert [trial.batch_size for trial in document.trials][:2] == [2, 4]


def test_a_child_that_the_kernel_kills_is_a_size_that_does_not_fit(recipe: str) -> None:
    """SIGKILL above 2 samples, as of the kernel's killer: 1 and 2 ran, and one of them is recommended."""
    document = search_batch_size(f"{recipe}:killed", _quick())
    outcomes = {trial.batch_size: trial.outcome for trial in document.trials}
    assert outcomes[4] == "does not fit"
    assert {size for size, outcome in outcomes.items() if outcome == "measured"} == {1, 2}
    assert document.batch_size in (1, 2)
    assert [trial.why for trial in document.trials if trial.batch_size == 4] == ["killed by SIGKILL"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("wrong", "returned a int, expected"),
        ("misspelt", "has no 'data'"),
        ("absent", "has no function 'absent'"),
        ("wants", r"wants\(\) of training needs the argument 'width'"),
    ],
)
def test_what_is_no_recipe_is_named(recipe: str, function: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what was found and what was expected."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "training", raising=False)
    with pytest.raises(SettingsError, match=says):
        make_recipe(load_maker(f"{recipe}:{function}"), 0)
    monkeypatch.delitem(sys.modules, "training")


@pytest.mark.parametrize("target", ["", ":make", "../training", "absent_module", "absent_module.sub:make"])
def test_what_names_no_module_is_refused(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one line and no traceback, and says what was expected."""
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(SettingsError, match=r"there is no module .*expected FILE\.py:FUNCTION"):
        load_maker(target)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("many_losses", r"returned a tensor of shape \(2, 1\), expected a tensor with one number"),
        ("number", r"returned a float, expected a tensor with one number"),
        ("closure", r"LBFGS\.step\(\) needs a closure"),
        ("scheduled", r"`optimizer` of the recipe \(.*training\.py:\d+\) returned a tuple"),
    ],
)
def test_what_cannot_be_trained_is_named(
    recipe: str, function: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says it where it is found out, which is in the first step."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "training", raising=False)
    made = make_recipe(load_maker(f"{recipe}:{function}"), 0)
    monkeypatch.delitem(sys.modules, "training")
    with pytest.raises(SettingsError, match=says):
        run_steps(made, batch_size=2, seconds=0.0, base_bytes=0)


def test_a_file_that_parses_a_command_line_finds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a script as well, and the arguments of the process that imports it are headrace's."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["child.py", "request.json"])
    (tmp_path / "parses.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\ndef make(): return 5\n"
    )
    assert load_maker(f"{tmp_path}/parses.py")() == 5
    monkeypatch.delitem(sys.modules, "parses")


@pytest.fixture(autouse=True)
def _keep_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [*sys.argv])


def test_a_file_that_bears_the_name_of_a_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would import the other one, and train something else."""
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "json.py").write_text("def make(): pass\n")
    with pytest.raises(SettingsError, match=r"json\.py bears the name of another module"):
        load_maker(f"{tmp_path}/json.py:make")


def test_ctrl_c_keeps_what_was_measured(recipe: str) -> None:
    """It comes after the second size; both are in the document, and one of them is recommended."""
    told: list[int] = []

    def interrupt(trial: SizeTrial) -> None:
        told.append(trial.batch_size)
        if len(told) == 2:
            raise KeyboardInterrupt

    document = search_batch_size(recipe, _quick(), on_trial=interrupt)
    assert document.interrupted
    assert [trial.batch_size for trial in document.trials] == told == [1, 2]
    assert document.batch_size in told


def test_a_search_that_is_killed_leaves_no_child_behind(recipe: str) -> None:
    """SIGKILL, as of the kernel's killer, leaves it no time to end the trial, which may hold gigabytes."""
    file = Path(recipe).with_name("child.txt")
    command = [sys.executable, "-m", "headrace", "train", "batch", f"{recipe}:endless"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as search:
        _wait_until(lambda: search.poll() is not None or (file.exists() and file.read_text().endswith("\n")))
        child = int(file.read_text())
        search.kill()
    _wait_until(lambda: _has_ended(child))
    assert _has_ended(child)


@pytest.mark.parametrize("word", ["batch", "check"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_search_says_so_and_has_ended_its_child(word: str, number: signal.Signals, recipe: str) -> None:
    """As of `timeout`, or of Ctrl-C, which ends no child by itself here."""
    file = Path(recipe).with_name("child.txt")
    command = [sys.executable, "-m", "headrace", "train", word, f"{recipe}:endless"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as search:
        _wait_until(lambda: search.poll() is not None or (file.exists() and file.read_text().endswith("\n")))
        search.send_signal(number)
        _, says = search.communicate(timeout=60)
    assert (search.returncode, "interrupted" in says) == (130, True)
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


def _wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def _has_ended(process: int) -> bool:
    """Return whether a process is gone, or dead and only waits to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_check_prints_accumulation_and_checkpoints(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Through child processes, as a document with what was asked for alone."""
    assert run_word(["check", recipe, "--only", "accumulation", "--only", "checkpointing", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.train_check/1"
    assert document["accumulation"]["findings"] == []
    assert document["accumulation"]["micro_batches"] == 4
    assert document["precision"] == []
    assert document["checkpointing"]["batch_size"] == 4
    assert document["checkpointing"]["peak_bytes"] > 0


def test_a_failure_of_the_users_code_comes_with_its_lines(recipe: str) -> None:
    """It is not taken for a lack of memory."""
    with pytest.raises(TrainingFailed, match=r"no such table: photos(?s:.*)in broken"):
        run_child("describe", f"{recipe}:broken")


def test_the_command_prints_a_table_and_json(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text with both charts; with --json the document, and progress on stderr alone."""
    assert run_word(["batch", recipe, "--seconds", "0.01", "--largest", "2"]) == 0
    text = capsys.readouterr()
    assert text.out.startswith("Batch size ")
    assert "Throughput\n" in text.out
    assert "Memory\n" in text.out
    assert "headrace train batch: batch of 1: " in text.err
    assert run_word(["batch", recipe, "--seconds", "0.01", "--json", "--largest", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "headrace.batch_search/1"
    assert [trial["batch_size"] for trial in document["trials"]] == [1]


def test_what_is_recommended_can_be_accepted(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings file holds it, and the way back is printed."""
    file, ledger = Path(recipe).with_name("settings.toml"), Path(recipe).with_name("ledger.sqlite")
    options = ["--seconds", "0.01", "--largest", "1", "--accept", str(file), "--ledger", str(ledger)]
    assert run_word(["batch", recipe, *options]) == 0
    assert file.read_text() == "batch_size = 1\n"
    assert f"headrace ledger rollback {file} --ledger {ledger}" in capsys.readouterr().err


LOSSES = """
import torch
from headrace.train import Recipe

def make(rate=0.0):  # at rate 0 nothing is learned, whatever the batch
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    return Recipe(
        model=model, loss=lambda model, batch: model(batch[0]).square().mean(), data=data, validation=data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate), batch_size=2,
    )

def steep():  # above a rate of 1 or so each step leads further away
    return make(rate=0.05)
"""


def test_a_harmless_larger_batch_is_kept_and_one_that_diverges_refused(tmp_path: Path) -> None:
    """Without learning the losses are equal; a rate that is scaled by 32 makes the loss grow beyond all bounds."""
    recipe = tmp_path / "losses.py"
    recipe.write_text(LOSSES)
    kept: list[LossComparison] = []
    settings = LossSettings(samples=64, rule="linear")
    compare_losses(f"{recipe}:make", 2, [16, 8], settings, on_comparison=kept.append)
    assert [(loss.batch_size, loss.outcome, loss.increase) for loss in kept] == [(16, "kept", 0.0)]
    refused: list[LossComparison] = []
    compare_losses(f"{recipe}:steep", 2, [64], LossSettings(samples=640, rule="linear"), on_comparison=refused.append)
    assert [(loss.batch_size, loss.outcome) for loss in refused] == [(64, "worse")]
