"""PyTorch: weights from a file, in a network that the user's own code registered (`networks.register`).

Weights alone are loaded (`model_files.check_torch_weights`), never a pickled module or an exported program, which can run code.
What is computed in is pinned, and is in the variant. `compile` (`torch_compile.py`) needs a C++ compiler and seconds to minutes
at opening. On a GPU (`torch_gpu.py`) nothing was tried yet; where there is none, it is refused with the reason.

References:
    PyTorch, "torch.compile", "Automatic Mixed Precision" (autocast on the CPU: bfloat16) and "Channels Last Memory Format".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError, MissingExtra
from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import build, check
from headrace.engines.model_files import check_torch_weights
from headrace.engines.networks import Network, registered
from headrace.engines.traits import TORCH, check_device

try:
    import torch
except ImportError as missing:
    raise MissingExtra("the torch engine", "torch") from missing

from headrace.engines.torch_compile import SIZES, compiled, compiling, explained, why_no_compiler
from headrace.engines.torch_gpu import CudaGraphs, by_tensorrt, why_not

PRECISIONS = ("f32", "bf16")
PROVIDERS = ("cpu", "cuda", "tensorrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """The Plan's `[model.options]` for this engine."""

    network: str = ""
    """As it was registered by the module of the pipeline."""
    precision: str = "f32"
    """`f32`, or `bf16`: autocast, layers that lose too much stay in float32."""
    channels_last: bool = False
    """Whether pictures and weights are laid out channel by channel of each pixel."""
    compile: bool = False
    """Whether the network is compiled, with its weights as constants."""
    provider: str = "cpu"
    """`cpu`, `cuda`, or `tensorrt`: Torch-TensorRT."""
    device: int = 0
    """Number of the GPU, as CUDA counts."""
    cuda_graphs: bool = False
    """Whether calls on the GPU are recorded once for each batch size, and replayed."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(bool(self.network), "model.options.network", self.network, "the name of a registered network")
        check(self.precision in PRECISIONS, "precision", self.precision, ", ".join(PRECISIONS))
        check(self.provider in PROVIDERS, "provider", self.provider, ", ".join(PROVIDERS))
        check_device(self.device, self.provider)
        check(
            not self.cuda_graphs or self.provider == "cuda", "cuda_graphs", self.cuda_graphs,
            f'false with provider = "{self.provider}"; graphs are recorded with provider = "cuda" alone',
        )  # fmt: skip
        check(
            self.provider != "tensorrt" or not (self.compile or self.precision != "f32"), "provider", self.provider,
            'TensorRT without compile, for it compiles itself, and with precision = "f32"',
        )  # fmt: skip


class TorchEngine:
    """Opens weights of PyTorch: `.safetensors`, or what `torch.save(network.state_dict(), PATH)` wrote."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Return the network with the file's weights; see `protocols.Engine.open`."""
        settings = build(TorchOptions, options, "[model.options]")
        if artifact is None:
            raise EngineError(
                "the torch engine needs a file of weights; set the module's `model` or the Plan's model.artifact"
            )
        missing = why_not(settings.provider) or (why_no_compiler() if settings.compile else None)
        if missing is not None:
            raise EngineError(missing)
        found = registered(settings.network)
        network = found.make().eval()
        _load(network, artifact, settings.network)
        return TorchModel(network, found, artifact, threads, settings)

    def why_not(self, options: Mapping[str, Any]) -> str | None:
        """Return why a provider cannot be used here; see `protocols.SaysWhyNot`."""
        return why_not(options.get("provider", PROVIDERS[0]))


