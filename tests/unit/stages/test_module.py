"""The class that users write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import DecodeRejected, SettingsError, WrongResultCount
from headrace.delivery.collect import Collect
from headrace.stages.inputs import ArrayInput, BytesInput, ImageInput, Input, TextInput
from headrace.stages.module import Module, ModuleContext, ProcessStage, check_results


class Least(Module):
    """Only what must be written."""

    def process(self, batch: Any) -> Sequence[Any]:
        """One result per input."""
        return list(batch)


class Most(Least):
    """All that can be written."""

    def preprocess(self, value: Any) -> Any:
        """Add one."""
        return value + 1

    def postprocess(self, result: Any) -> Any:
        """Double."""
        return result * 2


def names(module: Module, wanted: Input) -> list[str]:
    """The stages of a module for an input."""
    module.input = wanted
    return [stage.name for stage in module.stages()]


@pytest.mark.parametrize(
    ("wanted", "before"),
    [
        (ImageInput(short_side=256, crop=224), ["decode", "resize"]),
        (ImageInput(crop=224), ["decode", "resize"]),
        (ImageInput(), ["decode"]),
        (TextInput(), ["decode"]),
        (BytesInput(), []),
        (ArrayInput(), []),
    ],
    ids=str,
)
def test_stages_for_each_input(wanted: Input, before: list[str]) -> None:
    """The input decides what stands before the module's own stages, and only what is written gets a stage."""
    assert names(Least(), wanted) == [*before, "process"]
    assert names(Most(), wanted) == [*before, "preprocess", "process", "postprocess"]


def test_bytes_are_the_default_input() -> None:
    """A module that says nothing gets the bytes as fetched."""
    assert [stage.name for stage in Least().stages()] == ["process"]


def test_stages_of_several_modules() -> None:
    """With a prefix the names differ, and the task is known to every stage, so that each finds its model."""
    module = Most()
    module.input = ImageInput(short_side=8)
    stages = module.stages("faces.", "faces")
    assert [stage.name for stage in stages] == [
        f"faces.{name}" for name in ("decode", "resize", "preprocess", "process", "postprocess")
    ]
    assert {stage.task for stage in stages} == {"faces"}


@pytest.mark.parametrize(("wanted", "executor"), [(ImageInput(), "inline"), (BytesInput(), "thread")])
def test_preprocess_stays_with_the_decoder(wanted: Input, executor: str) -> None:
    """Python code runs in the decoder's worker where there is one, else in workers of its own."""
    module = Most()
    module.input = wanted
    assert {stage.name: stage.executor for stage in module.stages()}["preprocess"] == executor


def test_kinds() -> None:
    """Only `process` is for the device; the rest computes."""
    module = Most()
    module.input = ImageInput(short_side=8)
    assert [stage.kind for stage in module.stages()] == ["cpu", "cpu", "cpu", "device", "cpu"]


def test_the_stages_do_their_work(photographs: dict[str, bytes], make_context: Any) -> None:
    """From a photograph's bytes to a result, the stages called one after another."""

    class Brightness(Module):
        input = ImageInput(short_side=64, crop=48)

        def preprocess(self, image: Any) -> Any:
            return image.astype(np.float32) / 255

        def process(self, batch: Any) -> Sequence[Any]:
            return [float(image.mean()) for image in batch]

        def postprocess(self, result: Any) -> Any:
            return {"brightness": result}

    value: Any = photographs["coffee"]
    for stage in Brightness().stages():
        function = stage.open(make_context())
        value = function([value])[0] if stage.kind == "device" else function(value)
    assert 0 < value["brightness"] < 1


def test_load_happens_on_a_copy(make_context: Any) -> None:
    """Each worker loads a copy of its own; the user's module stays as it was written."""

    class Loading(Least):
        loads = 0

        def load(self, context: ModuleContext) -> None:
            self.loads += 1
            self.number = context.worker

        def process(self, batch: Any) -> Sequence[Any]:
            return [(self.loads, self.number)] * len(batch)

    module = Loading()
    stage = ProcessStage("process", module)
    first, second = stage.open(make_context()), stage.open(make_context())
    assert first([0]) == second([0]) == [(1, 0)]
    assert module.loads == 0
    assert not hasattr(module, "number")


class Recorder:
    """Stands where the engine's opening would: notes the path."""

    def __init__(self) -> None:
        self.paths: list[str | None] = []

    def __call__(self, path: str | None = None) -> str:
        """Note."""
        self.paths.append(path)
        return "model"


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [
        (None, None, None),
        ("scenes.onnx", None, Path(__file__).parent / "scenes.onnx"),
        ("scenes.onnx", "other.onnx", Path(__file__).parent / "other.onnx"),
        (Path("/models/a.onnx"), None, Path("/models/a.onnx")),
    ],
)
def test_model_paths_start_at_the_modules_file(
    make_context: Any, model: Any, asked: str | None, expected: Path | None
) -> None:
    """The class's model, or the one asked for, relative to the file that defines the class."""
    opener = Recorder()
    module = Least()
    module.model = model
    context = ModuleContext(make_context(open_model=opener), module)
    assert context.open_model(asked) == "model"
    assert opener.paths == [None if expected is None else str(expected)]


