"""A loop of PyTorch as it is recorded into a run folder."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.base.errors import RunFolderError  # noqa: E402
from headrace.diagnose.training.verdicts import TrainingAnalysis  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.train.exchange import ExchangeHooks  # noqa: E402
from headrace.train.profiler_schedule import LAYERS_VARIABLE  # noqa: E402
from headrace.train.session import Session  # noqa: E402


def _fit(model: Any, loader: Any, path: Path, epochs: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        torch.save(model.state_dict(), path)


def _parts() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 3))
    data = torch.utils.data.TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))
    return model, torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)


def test_a_recorded_training_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    """Weights after dropout and shuffling are those of a training that nobody watched, and every hook is gone."""
    model, loader = _parts()
    _fit(model, loader, tmp_path / "bare.pt")
    watched, loader = _parts()
    functions = torch.autograd.backward, torch.save
    with train.profile(loader, output=tmp_path / "run") as same:
        _fit(watched, same, tmp_path / "watched.pt")
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), watched.parameters(), strict=True))
    assert (torch.autograd.backward, torch.save) == functions
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())


def test_a_run_folder_tells_of_steps_epochs_and_checkpoints(tmp_path: Path) -> None:
    """Ten steps of ten samples, two of them at the start of an epoch; what trained is described beside them."""
    model, loader = _parts()
    with train.profile(loader, output=tmp_path / "run") as same:
        _fit(model, same, tmp_path / "model.pt")
    run = read_run(tmp_path / "run")
    spans = run.spans().to_pylist()
    steps = [span for span in spans if (span["unit"], span["stage"]) == ("step", "whole")]
    assert (run.info.unit, run.info.status, run.problems) == ("step", "finished", [])
    assert [step["batch_size"] for step in steps] == [10] * 10
    assert Counter(step["release_reason"] for step in steps) == {"epoch_start": 2, None: 8}
    assert sum(span["stage"] == "checkpoint" for span in spans) == 2
    (file,) = (tmp_path / "run" / FOLDER).iterdir()
    process = decode_document(file.read_bytes(), TrainingProcess)
    assert (process.modules, process.optimizers, process.num_parameters) == (("Sequential",), ("SGD",), 195)
    assert (process.steps, process.loaders[0].batch_size, process.loaders[0].num_items) == (10, 10, 50)


def _swap_names(table: pa.Table) -> pa.Table:
    names = ["forward", "backward"]
    stages = [names[1 - names.index(one)] if one in names else one for one in table["stage"].to_pylist()]
    at = table.schema.get_field_index("stage")
    return table.set_column(at, table.schema.field(at), pa.array(stages).cast(table.schema.field(at).type))


def _scale_clocks(table: pa.Table) -> pa.Table:
    begun = pc.min(table["started"]).as_py()
    for name in ("arrived", "dequeued", "started", "ended", "put"):
        scaled = pa.array([begun + (one - begun) // 2 for one in table[name].to_pylist()])
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), scaled)
    for name in ("cpu", "run_delay"):
        scaled = pa.array([None if one is None else one // 2 for one in table[name].to_pylist()], pa.int64())
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), scaled)
    return table


@pytest.mark.parametrize("edit", [_swap_names, _scale_clocks, pa.Table.combine_chunks])
def test_files_that_are_not_as_they_were_written_are_not_trusted(
    edit: Callable[[pa.Table], Any], tmp_path: Path
) -> None:
    """What was recorded is trusted; if all clocks are scaled alike, or phases swap names, sums are right and files are not."""
    model, loader = _parts()
    with train.profile(loader, output=tmp_path / "run") as same:
        _fit(model, same, tmp_path / "model.pt")
    assert not TrainingAnalysis(read_run(tmp_path / "run")).document.distrust
    for file in (tmp_path / "run" / "spans").iterdir():
        pq.write_table(edit(pq.read_table(file)), file)
    (distrust,) = TrainingAnalysis(read_run(tmp_path / "run")).document.distrust
    assert "are not those that it wrote: edited, damaged or lost" in distrust


def test_the_early_description_never_replaces_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step is only ended by closing, and begins the early description then; that takes its time."""
    early = Session._describe_early

    def describe_late(session: Session) -> None:
        ended.wait(0.2)
        early(session)

    ended = threading.Event()
    monkeypatch.setattr(Session, "_describe_early", describe_late)
    (tmp_path / "run").mkdir()
    session, (model, loader) = Session(tmp_path / "run"), _parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, _ in itertools.islice(session.watch(loader), 2):
        optimizer.zero_grad()
        model(images).sum().backward()
        optimizer.step()
    session.close()
    for thread in threading.enumerate():
        if thread.name == "headrace-describe":
            thread.join()
    process = _only_process(tmp_path / "run")
    assert (process.steps, process.has_ended) == (2, True)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_before_the_first_step(
    is_enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full collection that was due falls into no step; a program that has none gets none."""
    collected: list[int] = []
    monkeypatch.setattr(gc, "isenabled", lambda: is_enabled)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    Session(tmp_path, script="train.py").close()
    assert collected == [1] * is_enabled


def test_an_exception_goes_through_and_is_noted(tmp_path: Path) -> None:
    """The program sees its own error; the run says that it failed, and in which step."""
    model, loader = _parts()

    def fail() -> None:
        with train.profile(loader, output=tmp_path / "run") as same:
            for images, _ in same:
                model(images).sum().backward()
                raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        fail()
    run = read_run(tmp_path / "run")
    wholes = [span for span in run.spans().to_pylist() if span["stage"] == "whole"]
    assert run.info.status == "failed"
    assert wholes[-1]["outcome"] == "failed"


def test_a_folder_that_cannot_be_taken_is_told_in_words_of_python(tmp_path: Path) -> None:
    """The arguments of the function, no options of a command."""
    _, loader = _parts()
    with train.profile(loader, output=tmp_path):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for output, force, words in (
        (tmp_path, False, "replace it with force=True"),
        (tmp_path / "other", True, "force=True"),
    ):
        with pytest.raises(RunFolderError, match=words) as raised, train.profile(loader, output=output, force=force):
            pass
        assert "-o" not in str(raised.value).split()
        assert "--force" not in str(raised.value)


def test_a_part_that_cannot_be_closed_costs_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a script does to its files and threads may break one part of the recording: the rest is written, a line says so."""

    def fail(_: ExchangeHooks) -> None:
        raise OSError("Bad file descriptor")

    monkeypatch.setattr(ExchangeHooks, "detach", fail)
    model, loader = _parts()
    with train.profile(loader, output=tmp_path / "run") as same:
        _fit(model, same, tmp_path / "model.pt")
    assert "may not be whole: OSError: Bad file descriptor" in caplog.text
    run = read_run(tmp_path / "run")
    assert sum((span["unit"], span["stage"]) == ("step", "whole") for span in run.spans().to_pylist()) == 10
    assert len(list((tmp_path / "run" / FOLDER).iterdir())) == 1


class _WithLayerLeftOut(torch.nn.Module):  # type: ignore[misc]
    """A model with a lazy layer that is never called: its parameters have no size."""

    def __init__(self) -> None:
        super().__init__()
        self.called = torch.nn.Linear(4, 1)
        self.left_out = torch.nn.LazyLinear(3)

    def forward(self, values: Any) -> Any:
        return self.called(values)


def test_a_lazy_layer_that_is_never_called_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no size yet is not counted: asking for it raises."""
    monkeypatch.setenv(LAYERS_VARIABLE, "1")
    model = _WithLayerLeftOut()
    optimizer = torch.optim.SGD(model.called.parameters(), lr=0.1)
    with train.profile([torch.randn(8, 4)] * 40, output=tmp_path / "run") as batches:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    process = _only_process(tmp_path / "run")
    assert (process.steps, process.num_parameters, process.parameter_bytes) == (40, 5, 20)
    assert process.details["gradients"]["sizes"] == [16, 4]
    assert [layer[0] for layer in process.details["layers"]] == ["_WithLayerLeftOut"], process.not_measured


def test_an_optimizer_that_cannot_be_described_does_not_end_the_training(tmp_path: Path) -> None:
    """Its class is somebody else's, and so may be what its state answers."""

    class Odd(torch.optim.SGD):
        def __getattribute__(self, name: str) -> Any:
            if name == "state" and sys._getframe(1).f_code.co_filename.endswith("memory_owned.py"):
                raise LookupError("not now")
            return super().__getattribute__(name)

    model = torch.nn.Linear(4, 1)
    optimizer = Odd(model.parameters(), lr=0.1)
    updates = 0
    with train.profile([torch.randn(8, 4)] * 12, output=tmp_path / "run") as batches:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            updates += 1
    assert updates == 12
    process = _only_process(tmp_path / "run")
    assert (process.steps, process.num_parameters) == (12, 0)


def test_of_models_one_after_the_other_without_a_loader_the_last_is_told(tmp_path: Path) -> None:
    """A new optimizer may be that of a new model: it is looked for."""

    def fit(width: int) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()

    session = Session(tmp_path, script="train.py")
    try:
        for width in (2, 3):
            fit(width)
            gc.collect()
    finally:
        session.close()
    process = _only_process(tmp_path)
    assert (process.modules, process.num_parameters) == (("Sequential",), 4 * 3 + 3 + 3 + 1)


def _only_process(folder: Path) -> TrainingProcess:
    (file,) = (folder / FOLDER).iterdir()
    return decode_document(file.read_bytes(), TrainingProcess)