def _load(network: Any, artifact: Path, name: str) -> None:
    check_torch_weights(artifact, str(torch.__version__))
    try:
        if artifact.suffix.lower() == ".safetensors":
            state = _read_safetensors(artifact)
        else:
            state = torch.load(artifact, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except MissingExtra:
        raise
    except Exception as error:  # pickle, zip files, safetensors and load_state_dict raise their own types
        said = " ".join(str(error).split())
        raise EngineError(f"the weights of {artifact} do not fit the network {name!r}: {said[:300]}") from error


def _read_safetensors(artifact: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as missing:
        raise MissingExtra("weights in .safetensors", "torch") from missing
    return load_file(artifact)


class TorchModel:
    """A network in evaluation mode. Calls may run side by side; recorded graphs take turns."""

    def __init__(self, network: Any, found: Network, artifact: Path, threads: int, settings: TorchOptions) -> None:
        self._threads = threads
        self._settings = settings
        self._layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self._kind = "cpu" if settings.provider == "cpu" else "cuda"
        self._device = self._kind if self._kind == "cpu" else f"cuda:{settings.device}"
        example = np.ascontiguousarray(found.example)
        if settings.channels_last and example.ndim != 4:
            raise EngineError(
                f"channels_last is for inputs of 4 axes; {settings.network!r} takes {list(example.shape)}"
            )
        self.metadata: Mapping[str, str] = {}
        self.inputs: Sequence[TensorSpec] = (_spec("input", example),)
        with compiling() if settings.compile else nullcontext():  # load time, and not that of a call
            self._network = self._prepared(network)
            answers = self._first_answers(example)
        self.outputs: Sequence[TensorSpec] = tuple(_spec(name, array) for name, array in answers.items())
        self.variant: Mapping[str, Any] = {
            "engine": TORCH, "engine_version": str(torch.__version__), "artifact": artifact.name,
            "sha256": hashlib.sha256(artifact.read_bytes()).hexdigest(), "threads": threads, "network": settings.network,
            "precision": settings.precision, "channels_last": settings.channels_last, "compiled": settings.compile,
            "provider": settings.provider, "cuda_graphs": settings.cuda_graphs,
        }  # fmt: skip

    def _prepared(self, network: Any) -> Any:
        """Return the network in its layout and place, as it is called."""
        settings = self._settings
        network = network.to(device=self._device)
        if settings.channels_last:
            network = network.to(memory_format=self._layout)
        if settings.provider == "tensorrt":
            return by_tensorrt(network)
        called = compiled(network) if settings.compile else network
        return CudaGraphs(called, self._casting) if settings.cuda_graphs else called

    def _casting(self) -> AbstractContextManager[Any]:
        if self._settings.precision == "f32":
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(
            self._kind, torch.bfloat16, cache_enabled=not self._settings.cuda_graphs
        )
        return cast

    def _current(self) -> AbstractContextManager[Any]:
        """Return what makes its GPU the calling thread's: graphs are recorded on that one, wherever the network is."""
        on_gpu: AbstractContextManager[Any] = nullcontext() if self._kind == "cpu" else torch.cuda.device(self._device)
        return on_gpu

    def _first_answers(self, example: np.ndarray) -> dict[str, np.ndarray]:
        """Return the answers to the example, after every batch size that has to be compiled was called."""
        name = self._settings.network
        sizes = SIZES if self._settings.compile else (len(example),)
        try:
            return [self._named(np.repeat(example[:1], size, axis=0)) for size in sizes][-1]
        except Exception as error:  # the network's own code, and compilers, run here
            why = explained(error) if self._settings.compile else None
            if why is not None:
                raise EngineError(f"the network {name!r} was not compiled: {why}") from error
            raise EngineError(
                f"the network {name!r} does not take its example in a batch of {', '.join(map(str, sizes))}: "
                f"{type(error).__name__}: {str(error)[:300]}"
            ) from error

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} when the network has several outputs."""
        array = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
        results = self._named(array)
        return next(iter(results.values())) if len(results) == 1 else results

    def _named(self, array: np.ndarray) -> dict[str, np.ndarray]:
        if torch.get_num_threads() != self._threads:  # of this thread alone: OpenMP keeps it for each calling thread
            torch.set_num_threads(self._threads)
        tensor = torch.from_numpy(np.ascontiguousarray(array)).contiguous(memory_format=self._layout).to(self._device)
        casting = nullcontext() if self._settings.cuda_graphs else self._casting()
        with self._current(), torch.inference_mode(), casting:
            found = self._network(tensor)
        if isinstance(found, Mapping):
            return {str(name): _array(value) for name, value in found.items()}
        several = found if isinstance(found, tuple | list) else (found,)
        names = ["output"] if len(several) == 1 else [f"output{number}" for number in range(len(several))]
        return {name: _array(value) for name, value in zip(names, several, strict=True)}


def _array(tensor: Any) -> np.ndarray:
    """Return an answer as an array; NumPy has no bfloat16."""
    array: np.ndarray = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    return array


def _spec(name: str, example: np.ndarray) -> TensorSpec:
    kind = {"float32": "float", "float64": "double"}.get(str(example.dtype), str(example.dtype))
    return TensorSpec(name, f"tensor({kind})", ("batch", *example.shape[1:]))
