"""The torch engine: weights in registered networks, and nothing that could run code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.base.errors import EngineError, SettingsError  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.engines import engine, networks  # noqa: E402

EXAMPLE = np.zeros((1, 3, 8, 8), np.float32)


def make() -> Any:
    """Return a small network."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered network, alone."""
    monkeypatch.setattr(networks, "_networks", {})
    networks.register("small", make, example=EXAMPLE)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights as `torch.save` writes them."""
    torch.manual_seed(3)
    torch.save(make().state_dict(), tmp_path / "small.pt")
    return tmp_path / "small.pt"


def opened(weights: Path, **options: Any) -> Any:
    """Open weights in the small network."""
    return engine("torch").open(weights, threads=1, options={"network": "small", **options})


def test_answers_are_those_of_the_network(weights: Path) -> None:
    """In any layout, at any batch size, to rounding."""
    network = make()
    network.load_state_dict(torch.load(weights, weights_only=True))
    batch = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)
    with torch.inference_mode():
        wanted = network.eval()(torch.from_numpy(batch)).numpy()
    for options in ({}, {"channels_last": True}):
        model = opened(weights, **options)
        np.testing.assert_allclose(model(batch), wanted, rtol=1e-5, atol=1e-6)
        assert model.inputs[0].shape == ("batch", 3, 8, 8)
        assert model.outputs[0].shape == ("batch", 4)


def test_the_variant_says_what_is_computed_in(weights: Path) -> None:
    """Precision, layout, threads, version and the file's hash; bfloat16 answers come as float32, a little off."""
    model, exact = opened(weights, precision="bf16"), opened(weights)
    batch = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    said = model.variant
    assert (said["engine"], said["precision"], said["channels_last"], said["threads"]) == ("torch", "bf16", False, 1)
    assert said["engine_version"] == torch.__version__
    assert len(said["sha256"]) == 64
    found = model(batch)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact(batch)).max() < 0.1


def test_a_plan_cannot_name_code(weights: Path) -> None:
    """Only what was registered can be named; a path to a function is no name."""
    with pytest.raises(SettingsError, match="no network is registered as 'os:getcwd'; there are: small"):
        engine("torch").open(weights, threads=1, options={"network": "os:getcwd"})
    with pytest.raises(SettingsError, match="network"):
        engine("torch").open(weights, threads=1, options={})


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A pickled module, and a pickle that calls a function, run nothing."""
    ran = tmp_path / "ran"

    class Calls:
        def __reduce__(self) -> Any:
            return (Path.touch, (ran,))

    torch.save({"weight": Calls()}, tmp_path / "calls.pt")
    torch.save(make(), tmp_path / "module.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Calls()))
    for name in ("calls.pt", "module.pt", "old.pt"):
        with pytest.raises(EngineError):
            opened(tmp_path / name)
    assert not ran.exists()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    """With the name of the network, and what does not fit."""
    torch.save(torch.nn.Linear(3, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(EngineError, match=r"do not fit the network 'small'.*0\.weight"):
        opened(tmp_path / "other.pt")


def test_safetensors_are_read(tmp_path: Path, weights: Path) -> None:
    """The same weights, the same answers."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(torch.load(weights, weights_only=True), tmp_path / "small.safetensors")
    batch = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    assert np.array_equal(opened(tmp_path / "small.safetensors")(batch), opened(weights)(batch))


def test_several_outputs_have_names(weights: Path) -> None:
    """Those of a dictionary, or numbers."""

    class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, x: Any) -> Any:
            return {"scores": self.inner(x), "sums": x.sum(dim=(1, 2, 3))}

    networks.register("two", Two, example=EXAMPLE)
    torch.save(Two().state_dict(), weights.with_name("two.pt"))
    model = engine("torch").open(weights.with_name("two.pt"), threads=1, options={"network": "two"})
    assert {name: array.shape for name, array in model(np.ones((3, 3, 8, 8), np.float32)).items()} == {
        "scores": (3, 4),
        "sums": (3,),
    }
    assert [output.name for output in model.outputs] == ["scores", "sums"]


def test_a_variant_of_the_torch_engine_is_validated(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pipeline's module, which --pipeline names, registers the network; bfloat16 is held against float32."""
    monkeypatch.chdir(weights.parent)
    Path("torch_jobs.py").write_text(
        "import numpy as np, torch\n"
        "import headrace as hr\n"
        "from headrace.engines.networks import register\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),\n"
        "                               torch.nn.Flatten(), torch.nn.Linear(8, 4))\n"
        "register('jobs', make, example=np.zeros((1, 3, 8, 8), np.float32))\n"
        "class Work(hr.Module):\n"
        "    model = 'small.pt'\n"
        "    input = hr.ArrayInput()\n"
        "    def process(self, batch):\n"
        "        return batch\n"
        "pipeline = hr.Pipeline(hr.folder('photos'), module=Work(), delivery=hr.jsonl('out.jsonl'))\n"
    )
    variant = "small.pt@torch,network=jobs"
    status = main(["validate", variant, f"{variant},precision=bf16", "--pipeline", "torch_jobs:pipeline", "--json"])
    out, err = capsys.readouterr()
    assert out, err
    document = json.loads(out)
    assert status == 4  # there is no golden set
    assert [gate["outcome"] for gate in document["gates"]] == ["passed", "passed", "passed", "skipped"]
    assert (document["a"]["variant"]["precision"], document["b"]["variant"]["precision"]) == ("f32", "bf16")
