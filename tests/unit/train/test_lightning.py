"""A training of Lightning as the callback records it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("pytorch_lightning")
pytestmark = [
    pytest.mark.full,  # importing these takes seconds
    # Of Lightning: loaders without workers, the machine's cores, its own use of PyTorch.
    pytest.mark.filterwarnings("default"),
]

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.base.errors import RunFolderError  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402


class _Model(lightning.LightningModule):  # type: ignore[misc]
    """Two layers and dropout."""

    def __init__(self, fail_at: int = -1, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 3))
        self.fail_at, self.error = fail_at, error

    def training_step(self, batch: Any, index: int) -> Any:
        if self.global_step == self.fail_at:
            raise self.error("as the test wants")
        return self._loss(batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", self._loss(batch))

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def _loss(self, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Items without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(8), torch.tensor(1))] * 30)


def _loader(**options: Any) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))
    return torch.utils.data.DataLoader(data, batch_size=10, **options)


def _trainer(callbacks: list[Any], **options: Any) -> Any:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", callbacks=callbacks, **{"max_epochs": 2, **quiet, **options})


def _fit(folder: Path | None, val: bool = False, loader: Any = None, model: Any = None, **options: Any) -> Any:
    torch.manual_seed(1)
    model = model or _Model()
    data = _loader(shuffle=True) if loader is None else loader
    callbacks = [] if folder is None else [train.LightningCallback(folder)]
    _trainer(callbacks, **options).fit(model, data, _loader() if val else None)
    return model


def _stretches(folder: Path, unit: str = "step") -> list[dict[str, Any]]:
    return [one for one in read_run(folder).spans().to_pylist() if (one["unit"], one["stage"]) == (unit, "whole")]


def _phases(folder: Path) -> Counter[str]:
    return Counter(one["stage"] for one in read_run(folder).spans().to_pylist() if one["unit"] == "step")


def test_steps_and_epochs_are_counted(tmp_path: Path) -> None:
    """Two epochs of five batches are ten steps, two of which begin an epoch; each waited for one batch."""
    _fit(tmp_path / "run")
    steps = _stretches(tmp_path / "run")
    assert [step["batch_size"] for step in steps] == [10] * 10
    assert Counter(step["release_reason"] for step in steps) == {"epoch_start": 2, None: 8}
    phases = _phases(tmp_path / "run")
    assert {name: phases[name] for name in ("wait", "prepare", "forward", "backward")} == dict.fromkeys(
        ("wait", "prepare", "forward", "backward"), 10
    )
    run = read_run(tmp_path / "run")
    assert (run.info.status, run.info.unit, run.problems) == ("finished", "step", [])


def test_what_trained_is_described(tmp_path: Path) -> None:
    """The process file names the framework, the loader and the optimizer."""
    _fit(tmp_path / "run")
    (file,) = (tmp_path / "run" / FOLDER).glob("*.json")
    process = decode_document(file.read_bytes(), TrainingProcess)
    assert (process.framework, process.steps, process.optimizers) == ("lightning", 10, ("SGD",))
    assert [loader.dataset for loader in process.loaders] == ["TensorDataset"]


def test_weights_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    """A recorded training with shuffling and dropout ends with the weights of one that nobody watched."""
    bare, watched = _fit(None, val=True), _fit(tmp_path / "run", val=True)
    assert all(torch.equal(one, other) for one, other in zip(bare.parameters(), watched.parameters(), strict=True))


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """Two batches are one step; the last batch of each epoch is one by itself."""
    _fit(tmp_path / "run", accumulate_grad_batches=2)
    assert [step["batch_size"] for step in _stretches(tmp_path / "run")] == [20, 20, 10] * 2


def test_validation_is_apart(tmp_path: Path) -> None:
    """Neither the sanity check nor the validation after each epoch makes or lengthens a step."""
    _fit(tmp_path / "run", val=True)
    assert [step["batch_size"] for step in _stretches(tmp_path / "run")] == [10] * 10
    assert len(_stretches(tmp_path / "run", "validation")) >= 3


def test_prediction_is_not_recorded(tmp_path: Path) -> None:
    """`predict` makes no run folder."""
    _trainer([train.LightningCallback(tmp_path / "run")]).predict(_Model(), _loader())
    assert not (tmp_path / "run").exists()


def test_a_loader_without_length_is_one_batch_ahead(tmp_path: Path) -> None:
    """Lightning asks for one batch more than it uses; the steps are three all the same."""
    _fit(tmp_path / "run", loader=torch.utils.data.DataLoader(_Stream(), batch_size=10), max_epochs=1)
    assert len(_stretches(tmp_path / "run")) == 3


def test_the_most_steps_end_a_training(tmp_path: Path) -> None:
    """Seven steps of an unbounded training are seven steps."""
    _fit(tmp_path / "run", max_steps=7, max_epochs=-1)
    assert len(_stretches(tmp_path / "run")) == 7


def test_an_exception_closes_the_record(tmp_path: Path) -> None:
    """Three steps are there, the fourth is marked, and no hook is left."""
    functions = torch.autograd.backward, torch.save
    model = _Model(fail_at=3)
    with pytest.raises(ValueError, match="as the test wants"):
        _fit(tmp_path / "run", model=model)
    assert read_run(tmp_path / "run").info.status == "failed"
    assert [step["outcome"] for step in _stretches(tmp_path / "run")][:3] == ["ok"] * 3
    assert (torch.autograd.backward, torch.save) == functions
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_ctrl_c_closes_the_record(tmp_path: Path) -> None:
    """Lightning ends the process after Ctrl-C; the steps until then are there."""
    with pytest.raises(SystemExit):
        _fit(tmp_path / "run", model=_Model(fail_at=3, error=KeyboardInterrupt))
    assert read_run(tmp_path / "run").info.status == "failed"
    assert len([step for step in _stretches(tmp_path / "run") if step["outcome"] == "ok"]) == 3


def test_a_loader_with_lasting_workers_can_be_used_again(tmp_path: Path) -> None:
    """Lightning stops the loader's own workers after the training, so that the next one starts new ones."""
    loader = _loader(num_workers=1, persistent_workers=True)
    for name in ("first", "second"):
        _fit(tmp_path / name, loader=loader, max_epochs=1)
        assert len(_stretches(tmp_path / name)) == 5
        assert loader._iterator is None


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    """A run is not replaced without `force`."""
    _fit(tmp_path / "run", max_epochs=1)
    with pytest.raises(RunFolderError):
        _fit(tmp_path / "run", max_epochs=1)


def test_of_two_callbacks_the_last_records(tmp_path: Path) -> None:
    """A second callback neither ends the training nor leaves anything replaced."""
    trainer = _trainer([train.LightningCallback(tmp_path / name) for name in ("first", "last")])
    trainer.fit(_Model(), _loader())
    assert len(_stretches(tmp_path / "last")) == 10
    assert "_load_combined_loader_states" not in vars(trainer.fit_loop)


def test_saving_is_a_checkpoint(tmp_path: Path) -> None:
    """All of it: `torch.save` writes into memory there, and Lightning into the file."""
    callback, phases = train.LightningCallback(tmp_path / "run"), []

    class Saved(_Model):  # type: ignore[misc]
        def on_save_checkpoint(self, _: Any) -> None:
            phases.append(callback._run.session.recorder.phase)

    saving = lightning.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2)
    _trainer([callback, saving], enable_checkpointing=True).fit(Saved(), _loader())
    assert phases
    assert set(phases) == {"checkpoint"}
