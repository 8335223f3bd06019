"""PyTorch on an NVIDIA GPU: whether that is possible here, and CUDA graphs.

Written from PyTorch's and Torch-TensorRT's documentation; only the refusals were tried, on machines without a GPU.

A CUDA graph is recorded for each batch size and replayed: the host starts one thing and not hundreds, which pays for small
batches of small layers. It is recorded here and not by `torch.compile(mode="reduce-overhead")`, whose recordings belong to one
thread and fail in every other (pytorch/pytorch issue 123177); stages call from threads of their own.

References:
    PyTorch, "CUDA Graphs" (whole-network capture: warm-up on a side stream, buffers that stay where they are).
    PyTorch, "Automatic Mixed Precision" (the cache of cast weights must not be recorded).
    Torch-TensorRT, "TensorRT Backend for torch.compile".
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

#: Batch sizes that are recorded; each keeps all of its buffers on the GPU. Others run as they come.
MOST_GRAPHS = 8
_WARM_UP_CALLS = 3
_INSTEAD = 'else model.options.provider = "cpu"'


def why_not(provider: str) -> str | None:
    """Return why a provider (`cpu`, `cuda` or `tensorrt`) cannot be used here; None if it can."""
    if provider == "cpu":
        return None
    if not torch.cuda.is_available():
        built = torch.version.cuda
        because = (
            f"PyTorch {torch.__version__} was built for CUDA {built} and finds no NVIDIA GPU, or no driver for it"
            if built
            else f"PyTorch {torch.__version__} was built without CUDA; on a machine with an NVIDIA GPU: pip install torch from "
            "https://download.pytorch.org/whl/ for its CUDA"
        )
        return f"{provider} is not available here, because {because}; {_INSTEAD}"
    if provider == "tensorrt" and not importlib.util.find_spec("torch_tensorrt"):
        return (
            "tensorrt is not available here, because Torch-TensorRT is not installed: pip install torch-tensorrt, of the "
            f"version of PyTorch; {_INSTEAD}"
        )
    return None


def by_tensorrt(network: Any) -> Any:
    """Return a network whose parts TensorRT takes where it can: one engine for each batch size, built in its first call."""
    import torch_tensorrt  # noqa: F401  registers the backend

    return torch.compile(network, backend="torch_tensorrt", dynamic=False)


class CudaGraphs:
    """A network on the GPU whose calls are recorded once for each shape, and replayed. Calls take turns.

    Args:
        network: On the GPU; it must not look at values, nor at anything on the host.
        casting: Makes the context in which it is recorded; without a cache of cast weights, which would not outlive it.
    """

    def __init__(self, network: Callable[[Any], Any], casting: Callable[[], AbstractContextManager[Any]]) -> None:
        self._network, self._casting = network, casting
        self._recorded: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, tensor: Any) -> Any:
        """Return the answer, in memory that no later call writes to."""
        shape = tuple(tensor.shape)
        with self._lock:
            if shape not in self._recorded and len(self._recorded) >= MOST_GRAPHS:
                with self._casting():
                    return self._network(tensor)
            graph, taken, given = self._recorded.get(shape) or self._record(shape, tensor)
            taken.copy_(tensor)
            graph.replay()
            return _copied(given)

    def _record(self, shape: tuple[int, ...], tensor: Any) -> tuple[Any, Any, Any]:
        taken = tensor.clone(memory_format=torch.preserve_format)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), self._casting():
            for _ in range(_WARM_UP_CALLS):
                self._network(taken)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other workers copy their batches to the GPU meanwhile; by default that would be an error, theirs and of the recording.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), self._casting():
            given = self._network(taken)
        self._recorded[shape] = graph, taken, given
        return self._recorded[shape]


def _copied(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _copied(value) for name, value in given.items()}
    if isinstance(given, tuple | list):
        return tuple(_copied(value) for value in given)
    return given.clone()