def test_the_context_counts(make_context: Any) -> None:
    """A module can add to the run's counters."""
    context = make_context()
    module_context = ModuleContext(context, Least())
    module_context.count("faces")
    module_context.count("faces", 2)
    assert context.counts == {"faces": 3}


@pytest.mark.parametrize("wrong", [ImageInput, "image", None])
def test_what_is_no_input(wrong: Any) -> None:
    """A class, or anything else in place of an input, is told rather than taken for bytes."""

    class Wrong(Module):
        input = wrong

        def process(self, batch: Any) -> Any:
            return batch

    with pytest.raises(
        SettingsError,
        match=r"Wrong\.input is .*; expected hr\.ImageInput.* what the stage before gives .* hr\.ArrayInput\(\)$",
    ):
        Wrong().stages()


def test_process_must_be_written() -> None:
    """A module without `process` cannot be made."""
    with pytest.raises(TypeError, match="process"):
        Module()  # type: ignore[abstract]


@pytest.mark.parametrize("results", [[1, 2, 3], (1, 2, 3), np.zeros((3, 4))])
def test_as_many_results_as_inputs(results: Any) -> None:
    """The right number passes untouched, whatever the sequence."""
    assert check_results(results, 3, "process") is results


@pytest.mark.parametrize(("results", "number"), [([1, 2], 2), ([], 0), (np.zeros((4, 3)), 4)])
def test_another_number_of_results(results: Any, number: int) -> None:
    """The error names the stage and both lengths."""
    with pytest.raises(WrongResultCount) as caught:
        check_results(results, 3, "faces.process")
    assert str(caught.value) == f"faces.process was given 3 inputs and returned {number} results; they must match"


@pytest.mark.parametrize(
    ("results", "kind"),
    [
        (None, "NoneType"),
        (0.5, "float"),
        (np.float32(1), "float32"),
        (np.array(1), "ndarray"),
        ({"boxes": 1, "scores": 2, "classes": 3}, "dict"),
        ("abc", "str"),
        (b"abc", "bytes"),
        (iter([1, 2, 3]), "list_iterator"),
    ],
)
def test_no_sequence_of_results(results: Any, kind: str) -> None:
    """What is no sequence is named, also where its length happens to fit: a model's dict of three outputs, text."""
    with pytest.raises(WrongResultCount) as caught:
        check_results(results, 3, "process")
    assert str(caught.value) == f"process must return a sequence of 3 results, one per input, but returned {kind}"


@pytest.mark.parametrize("wanted", [ImageInput(), TextInput()], ids=str)
def test_a_module_behind_another_that_decodes_says_what_to_declare(wanted: Input, make_context: Any) -> None:
    """It is given a tuple, which is no file: the item's reason names the input that takes it."""
    module = Least()
    module.input = wanted
    decode = module.stages()[0].open(make_context())
    with pytest.raises(DecodeRejected, match=r"decode\.type: expected the bytes .* got tuple; .*hr\.ArrayInput\(\)"):
        decode((1, 2))


class MadeByLoad(Module):
    """Its `process` is there once it is loaded."""

    def load(self, context: Any) -> None:
        """Make `process`."""
        self.process = lambda batch: [1 for _ in batch]  # type: ignore[method-assign]

    def process(self) -> Any:  # type: ignore[override]
        """Stand in for what `load` makes."""
        raise NotImplementedError


class PropertyOfLoad(Module):
    """Its `process` is a property of what is loaded."""

    def load(self, context: Any) -> None:
        """Load it."""
        self.loaded = True

    @property
    def process(self) -> Any:  # type: ignore[override]
        """Return what is called, once it is loaded."""
        if not hasattr(self, "loaded"):
            raise RuntimeError("not loaded")
        return lambda batch: [1 for _ in batch]


@pytest.mark.parametrize("kind", [MadeByLoad, PropertyOfLoad])
def test_a_process_that_load_makes_runs(kind: type[Module]) -> None:
    """What the class has under that name before is never called, and so never judged."""
    results = Collect()
    hr.run(hr.Pipeline(hr.items([b"a", b"b"]), module=kind(), delivery=results))
    assert [result for _, result in results.results] == [1, 1]


def test_a_process_that_takes_no_batch_is_refused_after_load() -> None:
    """Where the class has a `load` of its own it is found before the first item is received."""

    class Wrong(Least):
        """Of no arguments once it is loaded."""

        def load(self, context: Any) -> None:
            """Make `process`."""
            self.process = lambda: [None]  # type: ignore[method-assign,assignment]

    with pytest.raises(SettingsError, match=r"cannot be called with \(batch\)"):
        hr.run(hr.Pipeline(hr.items([b"a"]), module=Wrong()))
