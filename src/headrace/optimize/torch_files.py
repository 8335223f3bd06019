"""PyTorch networks as ONNX files, whether a file answers as its network does, and what was trained, kept.

References:
    PyTorch, "Export a PyTorch model to ONNX".
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headrace.base.errors import EngineError, MissingExtra
from headrace.base.protocols import Model
from headrace.engines import ONNX, OPENVINO, engine
from headrace.validate.parity import BANDS, compare_outputs

try:
    import torch
except ImportError as missing:
    raise MissingExtra("networks of PyTorch", "torch") from missing

__all__ = ["answers", "convert", "read_trained", "torch", "write_trained"]

Facts = TypeVar("Facts")
_OPSET = 17
#: Batches that a file must take, whatever its network was traced with.
_BATCHES = (1, 3)


def convert(network: Any, example: np.ndarray, output: Path, *, names: Sequence[str] | None = None) -> None:
    """Write a network as one ONNX file that takes any batch size, and check that it answers alike.

    Args:
        network: A torch.nn.Module with one input.
        example: float32 (1, ...), one item as the network takes it.
        output: Where to.
        names: Of the classes, kept in the file's metadata.

    Raises:
        EngineError: If it cannot be converted, or the file answers otherwise or takes one batch size only.
        MissingExtra: If the onnx package is not installed.
    """
    from headrace.optimize.onnx_files import load, save  # says which extra is missing

    was_training = network.training
    network.eval()
    try:
        _export(network, torch.from_numpy(np.ascontiguousarray(example)), output)
        model = load(output)
        if names:
            model.metadata_props.add(key="names", value=json.dumps(list(names)))
        save(model, output)
        for opened in (engine(ONNX), *_second_opinion()):
            _check_alike(network, opened.open(output, threads=1, options={}), example)
    finally:
        network.train(was_training)


def _export(network: Any, example: Any, output: Path) -> None:
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The older exporter: one file instead of two, a quarter of the time, batch normalizations folded; the newer one's
            # files were measured as fast, float32 and int8.
            torch.onnx.export(
                network, (example,), str(output), dynamo=False, opset_version=_OPSET, input_names=["input"],
                output_names=["output"], dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
            )  # fmt: skip
    except Exception as error:  # a network's own code runs here
        raise EngineError(f"PyTorch cannot convert the network to ONNX: {type(error).__name__}: {error}") from error
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


def _second_opinion() -> tuple[Any, ...]:
    try:
        return (engine(OPENVINO),)
    except MissingExtra:
        return ()


def answers(network: Any, batch: np.ndarray) -> np.ndarray:
    """Return what a network answers to (batch, ...), as an array.

    Raises:
        EngineError: If its answer is no tensor.
    """
    with torch.inference_mode():
        found = network(torch.from_numpy(batch))
    if not isinstance(found, torch.Tensor):
        raise EngineError(f"the network answers with a {type(found).__name__}; one tensor is expected")
    array: np.ndarray = found.float().numpy()
    return array


def _check_alike(network: Any, opened: Model, example: np.ndarray) -> None:
    """Raise EngineError unless a file answers as its network does, at batch sizes that it was not traced with."""
    name = opened.variant["engine"]
    for size in _BATCHES:
        batch = np.random.default_rng(0).standard_normal((size, *example.shape[1:])).astype(np.float32)
        try:
            wanted = answers(network, batch)
            got = opened(batch)
        except EngineError:
            raise
        except Exception as error:  # the network's own code runs here, and engines raise their own types
            raise EngineError(
                f"the network, or its ONNX file on {name}, does not take a batch of {size}: {error}; its code fixes the batch "
                "size, by a reshape with a number in it, for instance"
            ) from error
        found = compare_outputs(wanted, got)
        if found.shapes or found.broken_b or not found.relative_l2 <= BANDS["f32"]:
            raise EngineError(
                f"the network's ONNX file answers otherwise than the network on {name}: relative L2 {found.relative_l2:.2g} of "
                f"a batch of {size}, {BANDS['f32']:g} is allowed{'; ' + '; '.join(found.shapes) if found.shapes else ''}; code "
                "that depends on the values of tensors is not converted"
            )


def write_trained(kept: Path, network: Any, facts: dict[str, Any]) -> None:
    """Keep a network's weights with what is known of them: JSON's types."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    torch.save({"weights": network.state_dict(), "round": json.dumps(facts)}, partial)
    os.replace(partial, kept)


def read_trained(kept: Path, network: Any, facts: Callable[..., Facts]) -> Facts | None:
    """Put kept weights into the network and return the facts that are known of them; None if there are none that fit."""
    try:
        state = torch.load(kept, weights_only=True)
        network.load_state_dict(state["weights"])
        return facts(**json.loads(state["round"]))
    except (OSError, RuntimeError, KeyError, TypeError, ValueError):
        return None
