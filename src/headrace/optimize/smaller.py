"""Smaller inputs and smaller architectures, from lists that the user gives: other models in the same ladder and gates.

A smaller input is made where it is cheapest. Where a pipeline prepares the images of all sets, it makes them smaller: the
Plan's `input_side` scales the module's `ImageInput`, so that decode, resize and preprocessing shrink too. Where the sets are
arrays, a Resize stands before the model's first layer: they give it what they gave before, and all that follows computes on
fewer pixels. Both fit a fully convolutional network, whose layers do not care how large an image is; another refuses, and
that is said.

Both answer otherwise than the model as given: no parity is asked of them, and the golden set decides.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import EngineError
from headrace.optimize.expected_speedup import INT8, MEASURED, ExpectedSpeedup
from headrace.optimize.techniques import (
    INPUT_SIDE,
    Candidates,
    Subject,
    Technique,
    in_precision,
    int8_of,
    keep_file,
    on_all_engines,
    why_no_bfloat16,
    why_no_int8,
)
from headrace.runs.formats.optimization import Artifact
from headrace.validate.items import NamedItems, main_array

#: Smaller images than this are none.
SMALLEST = 8
#: The first opset whose Resize takes scales without a region.
_LEAST_OPSET = 13


def smaller_models(subject: Subject) -> tuple[Technique, ...]:
    """Return a technique for each size and each model that the user names."""
    of_sizes = [of_size(size, _of_pixels(subject, size)) for size in subject.input_sizes]
    return (*of_sizes, *map(of_other, subject.also))


def of_size(size: int, expected: ExpectedSpeedup | None = None) -> Technique:
    """Return the technique of one smaller input."""
    return Technique(
        name=f"input-{size}", kind="trained", needs="calibration data", option="--input-sizes", expected=expected,
        why_not=partial(why_no_size, size=size), candidates=partial(_scale_down, size=size),
        says=f"the image scaled down to {size}, by the pipeline where it prepares the sets: fewer pixels in every layer",
    )  # fmt: skip


def of_other(path: Path) -> Technique:
    """Return the technique of another model."""
    return Technique(
        name=f"also-{path.stem}", kind="trained", option="--also", why_not=lambda subject: None,
        candidates=partial(_other, path=path),
        says=f"another model, {path.name}, that takes the same inputs; also in bfloat16 and int8 where these can be",
    )  # fmt: skip


def _of_pixels(subject: Subject, size: int) -> ExpectedSpeedup | None:
    """Return that the gain is at most that of the pixels, on top of which bfloat16 and int8 come as for any model."""
    if subject.calibration is None or main_array(subject.calibration.inputs).ndim != 4:
        return None
    pixels = (min(main_array(subject.calibration.inputs).shape[2:]) / size) ** 2
    before = "; of the model alone, and less to decode and scale comes on top" if subject.scales_before else ""
    source = f"{pixels:.1f} times fewer pixels; bfloat16 and int8 on top: {MEASURED}{before}"
    return ExpectedSpeedup(1.0, pixels * INT8.high, source)


def smaller_input(subject: Subject, source: Artifact, size: int, name: str) -> Artifact:
    """Return the file that computes on images of this size, scaled down before it or in it; made once, and kept.

    Args:
        subject: With calibration data.
        source: An ONNX file that takes the items as they are.
        size: Of the shorter side, pixels.
        name: Of what is made.

    Raises:
        EngineError: If the model takes something else, or its layers need the size that it has.
    """
    assert subject.calibration is not None
    small = _prepare(subject, size, name)
    if small is not None:
        return keep_file(subject, name, source, partial(narrow, Path(source.file), size, small))
    item = np.ascontiguousarray(main_array(subject.calibration.inputs)[0])
    return keep_file(subject, name, source, partial(shrink, Path(source.file), size, item))


def _prepare(subject: Subject, size: int, name: str) -> np.ndarray | None:
    """Return an item as the pipeline prepares it for this size; None where it does not, so that the model has to."""
    assert subject.calibration is not None
    if not subject.scales_before:
        return None
    try:
        small = np.ascontiguousarray(main_array(subject.calibration.scale_to(size))[0])
    except Exception as error:  # the user's own preprocess may take one size alone, and raise whatever it likes
        subject.say(f"{name}: the pipeline cannot prepare images of {size} pixels, so the model scales them: {error}")
        return None
    # Else the module's own preprocess decides the size: a file that is named for one would compute on another.
    return small if small.ndim == 3 and min(small.shape[1:]) == size else None


def narrow(artifact: Path, size: int, item: np.ndarray, output: Path) -> dict[str, Any]:
    """Write a model that takes smaller images, and return how.

    Args:
        artifact: An ONNX file with one input, (batch, channels, height, width).
        size: `input_side` of the Plans that will use it.
        item: (channels, height, width) of a smaller image; the new file is run on it.
        output: Where to.

    Raises:
        EngineError: If the model takes something else, or its layers need the size that it has.
    """
    from headrace.optimize.onnx_files import load, save

    model = load(artifact)
    name = _only_input(model, artifact)
    taken = next(value for value in model.graph.input if value.name == name)
    axes = taken.type.tensor_type.shape.dim
    if len(axes) != 1 + item.ndim:
        raise EngineError(f"{artifact.name} takes {len(axes)} axes; expected (batch, channels, height, width)")
    before = [axis.dim_value for axis in axes[2:]]
    for axis, length in zip(axes[1:], item.shape, strict=True):
        axis.dim_value = length
    del model.graph.value_info[:]  # sizes between the layers are others now
    save(model, output)
    _try(output, name, item)
    return {INPUT_SIDE: size, **({"of": min(before)} if all(before) else {})}  # 0: of any size


def shrink(artifact: Path, size: int, item: np.ndarray, output: Path) -> dict[str, Any]:
    """Write a model that scales its input down before its first layer, and return how.

    Args:
        artifact: An ONNX file with one input, (batch, channels, height, width).
        size: Of the shorter side.
        item: (channels, height, width) as it takes it; the new file is run on it.
        output: Where to.

    Raises:
        EngineError: If the model takes something else, or its layers need the size that it has.
    """
    from headrace.optimize.onnx_files import load, onnx, save

    model = load(artifact)
    name = _only_input(model, artifact)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < _LEAST_OPSET:
        raise EngineError(f"{artifact.name} is of opset {opset}; a Resize in it needs {_LEAST_OPSET}: export it anew")
    side = min(item.shape[1:])
    small, scales = f"{name}.{size}", f"{name}.{size}.scales"
    for node in model.graph.node:
        for place, taken in enumerate(node.input):
            if taken == name:
                node.input[place] = small
    # A tenth more: what is left after rounding down is the size that was asked for.
    factor = (size + 0.1) / side
    array = np.array([1.0, 1.0, factor, factor], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, scales))
    resize = onnx.helper.make_node("Resize", [name, "", scales], [small], name=small, mode="linear")
    model.graph.node.insert(0, resize)
    del model.graph.value_info[:]  # sizes between the layers are others now
    save(model, output)
    _try(output, name, item)
    return {"input": size, "of": side}


def _only_input(model: Any, artifact: Path) -> str:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        raise EngineError(
            f"{artifact.name} takes {len(inputs)} inputs; scaling one of them down is not headrace's to decide"
        )
    return str(inputs[0].name)


def _try(file: Path, name: str, item: np.ndarray) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        first = session.get_inputs()[0].shape[0]
        session.run(None, {name: np.repeat(item[None], first if isinstance(first, int) else 1, axis=0)})
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(
            f"the model cannot compute on fewer pixels, so it is not fully convolutional; export it with a pooling over the "
            f"whole image before its last layers, or train it for that size and give it with --also: {error}"
        ) from error


def why_no_size(subject: Subject, size: int) -> str | None:
    """Return why the image cannot be scaled down to a size inside the model; None: it can be tried."""
    if subject.path.suffix != ".onnx":
        return f"{subject.path.name} is no ONNX file"
    if subject.calibration is None:
        return "it needs items to try it on: give --data"
    if isinstance(subject.calibration.inputs, NamedItems):
        return "the model takes several inputs; scaling one of them down is not headrace's to decide"
    shape = subject.calibration.inputs.shape[1:]
    if len(shape) != 3:
        return f"items are {list(shape)}; expected (channels, height, width)"
    side = min(shape[1:])
    if shape[0] > side:
        return f"items are {list(shape)}, channels last; only (channels, height, width) is scaled down"
    if not SMALLEST <= size < side:
        return f"the input has {side} pixels; expected {SMALLEST} to {side - 1}"
    return None


def _scale_down(subject: Subject, size: int) -> Candidates:
    name = f"input-{size}"
    return _in_all_precisions(subject, smaller_input(subject, subject.original, size, name), name)


def _other(subject: Subject, path: Path) -> Candidates:
    if not path.is_file():
        raise EngineError(f"--also {path} does not exist")
    name = f"also-{path.stem}"
    kept = subject.store.add(path, technique=name)
    # The store may have known the file before, by another name.
    return _in_all_precisions(subject, msgspec.structs.replace(kept, technique=name), name)


def _in_all_precisions(subject: Subject, artifact: Artifact, name: str) -> Candidates:
    """Give a file on each engine, in bfloat16 where the processor has it, and in int8 where there are data."""
    yield from on_all_engines(subject, artifact)
    if why_no_bfloat16(subject) is None:
        yield from in_precision(subject, artifact, "bf16")
    if why_no_int8(subject) is None:
        yield from int8_of(subject, artifact, name)
