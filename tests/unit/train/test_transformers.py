"""A training of Hugging Face's Trainer as the callback records it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.full,  # importing these takes seconds
    pytest.mark.filterwarnings("default"),  # of transformers: memory of a GPU that is not there, what it renames
]

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402

_NUM_ITEMS = 24


class _Items(torch.utils.data.Dataset):  # type: ignore[misc]
    """Tokens that nobody downloaded; the one of number `fail_at` cannot be read."""

    def __init__(self, fail_at: int = -1) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, 50, (_NUM_ITEMS, 6), generator=generator)
        self.fail_at = fail_at

    def __len__(self) -> int:
        return _NUM_ITEMS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fail_at:
            raise ValueError("as the test wants")
        return {"input_ids": self.tokens[index], "labels": index % 2}


def _trainer(folder: Path, callbacks: list[Any], data: Any = None, **options: Any) -> Any:
    transformers.set_seed(1)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    settings: dict[str, Any] = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
    }
    args = transformers.TrainingArguments(output_dir=str(folder / "out"), **{**settings, **options})
    model = transformers.BertForSequenceClassification(config)
    return transformers.Trainer(
        model=model, args=args, train_dataset=data or _Items(), eval_dataset=_Items(), callbacks=callbacks
    )


def _fit(folder: Path, **options: Any) -> Any:
    trainer = _trainer(folder, [train.TrainerCallback(folder / "run")], **options)
    trainer.train()
    return trainer


def _stretches(folder: Path, unit: str = "step") -> list[dict[str, Any]]:
    spans = read_run(folder / "run").spans().to_pylist()
    return [one for one in spans if (one["unit"], one["stage"]) == (unit, "whole")]


def _phases(folder: Path) -> Counter[str]:
    return Counter(one["stage"] for one in read_run(folder / "run").spans().to_pylist() if one["unit"] == "step")


def test_steps_and_epochs_are_counted(tmp_path: Path) -> None:
    """Two epochs of six batches are twelve steps, two of which begin an epoch; every batch was waited for and moved.

    Trainer moves a batch before its own event of the step, and its events came in a strange order (traceml #276, transformers
    #10839).
    """
    _fit(tmp_path)
    steps = _stretches(tmp_path)
    assert len(steps) == 12
    assert sum(step["batch_size"] for step in steps) == 2 * _NUM_ITEMS
    assert [number for number, step in enumerate(steps) if step["release_reason"] == "epoch_start"] == [0, 6]
    phases = _phases(tmp_path)
    assert (phases["forward"], phases["backward"], phases["wait"]) == (12, 12, 12)
    assert phases["prepare"] >= 12
    assert read_run(tmp_path / "run").info.status == "finished"


def test_what_trained_is_described(tmp_path: Path) -> None:
    """The process file names the framework, the model, and the loader within Accelerate's."""
    _fit(tmp_path, max_steps=2)
    (file,) = (tmp_path / "run" / FOLDER).glob("*.json")
    process = decode_document(file.read_bytes(), TrainingProcess)
    assert (process.framework, process.steps) == ("transformers", 2)
    assert process.modules == ("BertForSequenceClassification",)
    assert [loader.dataset for loader in process.loaders] == ["_Items"]


def test_weights_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    """A recorded training with shuffling and dropout ends with the weights of one that nobody watched."""
    bare = _trainer(tmp_path, [])
    bare.train()
    watched = _fit(tmp_path)
    pairs = zip(bare.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """Batches are gathered before the step begins; two of them are one step all the same."""
    _fit(tmp_path, gradient_accumulation_steps=2)
    assert len(_stretches(tmp_path)) == 6
    assert _phases(tmp_path)["forward"] == 12


def test_evaluation_is_apart(tmp_path: Path) -> None:
    """Evaluating after each epoch makes no step, and its batches are in none."""
    _fit(tmp_path, eval_strategy="epoch")
    assert len(_stretches(tmp_path)) == 12
    assert _phases(tmp_path)["forward"] == 12
    assert len(_stretches(tmp_path, "validation")) >= 2


def test_evaluation_in_the_midst_of_an_epoch_is_apart(tmp_path: Path) -> None:
    """Evaluating every four steps changes neither their number nor their forward passes."""
    _fit(tmp_path, eval_strategy="steps", eval_steps=4)
    assert (len(_stretches(tmp_path)), _phases(tmp_path)["forward"]) == (12, 12)


def test_a_resume_that_skips_batches_counts_what_it_did(tmp_path: Path) -> None:
    """After four steps of an epoch of six, the rest are two and six, and none of them holds a skipped batch (traceml #471)."""
    _trainer(tmp_path, [], save_strategy="steps", save_steps=4, max_steps=4).train()
    trainer = _trainer(tmp_path, [train.TrainerCallback(tmp_path / "run")], save_strategy="no")
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    steps = _stretches(tmp_path)
    assert len(steps) == 8
    assert sum(step["batch_size"] for step in steps) == 2 * 4 + _NUM_ITEMS
    assert [number for number, step in enumerate(steps) if step["release_reason"] == "epoch_start"] == [0, 2]


def test_what_was_replaced_is_put_back(tmp_path: Path) -> None:
    """After a training nothing of PyTorch or transformers is replaced."""
    functions = torch.autograd.backward, torch.save, transformers.trainer.skip_first_batches
    trainer = _fit(tmp_path, max_steps=2)
    assert (torch.autograd.backward, torch.save, transformers.trainer.skip_first_batches) == functions
    assert "__iter__" not in vars(trainer.callback_handler.train_dataloader.base_dataloader)


def test_a_training_that_raised_is_closed_by_the_next(tmp_path: Path) -> None:
    """Trainer does not say that it raised: the record is closed as failed when the callback begins again."""
    callback = train.TrainerCallback(tmp_path / "run", force=True)
    trainer = _trainer(tmp_path, [callback], data=_Items(fail_at=3))
    with pytest.raises(ValueError, match="as the test wants"):
        trainer.train()
    assert callback._run.session is not None
    callback._run.end(failed=True)
    assert read_run(tmp_path / "run").info.status == "failed"
    _trainer(tmp_path, [callback], max_steps=2).train()
    assert (read_run(tmp_path / "run").info.status, len(_stretches(tmp_path))) == ("finished", 2)


def test_saving_is_a_checkpoint(tmp_path: Path) -> None:
    """All that `save_steps` brings about: the model goes into a file that `torch.save` has no part in."""
    callback = train.TrainerCallback(tmp_path / "run")
    trainer = _trainer(tmp_path, [callback], save_strategy="steps", save_steps=4)
    original, phases = trainer.model.save_pretrained, []

    def save(*args: Any, **kwargs: Any) -> None:
        phases.append(callback._run.session.recorder.phase)
        original(*args, **kwargs)

    trainer.model.save_pretrained = save
    trainer.train()
    assert phases == ["checkpoint"] * 3
