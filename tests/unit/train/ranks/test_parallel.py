"""One model on two real ranks, shared in every way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.runs.formats.parallel import StageTimes, Way
from headrace.train.ranks import parallel
from headrace.train.ranks.launch import RanksFailed
from headrace.train.ranks.parallel import ParallelSettings, describe, measure_ways, predict
from headrace.train.ranks.parallel_child import (
    Answer,
    Found,
    Step,
    _describe,
    find_layers,
    find_obstacle,
    find_unused,
    middle_of_messages,
    usual_of,
)
from headrace.train.search.recipe import Recipe, make_recipe

RECIPE = """
import torch

def make():
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
    return {
        "model": MODEL(*layers),
        "loss": lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
        "data": torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 8)),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "batch_size": 16,
    }
"""


@pytest.mark.full
def test_all_ways_train_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are alike after as many updates; 1F1B keeps as many micro-batches as stages, GPipe all of them."""
    (tmp_path / "shared.py").write_text(RECIPE.replace("MODEL", "torch.nn.Sequential"))
    options = ["--steps", "2", "--rounds", "2", "--micro-batches", "4", "--json"]
    assert main(["train", "parallel", f"{tmp_path}/shared.py", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    ways = {way["way"]: way for way in found["ways"]}
    assert list(ways) == list(Way)
    assert found["batch_size"] == 16
    one = ways[Way.ONE]
    assert [way["loss"] for way in ways.values()] == [pytest.approx(one["loss"], rel=1e-4)] * len(Way)
    assert [way["num_steps"] for way in ways.values()] == [4] * len(Way)
    assert [ways[way]["kept"] for way in (Way.MODEL, Way.GPIPE, Way.ONE_F_ONE_B)] == [1, 4, 2]
    layers = [layer for stage in ways[Way.GPIPE]["stages"] for layer in stage["layers"]]
    assert layers == ["0", "1", "2", "3", "4", "5"]
    assert all(stage["pass_seconds"] > 0 for stage in ways[Way.GPIPE]["stages"])
    assert all(0 < ways[way]["bubble"]["measured"] < 1 for way in (Way.MODEL, Way.GPIPE, Way.ONE_F_ONE_B))


@pytest.mark.full
def test_a_recipe_that_no_rank_can_make_ends_it(tmp_path: Path) -> None:
    """With what the rank said."""
    (tmp_path / "shared.py").write_text("def make():\n    raise ValueError('no data here')\n")
    with pytest.raises(RanksFailed, match="no data here"):
        measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py"))


@pytest.mark.full
def test_what_is_wrong_with_a_recipe_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that cannot make it is status 1, without a traceback; a file that is missing is misuse."""
    (tmp_path / "shared.py").write_text(RECIPE)
    assert main(["train", "parallel", f"{tmp_path}/shared.py:wrong"]) == 1
    told = capsys.readouterr().err
    assert "has no function 'wrong'" in told
    assert "Traceback" not in told
    assert main(["train", "parallel", f"{tmp_path}/missing.py"]) == 2
    assert "missing.py does not exist" in capsys.readouterr().err


@pytest.mark.full
def test_a_layer_that_gives_no_tensor_is_named(tmp_path: Path) -> None:
    """What it gives cannot be sent from stage to stage."""
    pair = "\nclass Pair(torch.nn.Linear):\n    def forward(self, values):\n        return super().forward(values), values\n"
    first = "\nclass First(torch.nn.Module):\n    def forward(self, values):\n        return values[0]\n"
    layers = "torch.nn.Sequential(Pair(8, 8), First(), *layers)"
    (tmp_path / "shared.py").write_text(RECIPE.replace("MODEL(*layers)", layers) + pair + first)
    with pytest.raises(RanksFailed, match="layer 0 of the model gives a tuple"):
        measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py", patience=60.0))


_LEAVES = """

class Leaves(torch.nn.Linear):
    calls = 0

    def forward(self, values):
        self.calls += 1
        if self.calls == 3 and __import__("os").environ["RANK"] == "1":
            raise SystemExit(3)
        return super().forward(values)
"""


@pytest.mark.full
def test_a_rank_whose_model_ends_the_program_ends_it(tmp_path: Path) -> None:
    """It does not wait for its group of ranks, which waits for the others."""
    layers = "torch.nn.Sequential(*layers, Leaves(8, 8))"
    (tmp_path / "shared.py").write_text(RECIPE.replace("MODEL(*layers)", layers) + _LEAVES)
    with pytest.raises(RanksFailed, match="rank 1 of 2 ended with exit status 3"):
        measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py", patience=60.0))


_PARTLY = """

class Partly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, values):
        return self.used(values)
"""


@pytest.mark.full
def test_a_frozen_stage_and_a_parameter_that_is_not_used_are_trained_all_the_same(tmp_path: Path) -> None:
    """A stage without gradients has no optimizer; DistributedDataParallel is told of what gets none."""
    layers = "torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False), torch.nn.Tanh(), Partly())"
    (tmp_path / "shared.py").write_text(RECIPE.replace("MODEL(*layers)", layers) + _PARTLY)
    found = measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py", steps=2, rounds=1))
    assert [way.way for way in found.ways] == list(Way)
    assert [way.loss for way in found.ways] == [pytest.approx(found.ways[0].loss, rel=1e-4)] * len(Way)
    assert any("2.unused.bias, 2.unused.weight of the model get no gradient" in one for one in found.warnings)


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "patience", "says"),
    [
        ("__import__('time').sleep(600)", 30.0, r"still ran after 30 s.*shared\.py\", line 2 in make"),
        ("__import__('ctypes').string_at(0)", 600.0, r"was ended by SIGSEGV.*shared\.py\", line 2 in make"),
    ],
)
def test_a_recipe_that_hangs_or_crashes_is_named_with_its_line(
    body: str, patience: float, says: str, tmp_path: Path
) -> None:
    """Neither prints anything by itself."""
    (tmp_path / "shared.py").write_text(f"def make():\n    {body}\n")
    with pytest.raises(RanksFailed, match=f"(?s){says}"):
        measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py", patience=patience))


def test_ranks_that_end_well_without_an_answer_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may call sys.exit()."""
    (tmp_path / "shared.py").write_text("")
    monkeypatch.setattr(parallel, "run_group", lambda _: None)
    with pytest.raises(RanksFailed, match=r"exit status 0 before a round was done: does the recipe call sys\.exit"):
        measure_ways(ParallelSettings(recipe=f"{tmp_path}/shared.py"))


def test_an_error_of_the_recipe_begins_at_its_own_line() -> None:
    """Frames of headrace and PyTorch before it would hide it: an error repeats a rank's last lines."""

    def make() -> dict[str, object]:
        return {"model": torch.nn.Linear(2, 2)(torch.ones(3))}

    with pytest.raises(RuntimeError) as raised:
        make_recipe(make, 0)
    told = _describe(raised.value).splitlines()
    assert [line.split(", ")[-1] for line in told if "File" in line][-1] == "in make"
    assert not any("recipe.py" in line or "nn/modules" in line for line in told)


def _recipe(model: object, loss: object = lambda model, batch: model(batch).mean()) -> Recipe:
    data = [torch.ones(2), torch.zeros(2)]
    return Recipe(model=model, loss=loss, data=data, optimizer=lambda _: None)  # type: ignore[arg-type]


def test_what_has_no_gradient_is_said() -> None:
    """DistributedDataParallel says it later, in words about itself."""
    with pytest.raises(SettingsError, match="no parameter of the recipe's model requires a gradient"):
        find_unused(_recipe(torch.nn.Linear(2, 2).requires_grad_(False)), [0])
    with pytest.raises(SettingsError, match=r"`loss` of the recipe returned a tensor without a gradient"):
        find_unused(_recipe(torch.nn.Linear(2, 2), lambda model, batch: model(batch).detach().mean()), [0])
    assert find_unused(_recipe(torch.nn.Linear(2, 2)), [0, 1]) == []


def test_layers_that_share_a_tensor_are_not_cut() -> None:
    """Each rank would train a copy; a layer without parameters may come twice, and is one each time."""
    first, second, act = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.ReLU()
    model = torch.nn.Sequential(first, act, second, act)
    assert [name for name, _ in find_layers(model)] == ["0", "1", "2", "3"]
    assert find_obstacle(model, 2) == ""
    second.weight = first.weight
    assert find_obstacle(model, 2).startswith("layers 0 and 2 of the model share the parameter 2.weight")
    assert find_obstacle(torch.nn.Sequential(first, act, first), 2).startswith("layers 0 and 2 of the model share")


def test_what_no_schedule_can_do_is_refused() -> None:
    """One rank, and fewer micro-batches than stages."""
    with pytest.raises(SettingsError, match="--ranks 1: one rank shares nothing"):
        ParallelSettings(recipe="shared.py", ranks=1)
    with pytest.raises(SettingsError, match="--micro-batches 1 for 2 ranks"):
        ParallelSettings(recipe="shared.py", micro_batches=1)


def _answer(found: list[Found], *, asked_size: int = 8, left_out: str = "") -> Answer:
    return Answer(batch_size=8, asked_size=asked_size, found=found, left_out=left_out)


def test_a_batch_that_was_cut_and_cores_that_were_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples for two ranks and four micro-batches are eight; a tenth of the time without a core is the machine's."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    step = Step(began=0.0, computed=1.0, ended=2.0, busy=1.0, kept=1, loss=0.5, core_wait=0.2)
    found = [Found(way=Way.ONE, steps=[[step]], stages=[])]
    warnings = describe(ParallelSettings(recipe="shared.py"), _answer(found, asked_size=10)).warnings
    assert warnings[0].startswith(
        "a batch of 10 cannot be shared by 2 ranks and cut into 4 micro-batches evenly: 8 samples"
    )
    assert warnings[1].startswith("ranks could compute and had no core for 10% of the time: other programs had it")


def test_a_message_takes_from_when_it_is_sent_until_the_waiting_rank_has_it() -> None:
    """What the sender does before is not in it, nor are the first messages, for which connections are made."""
    sent = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    came = [5.0, 19.0, 20.1, 30.2, 40.3, 50.4, 60.5]
    assert middle_of_messages(sent, came) == pytest.approx(0.3)


def test_a_pass_takes_its_mean_without_a_tenth_at_each_end() -> None:
    """Passes of a step add up, so their middle is too little where some are slow; one in ten may be an accident."""
    assert usual_of([1.0] * 6 + [2.0] * 3 + [100.0]) == pytest.approx(11.0 / 8)
    assert usual_of([1.0, 1.0, 2.0, 2.0, 100.0]) == pytest.approx(5.0 / 3)
    assert usual_of([1.0, 3.0]) == 2.0


def test_what_the_schedule_takes_is_part_of_the_prediction() -> None:
    """Within a pass it is computing, around one it is bubble: 2 x (1 + 0.25 + 0.5) s, of which 2 x 1.25 s are computed."""
    stage = StageTimes(
        layers=("0",), forward_seconds=1.0, backward_seconds=1.0, transfer_seconds=0.0, pass_seconds=0.25, between_seconds=0.5
    )  # fmt: skip
    found = predict(Way.GPIPE, [stage], 1)
    assert (found.seconds, found.bubble) == (pytest.approx(3.5), pytest.approx(1 - 2.5 / 3.5))


def test_a_loss_that_differs_is_said() -> None:
    """The same batch and weights, another loss: another training. What is left out is said too."""

    def step(loss: float) -> list[Step]:
        return [Step(began=0.0, computed=1.0, ended=2.0, busy=1.0, kept=1, loss=loss)]

    found = [
        Found(way=Way.ONE, steps=[step(0.5)], stages=[]),
        Found(way=Way.DATA, steps=[step(0.5), step(0.7)], stages=[]),
    ]
    document = describe(ParallelSettings(recipe="shared.py"), _answer(found, left_out="it has one layer"))
    assert not any("cannot be shared" in warning or "no core" in warning for warning in document.warnings)
    assert any("it has one layer" in warning for warning in document.warnings)
    assert any("the loss of the last step is 0.6, with one rank 0.5" in warning for warning in document.warnings)
    assert [way.samples_per_second for way in document.ways] == [4.0, 4.0]
