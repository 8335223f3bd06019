"""Which parts of a model take how long, forward and backward, in a few steps of a training."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

from headrace.cli.training_text import profile_text  # noqa: E402
from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.diagnose.training.steps import read_steps  # noqa: E402
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training  # noqa: E402
from headrace.report.training_page import render_training  # noqa: E402
from headrace.runs.formats.training_profile import LayerTime, layer_costs  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import Kind  # noqa: E402
from headrace.train import profile  # noqa: E402
from headrace.train.layer_times import STEPS, WARM_UP, divide  # noqa: E402
from headrace.train.profiler_schedule import LAYERS_VARIABLE  # noqa: E402

#: Enough after those that are apart to say something of them.
_NUM_STEPS = WARM_UP + STEPS + 40
#: Seconds that the slow part sleeps, forward and backward.
FORWARD, BACKWARD = 0.004, 0.008


class _Asleep(torch.autograd.Function):  # type: ignore[misc]
    """The identity, which takes its time."""

    @staticmethod
    def forward(_: Any, value: Any) -> Any:
        time.sleep(FORWARD)
        return value.clone()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        time.sleep(BACKWARD)
        return gradient.clone()


class _Slow(torch.nn.Module):  # type: ignore[misc]
    """A layer that sleeps between its own two."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, value: Any) -> Any:
        return self.after(_Asleep.apply(self.before(value)))


@pytest.fixture
def model() -> Any:
    """Two quick parts around a slow one, whose inside is one part where there is room for no more."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), _Slow(), torch.nn.Linear(8, 1))


def _train(model: Any, folder: Path, *, steps: int = _NUM_STEPS, more: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile([torch.ones(4, 8)] * steps, output=folder) as batches:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if more is not None:
                more(model)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of `headrace train --layers`."""
    monkeypatch.setenv(LAYERS_VARIABLE, "1")


def test_the_slow_part_is_named_forward_and_backward(
    tmp_path: Path, asked: None, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seconds are what it sleeps; the steps that were timed are apart; text, page and note show it."""
    monkeypatch.setattr("headrace.train.layer_times.MOST_PARTS", 3)
    _train(model, tmp_path / "run")
    run = read_run(tmp_path / "run")
    (rank,) = training_document(run).ranks
    assert [(one.name, one.module, one.parameters) for one in rank.layers] == [
        ("0", "Linear", 72), ("2", "_Slow", 144), ("3", "Linear", 9),
    ]  # fmt: skip
    slow = rank.layers[1]
    assert slow.forward_seconds >= FORWARD
    assert slow.backward_seconds is not None
    assert slow.backward_seconds >= BACKWARD
    compared, (first, second, third) = layer_costs(rank.layers)
    assert compared == "forward and backward"
    assert max(first, third) < second / 2
    (steps,) = read_steps(run)
    assert sum(kind is Kind.PROFILED for kind in steps.steps.kinds) == STEPS
    document = training_document(run)
    assert "part of the model" in profile_text(document)
    diagnosed = diagnose_training(TrainingAnalysis(run))
    assert any("is 2 (_Slow), one of 3: " in note for note in diagnosed.warnings)
    assert '<section id="layers">' in render_training(document, diagnosed)


def test_weights_are_the_same_bit_by_bit_and_no_hook_stays(tmp_path: Path, asked: None, model: Any) -> None:
    """Also of a copy that is made of the model in each step, which carries nothing of headrace's away."""
    other, copies = copy.deepcopy(model), []
    _train(model, tmp_path / "run", more=lambda one: copies.append(copy.deepcopy(one)))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(_NUM_STEPS):
        optimizer.zero_grad()
        other(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours._backward_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    copies[WARM_UP + 2](torch.ones(4, 8)).sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda model: torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 1))), "TorchScript"),
        (lambda model: torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 1)), backend="eager"), "compiled"),
    ],
    ids=["script", "compile"],
)
def test_what_has_no_parts_says_so(tmp_path: Path, asked: None, model: Any, make: Any, says: str) -> None:
    """The training goes on as it is, and the profile says why no part was timed."""
    _train(make(model), tmp_path / "run")
    (rank,) = training_document(read_run(tmp_path / "run")).ranks
    assert rank.layers == ()
    assert rank.about is not None
    assert says in rank.about.not_measured["time of the parts"]


