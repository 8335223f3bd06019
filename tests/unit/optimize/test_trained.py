"""Techniques that train: what they make, when they stop, and what is kept of them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_pruning")

from headrace.base.errors import EngineError, SettingsError  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.engines import engine  # noqa: E402
from headrace.ledger.ledger import Ledger  # noqa: E402
from headrace.optimize import pruning  # noqa: E402
from headrace.optimize.artifacts import ArtifactStore  # noqa: E402
from headrace.optimize.catalogue import METHODS, Methods  # noqa: E402
from headrace.optimize.goal import Goal  # noqa: E402
from headrace.optimize.recipe import check_recipe  # noqa: E402
from headrace.optimize.search import optimize  # noqa: E402
from headrace.optimize.techniques import Subject  # noqa: E402
from headrace.optimize.torch_files import convert  # noqa: E402
from headrace.optimize.trained import TRAINED, converted  # noqa: E402
from headrace.runs.formats.optimization import OptimizationDocument  # noqa: E402
from headrace.validate.golden import Golden  # noqa: E402

torch.set_num_threads(1)  # of networks this small, more only wait for one another
TECHNIQUES = {technique.name: technique for technique in TRAINED}
RECIPE = Path(__file__).with_name("small_recipe.py")


@pytest.fixture
def bars() -> Any:
    """The module of the small recipe, fresh."""
    spec = importlib.util.spec_from_file_location("small_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["small_recipe"] = module
    spec.loader.exec_module(module)
    return module


def searched(
    bars: Any, folder: Path, recipe: Any, ledger: Ledger | None = None, input_sizes: tuple[int, ...] = (),
    methods: Methods = METHODS,
) -> OptimizationDocument:  # fmt: skip
    """Search with the recipe."""
    store = ArtifactStore(folder / "artifacts")
    calibration, _ = bars.make_items(64, 10)
    inputs, labels = bars.make_items(1200, 11)
    return optimize(
        Path(converted(recipe, "small_recipe:recipe", store).file),
        store=store, goal=Goal(max_drop=0.02, batch=8, input_sizes=input_sizes), recipe=recipe,
        memory=ledger.attempts if ledger else None, methods=methods,
        calibration=Golden(name="calibration", inputs=calibration, labels=None, sha256="c"),
        golden=Golden(name="golden", inputs=inputs, labels=labels, sha256="g"),
    )  # fmt: skip


def subject_of(bars: Any, folder: Path, shares: tuple[float, ...], **methods: Any) -> Subject:
    """Return what techniques are given: the small recipe with other methods, on one engine and without int8."""
    own = {name: getattr(bars.recipe, name) for name in ("example", "build", "fit", "evaluate")}
    recipe, store = SimpleNamespace(**{**own, **methods}), ArtifactStore(folder / "artifacts")
    return Subject(
        original=converted(recipe, "small_recipe:recipe", store), store=store, threads=1, flags=frozenset(), recipe=recipe,
        calibration=None, engines=("onnx",), prune_shares=shares,
    )  # fmt: skip


@pytest.mark.usefixtures("speeds")
def test_a_pruned_and_quantized_network_is_recommended_and_the_cliff_is_kept_as_a_reason(
    bars: Any, tmp_path: Path
) -> None:
    """Two rounds stand, the third is spoiled: it is in the ledger with its reason, and nothing is made of it."""
    bars.recipe.spoil_after = 2
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(bars, tmp_path, bars.recipe, ledger)
        by_name = {(one.technique, one.settings["engine"]): one for one in document.attempts}
        chosen = next(one for one in document.attempts if one.candidate == document.recommended)
        assert chosen.technique in ("pruned-1-int8", "pruned-2-int8")
        assert (chosen.kind, chosen.verdict, chosen.settings["engine"]) == ("trained", "accept", "openvino")
        cliff = by_name["pruned-3", "onnx"]
        assert (cliff.verdict, cliff.gate) == ("reject", "accuracy")
        assert "rolled back" in cliff.says
        assert ("pruned-3-int8", "onnx") not in by_name
        assert (by_name["distilled", "onnx"].verdict, by_name["zeroed", "onnx"].gate) == ("reject", "speed")
        assert "pruned-3" in {one.technique for one in ledger.attempts.attempts()}
        first, second = by_name["pruned-1", "onnx"].artifact, by_name["pruned-2", "onnx"].artifact
        assert (first.parent, second.parent) == (document.model.sha256, first.sha256)
        assert second.num_bytes < first.num_bytes < document.model.num_bytes


@pytest.mark.usefixtures("speeds")
def test_pruned_networks_are_tried_on_smaller_inputs_too(bars: Any, tmp_path: Path) -> None:
    """In int8, and no parity is asked of them; a size that is none for this model is left out."""
    bars.SIDE = 12
    bars.recipe.example = np.zeros((1, 1, 12, 12), np.float32)
    document = searched(bars, tmp_path, bars.recipe, input_sizes=(8, 40), methods=Methods(prune_shares=(0.3,)))
    tried = {attempt.technique: attempt for attempt in document.attempts if attempt.settings["engine"] == "onnx"}
    both, alone = tried["pruned-1-input-8-int8"], tried["pruned-1-int8"]
    assert (both.kind, both.gate) == ("trained", alone.gate)
    assert both.validation is not None
    assert {gate.name for gate in both.validation.gates} >= {"census", "speed"}
    assert both.artifact.sha256 != alone.artifact.sha256
    assert not [name for name in tried if "input-40" in name]


@pytest.mark.usefixtures("speeds")
def test_an_interrupted_search_does_not_train_twice(bars: Any, tmp_path: Path) -> None:
    """Rounds are read again, with the same weights, by a recipe of the same file."""
    steps = pruning.Pruning(recipe=bars.recipe, folder=tmp_path, key="k", shares=(0.3, 0.5))
    first = [(found, network.state_dict()) for found, network in steps.rounds()]
    assert bars.recipe.num_fits == 2
    again = [(found, network.state_dict()) for found, network in steps.rounds()]
    assert bars.recipe.num_fits == 2
    assert [found for found, _ in first] == [found for found, _ in again]
    assert all(torch.equal(first[-1][1][name], value) for name, value in again[-1][1].items())
    # What was trained costs none of a budget that is used up; no further training begins.
    more = pruning.Pruning(recipe=bars.recipe, folder=tmp_path, key="k", shares=(0.3, 0.5, 0.65), stop=lambda: True)
    rounds = more.rounds()
    assert [next(rounds)[0], next(rounds)[0]] == [found for found, _ in first]
    with pytest.raises(EngineError, match="the budget is used up: 65%"):
        next(rounds)
    assert bars.recipe.num_fits == 2


def test_a_fit_that_fails_ends_pruning_alone(bars: Any, tmp_path: Path) -> None:
    """The round before stands, the reason is told, and the smallest network that was trained gets a teacher."""
    taught: list[bool] = []

    def fit(network: Any, teacher: Any = None) -> None:
        taught.append(teacher is not None)
        if len(taught) == 2:
            raise RuntimeError("out of memory")

    subject = subject_of(bars, tmp_path, (0.3, 0.5), fit=fit, evaluate=lambda network: 1.0)
    with pytest.raises(
        EngineError, match="the recipe's `fit` failed on the pruned network: RuntimeError: out of memory"
    ):
        list(TECHNIQUES["pruned"].try_on(subject))
    (found,) = TECHNIQUES["distilled"].try_on(subject)
    assert found.artifact.parameters["channels_pruned"] == 0.3
    assert taught == [False, False, True]


def test_a_network_may_be_left_in_another_type_or_on_another_device(bars: Any, tmp_path: Path) -> None:
    """As code for a GPU leaves it, the teacher too: multiplications are counted where the example is."""
    elsewhere = {"device": "cuda"} if torch.cuda.is_available() else {"dtype": torch.float64}
    items, labels = (torch.from_numpy(array).to(**elsewhere) for array in bars.make_items(50, seed=2))

    def evaluate(network: Any) -> float:
        return float((network.to(**elsewhere)(items).argmax(1) == labels).double().mean())

    def fit(network: Any, teacher: Any = None) -> None:
        network.to(**elsewhere)
        if teacher is not None:
            teacher.to(**elsewhere)

    recipe: Any = SimpleNamespace(example=bars.Bars.example, build=bars.recipe.build, evaluate=evaluate, fit=fit)
    _, found, network = pruning.Pruning(recipe=recipe, folder=tmp_path, key="k", shares=(0.3,)).distil()
    assert 0 < found.multiplications < 1
    assert next(network.parameters()).device.type == "cpu"


def test_a_teacher_that_cannot_be_told_from_none_is_refused_with_that_reason(bars: Any, tmp_path: Path) -> None:
    """Both are right in all of the recipe's own data: that says of `evaluate` that it is too easy, not that it is no help."""
    subject = subject_of(bars, tmp_path, (0.3,), evaluate=lambda network: 1.0)
    assert len(list(TECHNIQUES["pruned"].try_on(subject))) == 1
    (found,) = TECHNIQUES["distilled"].try_on(subject)
    assert found.refuted is not None
    assert "`evaluate` cannot tell them apart" in found.refuted


