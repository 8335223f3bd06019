"""The torch engine: weights in registered networks, and nothing that could run code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.base.errors import EngineError, SettingsError  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.engines import engine, networks  # noqa: E402
from headrace.validate import measuring  # noqa: E402

EXAMPLE = np.zeros((1, 3, 8, 8), np.float32)


def make() -> Any:
    """Return a small network."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """A registered network, alone."""
    others = {name: networks.registered(name) for name in networks.names()}
    for name in others:
        networks.unregister(name)
    networks.register("small", make, example=EXAMPLE)
    yield
    for name in networks.names():
        networks.unregister(name)
    for name, network in others.items():
        networks.register(name, network.make, example=network.example)


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


@pytest.mark.slow
def test_a_compiled_network_answers_alike_and_compiles_no_more_once_it_is_open(weights: Path) -> None:
    """To 1e-5 of the largest answer in float32, for batches of any size; opening is where compiling belongs."""
    plain, model = opened(weights), opened(weights, compile=True)
    assert model.variant["compiled"]
    before = num_programs()
    for size in (1, 2, 3, 15, 16, 17, 64):
        batch = np.random.default_rng(size).standard_normal((size, 3, 8, 8)).astype(np.float32)
        wanted = plain(batch)
        np.testing.assert_allclose(model(batch), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert num_programs() == before


def num_programs() -> int:
    """Return how often PyTorch has compiled anything in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.slow
def test_every_compiled_model_has_its_own_weights_and_programs(weights: Path, tmp_path: Path) -> None:
    """PyTorch keeps eight programs for one class of networks, which would be three models; the fourth is compiled too."""
    batch = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    for seed in range(4):
        torch.manual_seed(seed)
        torch.save(make().state_dict(), tmp_path / f"{seed}.pt")
        before = num_programs()
        model, plain = opened(tmp_path / f"{seed}.pt", compile=True), opened(tmp_path / f"{seed}.pt")
        assert num_programs() > before
        np.testing.assert_allclose(model(batch), plain(batch), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_network_in_bfloat16_is_as_near_as_an_uncompiled_one(weights: Path) -> None:
    """Both are off by the rounding of bfloat16, 2 to the power of -8, and no more."""
    batch = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    exact = opened(weights)(batch)
    for compiled in (False, True):
        off = np.linalg.norm(opened(weights, precision="bf16", compile=compiled)(batch) - exact) / np.linalg.norm(exact)
        assert 0 < off < 2**-6


def test_without_a_compiler_the_error_names_what_to_do(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH holds no g++: what to install, the variable to set, and the option to leave out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        EngineError, match=r"g\+\+ is not on PATH; install it .* CXX, or leave model\.options\.compile out"
    ):
        opened(weights, compile=True)


@pytest.mark.slow
def test_a_network_that_fixes_its_batch_cannot_be_compiled(tmp_path: Path) -> None:
    """Every size that a pipeline may form is asked for at opening."""

    class Fixed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.reshape(1, 192)

    networks.register("fixed", Fixed, example=EXAMPLE)
    torch.save(Fixed().state_dict(), tmp_path / "fixed.pt")
    with pytest.raises(EngineError, match="'fixed'"):
        engine("torch").open(tmp_path / "fixed.pt", threads=1, options={"network": "fixed", "compile": True})


def test_each_call_has_the_threads_of_its_own_model(weights: Path) -> None:
    """Two models with other threads are called in turn, as speeds are compared."""
    one, two = opened(weights), engine("torch").open(weights, threads=2, options={"network": "small"})
    for model, threads in ((one, 1), (two, 2), (one, 1)):
        model(EXAMPLE)
        assert torch.get_num_threads() == threads


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [{"provider": "cuda", "cuda_graphs": True}, {"provider": "tensorrt"}])
def test_without_a_gpu_it_is_refused_with_the_reason(weights: Path, options: dict[str, Any]) -> None:
    """Nothing goes over to the CPU by itself."""
    with pytest.raises(
        EngineError, match=r"is not available here, because PyTorch .*CUDA.*model\.options\.provider = \"cpu\""
    ):
        opened(weights, **options)


@pytest.mark.parametrize(
    "options", [{"cuda_graphs": True}, {"provider": "tensorrt", "compile": True}, {"provider": "rocm"}]
)
def test_options_that_do_not_go_together_are_refused(weights: Path, options: dict[str, Any]) -> None:
    """Whether or not there is a GPU."""
    with pytest.raises(SettingsError, match=r"provider|cuda_graphs"):
        opened(weights, **options)


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
    command = ["validate", variant, f"{variant},precision=bf16", "--pipeline", "torch_jobs:pipeline", "--json"]
    with measuring.using(
        cpu_flags=lambda: frozenset({"avx512_bf16"})
    ):  # it is right without, and refused for being slow
        status = main(command)
    out, err = capsys.readouterr()
    assert out, err
    document = json.loads(out)
    assert status == 4  # there is no golden set
    outcomes = {gate["name"]: gate["outcome"] for gate in document["gates"]}
    assert outcomes.pop("accuracy") == "skipped"
    assert {"static", "parity", "speed"} < set(outcomes)
    assert set(outcomes.values()) == {"passed"}
    assert (document["a"]["variant"]["precision"], document["b"]["variant"]["precision"]) == ("f32", "bf16")