def test_nobody_asked(tmp_path: Path, model: Any) -> None:
    """No part is timed, and nothing is said of it."""
    _train(model, tmp_path / "run")
    (rank,) = training_document(read_run(tmp_path / "run")).ranks
    assert rank.layers == ()
    assert rank.about is not None
    assert "time of the parts" not in rank.about.not_measured


def test_a_model_is_divided_where_its_parameters_are(model: Any) -> None:
    """The largest first, while there is room; a module that stands in two places is not taken apart."""
    assert [name for name, *_ in divide([model], 2)] == ["Sequential"]
    assert [name for name, *_ in divide([model], 3)] == ["0", "2", "3"]
    assert [name for name, *_ in divide([model], 4)] == ["0", "2.before", "2.after", "3"]
    assert [name for name, *_ in divide([model], 4, [id(model[2])])] == ["0", "2", "3"]
    shared = torch.nn.Linear(4, 4)
    twice = torch.nn.Sequential(torch.nn.Sequential(shared), torch.nn.Sequential(shared))
    assert {name.partition(".")[0] for name, *_ in divide([twice], 9)} == {"0", "1"}


def _layers(model: Any, folder: Path, batch: Any, more: Any = None) -> dict[str, LayerTime]:
    """Train on one batch again and again, and return the parts by their names."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile([batch] * _NUM_STEPS, output=folder) as batches:
        for number, one in enumerate(batches):
            optimizer.zero_grad()
            output = model(one)
            output.square().mean().backward()
            optimizer.step()
            if more is not None and number == WARM_UP + 2:
                more(model, output)
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    (rank,) = training_document(read_run(folder)).ranks
    return {one.name: one for one in rank.layers}


class _Scale(torch.nn.Module):  # type: ignore[misc]
    """Returns its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.ones(1))

    def forward(self) -> Any:
        return self.value


class _Tied(torch.nn.Module):  # type: ignore[misc]
    """An embedding whose weights the head has too, and a part that returns a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight
        self.middle, self.scale = torch.nn.Linear(8, 8), _Scale()

    def forward(self, tokens: Any) -> Any:
        return self.head(self.middle(self.embedding(tokens))) * self.scale()


class _Recurrent(torch.nn.Module):  # type: ignore[misc]
    """A cell that is called for each step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, value: Any) -> Any:
        for _ in range(4):
            value = torch.tanh(self.cell(value))
        return self.out(value)


class _Unused(torch.nn.Module):  # type: ignore[misc]
    """Two parts, of which one is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, value: Any) -> Any:
        return self.used(value)


def test_what_is_not_known_of_the_backward_pass_is_not_told(tmp_path: Path, asked: None) -> None:
    """Shared weights, an output that is a parameter, and several calls: the forward pass alone is told, of the others both."""
    tied = _layers(_Tied(), tmp_path / "tied", torch.zeros(4, 6, dtype=torch.long))
    assert {name for name, one in tied.items() if one.backward_seconds is None} == {"embedding", "head", "scale"}
    assert tied["middle"].backward_seconds is not None
    again = _layers(_Recurrent(), tmp_path / "again", torch.ones(4, 8))
    assert again["cell"].backward_seconds is None
    assert again["cell"].forward_seconds > 0
    assert again["out"].backward_seconds is not None
    assert layer_costs(tuple(again.values()))[0] == "forward"


def test_a_module_whose_parts_are_not_all_called_stays_whole(tmp_path: Path, asked: None) -> None:
    """Attention has parameters of its own too, and never calls the layer for its output."""
    model = torch.nn.Sequential(_Unused(), torch.nn.Linear(8, 1))
    assert set(_layers(model, tmp_path / "run", torch.ones(2, 8))) == {"0", "1"}
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    found = _layers(layer, tmp_path / "layer", torch.ones(2, 5, 8))
    assert {"self_attn", "linear1", "linear2"} <= set(found)
    assert found["self_attn"].forward_seconds > 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_what_a_program_does_with_a_model_within_these_steps_goes_on(tmp_path: Path, asked: None) -> None:
    """Scripting the model, and saving it and what it returned: neither an error nor a warning."""

    def more(model: Any, output: Any) -> None:
        torch.jit.script(model)
        torch.save(model, tmp_path / "model.pt")
        torch.save(output, tmp_path / "output.pt")

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    assert set(_layers(model, tmp_path / "run", torch.ones(4, 8), more)) == {"0", "2"}