def test_widths_are_multiples_of_8_and_the_answer_keeps_its_shape(bars: Any) -> None:
    """30 % of 32 and of 64 channels leave 16 or 24, and 40 or 48."""
    network = bars.recipe.build()
    pruning.prune(bars.recipe, network, 0.3)
    widths = [layer.out_channels for layer in network if isinstance(layer, torch.nn.Conv2d)]
    assert all(width % 8 == 0 and width < whole for width, whole in zip(widths, (32, 64), strict=True))
    assert network[-1].out_features == bars.CLASSES


def test_a_network_whose_answer_would_be_pruned_needs_keep(bars: Any) -> None:
    """Here `keep` names the wrong layers; the message says what it is for."""
    recipe = SimpleNamespace(example=bars.Bars.example, keep=lambda network: [network[0]])
    network = bars.recipe.build()
    network[-1] = torch.nn.Linear(64, 16)
    with pytest.raises(EngineError, match=r"keep\(network\)"):
        pruning.prune(recipe, network, 0.5)


def test_a_converted_network_takes_any_batch_and_says_its_classes(bars: Any, tmp_path: Path) -> None:
    """The file holds the names, and its answers are the network's."""
    network = bars.recipe.build()
    convert(network, bars.Bars.example, tmp_path / "bars.onnx", names=bars.Bars.names)
    model = engine("onnx").open(tmp_path / "bars.onnx", threads=1, options={})
    batch, _ = bars.make_items(7, 3)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(model(batch), wanted, rtol=1e-4, atol=1e-5)
    assert json.loads(model.metadata["names"]) == list(bars.Bars.names)


