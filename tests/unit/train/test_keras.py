"""A training of Keras as the callback records it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.full,  # importing these takes seconds
    pytest.mark.filterwarnings("default"),  # of Keras: data that end early, what PyTorch renames
]

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402


class _Break(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises after the third step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            raise ValueError("as the test wants")


class _Stop(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops the training after the third step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.stop_training = True


def _data() -> Any:
    torch.manual_seed(2)
    return torch.utils.data.TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))


def _model() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, jit_compile=False)
    return model


def _fit(callbacks: list[Any], *, validate: bool = False) -> Any:
    model = _model()
    data = _data()
    loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
    validation = torch.utils.data.DataLoader(data, batch_size=10) if validate else None
    model.fit(loader, epochs=2, verbose=0, callbacks=callbacks, validation_data=validation)
    return model


def _stretches(folder: Path, unit: str = "step") -> list[dict[str, Any]]:
    return [one for one in read_run(folder).spans().to_pylist() if (one["unit"], one["stage"]) == (unit, "whole")]


def _phases(folder: Path) -> Counter[str]:
    return Counter(one["stage"] for one in read_run(folder).spans().to_pylist() if one["unit"] == "step")


def test_steps_and_epochs_are_counted(tmp_path: Path) -> None:
    """Two epochs of five batches are ten steps, two of which begin an epoch, with all phases."""
    _fit([train.KerasCallback(tmp_path / "run")])
    steps = _stretches(tmp_path / "run")
    assert [step["batch_size"] for step in steps] == [10] * 10
    assert Counter(step["release_reason"] for step in steps) == {"epoch_start": 2, None: 8}
    phases = _phases(tmp_path / "run")
    assert {phases[name] for name in ("wait", "prepare", "forward", "backward", "optimizer", "after")} == {10}
    assert read_run(tmp_path / "run").info.status == "finished"


def test_what_trained_is_described(tmp_path: Path) -> None:
    """The process file names the framework, the model and the optimizer, which is none of PyTorch's."""
    model = _fit([train.KerasCallback(tmp_path / "run")])
    (file,) = (tmp_path / "run" / FOLDER).glob("*.json")
    process = decode_document(file.read_bytes(), TrainingProcess)
    assert (process.framework, process.steps) == ("keras", 10)
    assert (process.modules, process.optimizers) == (("Sequential",), ("SGD",))
    assert process.num_parameters == sum(one.numel() for one in model.parameters())
    assert [loader.dataset for loader in process.loaders] == ["TensorDataset"]


def test_weights_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    """A recorded training with shuffling and dropout ends with the weights of one that nobody watched."""
    bare, watched = _fit([], validate=True), _fit([train.KerasCallback(tmp_path / "run")], validate=True)
    pairs = zip(bare.get_weights(), watched.get_weights(), strict=True)
    assert all((one == other).all() for one, other in pairs)


def test_validation_is_apart(tmp_path: Path) -> None:
    """Validating after each epoch neither makes nor lengthens a step."""
    _fit([train.KerasCallback(tmp_path / "run")], validate=True)
    assert [step["batch_size"] for step in _stretches(tmp_path / "run")] == [10] * 10
    assert len(_stretches(tmp_path / "run", "validation")) >= 2


def test_arrays_are_recorded_as_well(tmp_path: Path) -> None:
    """NumPy arrays go through a loader that Keras makes."""
    features, labels = (tensor.numpy() for tensor in _data().tensors)
    _model().fit(features, labels, batch_size=10, verbose=0, callbacks=[train.KerasCallback(tmp_path / "run")])
    assert [step["batch_size"] for step in _stretches(tmp_path / "run")] == [10] * 5
    assert _phases(tmp_path / "run")["wait"] == 5


def test_stopping_early_ends_the_record(tmp_path: Path) -> None:
    """A training that another callback stops after three steps is finished, and nothing stays replaced."""
    functions = torch.autograd.backward, torch.save
    model = _fit([_Stop(), train.KerasCallback(tmp_path / "run")])
    assert (read_run(tmp_path / "run").info.status, len(_stretches(tmp_path / "run"))) == ("finished", 3)
    assert (torch.autograd.backward, torch.save) == functions
    assert "call" not in vars(model)
    assert "apply" not in vars(model.optimizer)


@pytest.mark.parametrize("is_same", [True, False])
def test_of_two_callbacks_the_last_records(is_same: bool, tmp_path: Path) -> None:
    """A callback that is given twice, or a second one, neither ends the training nor leaves anything replaced."""
    first, last = train.KerasCallback(tmp_path / "first"), train.KerasCallback(tmp_path / "last")
    model = _fit([first, first] if is_same else [first, last])
    assert len(_stretches(tmp_path / ("first" if is_same else "last"))) == 10
    assert ("call" in vars(model), "apply" in vars(model.optimizer)) == (False, False)


def test_a_training_that_raised_is_closed_by_the_next(tmp_path: Path) -> None:
    """Keras does not say that `fit` raised: the record stays open until the callback begins again, or the process ends."""
    callback = train.KerasCallback(tmp_path / "run", force=True)
    with pytest.raises(ValueError, match="as the test wants"):
        _fit([callback, _Break()])
    assert callback._run.session is not None
    callback._run.end(failed=True)
    assert read_run(tmp_path / "run").info.status == "failed"
    assert len(_stretches(tmp_path / "run")) == 3
    _fit([callback])
    assert read_run(tmp_path / "run").info.status == "finished"


_SCRIPT = """
import os
import subprocess
import sys
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
model.compile(optimizer="sgd", loss="mse")
data = np.random.rand(50, 8), np.random.rand(50, 3)
own = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: print("epoch"))
for callbacks in (None, own, [own], keras.callbacks.CallbackList([own], model=model, epochs=2)):
    model.fit(*data, batch_size=10, epochs=2, verbose=0, callbacks=callbacks, validation_data=data)
print([float(one.sum()).hex() for one in model.get_weights()])
raise SystemExit(4)
"""


def test_a_script_needs_no_callback(tmp_path: Path) -> None:
    """Under `headrace train`, whatever it gives `fit`; prints, weights and exit status are those of a bare start."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    armed = ["-m", "headrace", "train", "-o", str(tmp_path / "run")]
    bare, recorded = (
        subprocess.run([sys.executable, *before, str(script)], capture_output=True, text=True, timeout=300)
        for before in ([], armed)
    )
    assert (recorded.stdout, recorded.returncode) == (bare.stdout, 4)
    assert bare.stdout.count("epoch") == 6
    assert "cannot be recorded" not in recorded.stderr
    steps = _stretches(tmp_path / "run")
    assert Counter(step["release_reason"] for step in steps) == {"epoch_start": 8, None: 32}
    assert "forward" in _phases(tmp_path / "run")


def test_saving_is_a_checkpoint(tmp_path: Path) -> None:
    """Keras has a format of its own, which `torch.save` has no part in."""
    callback, phases = train.KerasCallback(tmp_path / "run"), []
    original = keras.layers.Dense.save_own_variables

    def save(layer: Any, store: Any) -> None:
        phases.append(callback._run.session.recorder.phase)
        original(layer, store)

    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(keras.layers.Dense, "save_own_variables", save)
        _fit([callback, keras.callbacks.ModelCheckpoint(str(tmp_path / "saved.keras"))])
    assert phases
    assert set(phases) == {"checkpoint"}