def test_a_network_that_fixes_its_batch_is_refused(bars: Any, tmp_path: Path) -> None:
    """In its own code, or by the way it was traced."""

    class Fixed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.reshape(1, 64)

    class Traced(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.reshape(int(x.shape[0]), 64)

    for network in (Fixed(), Traced()):
        with pytest.raises(EngineError, match="does not take a batch of 3"):
            convert(network, bars.Bars.example, tmp_path / "fixed.onnx")


def test_a_network_that_depends_on_values_is_refused(bars: Any, tmp_path: Path) -> None:
    """Tracing keeps one branch of an `if`; the file then answers otherwise."""

    class Branches(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.flatten(1) * (2 if x.abs().sum() > 1 else 1)

    with pytest.raises(EngineError, match="answers otherwise than the network"):
        convert(Branches(), bars.Bars.example, tmp_path / "branches.onnx")


@pytest.mark.usefixtures("speeds")
def test_without_fit_everything_but_training_is_tried(bars: Any, tmp_path: Path) -> None:
    """The reason is told."""
    recipe = SimpleNamespace(example=bars.Bars.example, build=bars.recipe.build)
    document = searched(bars, tmp_path, recipe)
    skipped = {one.technique: one.why for one in document.skipped}
    assert "`fit` and `evaluate`" in skipped["pruned"]
    assert "int8" in {one.technique for one in document.attempts}


def test_what_is_no_recipe_is_refused() -> None:
    """With what is expected."""
    with pytest.raises(SettingsError, match=r"training:model is a dict; expected an object with `example`"):
        check_recipe({}, "training:model")


def test_the_command_takes_a_recipe(
    bars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], speeds: Any
) -> None:
    """By file and attribute; the Plan that it writes names a file of the store."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"{RECIPE.read_text()}\nrecipe.spoil_after = 1\n")
    inputs, labels = bars.make_items(1200, 11)
    np.savez("golden.npz", inputs=inputs, labels=labels)
    np.savez("calibration.npz", inputs=bars.make_items(64, 10)[0])
    sets = ["--data", "calibration.npz", "--golden", "golden.npz", "--max-drop", "2pt"]
    status = main(["optimize", "mine.py:recipe", *sets, "--ledger", "ledger.sqlite", "--no-layout", "-o", "plan.toml"])
    out = capsys.readouterr().out
    assert status == 0
    assert "pruned-1-int8" in out
    plan = (tmp_path / "plan.toml").read_text()
    assert "recipe.pruned-1-int8.onnx" in plan
