"""The class that users write: what their model needs before, at and after the device."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError, WrongResultCount
from headrace.base.meaning import Meaning, Output
from headrace.base.plan import StageDefaults
from headrace.base.settings import check
from headrace.base.signature import check_takes
from headrace.stages.decode import DecodeStage, ResizeStage, TextStage
from headrace.stages.inputs import BytesInput, ImageInput, Input, TextInput
from headrace.stages.stage import FunctionStage, Stage, StageContext
from headrace.stages.tokenise import TokeniseStage


class ModuleContext:
    """Argument of `Module.load`.

    Attributes:
        worker: Number of the worker, from 0.
        plan: The resolved Plan.
        options: The Plan's `[stages.process.options]`: the module's own settings.
    """

    def __init__(self, context: StageContext, module: Module) -> None:
        self._context = context
        self._module = module
        self.worker = context.worker
        self.plan = context.plan
        self.options = dict(context.options)

    def open_model(self, path: str | Path | None = None) -> Any:
        """Return the model, opened by the Plan's engine with the Plan's precision and threads.

        Args:
            path: Model file, relative to the file that defines the module; None: the class's `model`. The Plan's `[model]
                artifact` overrides both.

        Returns:
            A callable: float32 (batch, ...) -> the output array, or {name: array} when there are several.
        """
        return self._context.open_model(_model_file(self._module, path))

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of the run's counters."""
        self._context.count(name, number)


class Module(abc.ABC):
    """The work on one item: subclass it and write `process`, and the other methods where needed.

    `preprocess` and `postprocess` are called from several threads at once: they must not change `self`. `process` is
    called on a copy of the module that belongs to one worker, after `load` was called on that copy.

    Attributes:
        model: The default artifact, relative to the file that defines the class; a Plan may name another variant of it.
        deterministic: Whether `preprocess` gives equal results for equal values, so that the Plan's `cache` may keep them.
        input: What the model needs; the Plan decides how to decode to it.
        output: Meaning of the model's answers, such as `hr.Detections()`, or {name of an output: meaning}; two variants of the
            model are compared by it. None: guessed from the model's file and the shapes of its answers.
    """

    model: str | Path | None = None
    deterministic: bool = False
    input: Input = BytesInput()
    output: Output = None

    def load(self, context: ModuleContext) -> None:  # noqa: B027 - optional on purpose
        """Make ready: open the model. Called once in each worker that runs `process`."""

    def preprocess(self, value: Any) -> Any:
        """Return one model input, given a value as `input` describes it; arrays of one shape are stacked into a batch."""
        return value

    @abc.abstractmethod
    def process(self, batch: Any) -> Sequence[Any]:
        """Return as many results as the batch has inputs, in the same order.

        Args:
            batch: Array (batch, ...) when all inputs are arrays of one shape and type, else a list. The array is the
                runtime's buffer: it is overwritten by the next batch.
        """

    def postprocess(self, result: Any) -> Any:
        """Return the result to deliver, given one result of `process`."""
        return result

    @classmethod
    def folder(cls) -> Path:
        """Return the folder of the file that defines the class; relative model paths start there."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        return Path(file).resolve().parent if file else Path.cwd()

    def stages(self, prefix: str = "", task: str = "") -> list[Stage]:
        """Return the module's stages: decode and resize as its input asks, preprocess, process, postprocess.

        Args:
            prefix: Put before each name, such as `faces.`, where a pipeline holds several modules.
            task: The task by which jobs are routed, and the Plan's `[models.TASK]` is chosen. Without one
                `[models.PREFIX]` is, the prefix without its dot.
        """
        stages: list[Stage] = []
        if not isinstance(self.input, Input):
            raise SettingsError(
                f"{type(self).__name__}.input is {self.input!r}; expected hr.ImageInput(...), hr.BytesInput(), hr.TextInput(), "
                "or, for what the stage before gives or what is in the job, hr.ArrayInput()"
            )
        declared = self.output.values() if isinstance(self.output, Mapping) else [self.output]
        if self.output is not None and not all(isinstance(one, Meaning) for one in declared):
            raise SettingsError(
                f"{type(self).__name__}.output is {self.output!r}; expected hr.Classes(), hr.Detections(), hr.Text(), "
                "hr.Mask(), hr.Embedding(), hr.Numbers(), your own hr.Meaning, or {name of an output: one of them}"
            )
        if isinstance(self.input, ImageInput):
            stages.append(DecodeStage(f"{prefix}decode", self.input, task=task, scales=True))
            if self.input.is_resized:
                stages.append(ResizeStage(f"{prefix}resize", self.input, task=task, scales=True))
        elif isinstance(self.input, TextInput):
            stages.append(TextStage(f"{prefix}decode", self.input, task=task))
            if self.input.tokenizer is not None:
                stages.append(TokeniseStage(f"{prefix}tokenise", self.input, self.folder(), task=task))
        if type(self).preprocess is not Module.preprocess:
            # Python code gains nothing from a hand-off to other threads: by default it stays in the decoder's worker.
            executor = "inline" if stages else "thread"
            stages.append(
                FunctionStage(
                    f"{prefix}preprocess",
                    self.preprocess,
                    kind="cpu",
                    executor=executor,  # type: ignore[arg-type]
                    task=task,
                    work="preprocess",
                    deterministic=self.deterministic,
                )
            )
        stages.append(ProcessStage(f"{prefix}process", self, task=task))
        if type(self).postprocess is not Module.postprocess:
            stages.append(
                FunctionStage(f"{prefix}postprocess", self.postprocess, kind="cpu", task=task, work="postprocess")
            )
        return stages


def _model_file(module: Module, path: str | Path | None = None) -> str | None:
    """Return where a model file is, the class's `model` unless another is named; None if there is neither."""
    wanted = path or module.model
    return None if wanted is None else str(module.folder() / wanted)


class ProcessStage(Stage):
    """A module's `process`, loaded in its worker."""

    kind = "device"
    releases_gil = True
    work = "model"

    def __init__(self, name: str, module: Module, *, task: str = "") -> None:
        super().__init__(name, task=task)
        check_takes(module.load, ("context",), f"stage {name}")
        if type(module).load is Module.load and inspect.isfunction(inspect.getattr_static(module, "process", None)):
            check_takes(
                module.process, ("batch",), f"stage {name}"
            )  # else it may be `load` that makes it: see `open_group`
        self.module = module

    def defaults(self) -> StageDefaults:
        """Return what the Plan's resolution needs to know, the module's model file included."""
        return dataclasses.replace(super().defaults(), model=_model_file(self.module) or "")

    def output_of(self, path: str | None) -> Output:
        """Return the declared meaning for the module's own model; None for any other model that it opens."""
        return self.module.output if path == _model_file(self.module) else None

    def open(self, context: StageContext) -> Callable[[Any], Sequence[Any]]:
        """Return `process` of a loaded copy, checked for the number of its results."""
        side = context.plan.model_of(self.task, self.name).input_side
        check(
            side is None or isinstance(self.module.input, ImageInput), f"input_side of {self.name}", side,
            f"none, for {type(self.module).__name__}.input is no ImageInput that could be scaled",
        )  # fmt: skip
        module = copy.copy(self.module)
        module.load(ModuleContext(context, module))
        return module.process


def check_results(results: Any, num_inputs: int, stage: str) -> Sequence[Any]:
    """Return the results of a batch if there are as many as inputs.

    Raises:
        WrongResultCount: Naming both lengths.
    """
    try:
        # Most are lists, which is seen sooner than that they are none of these.
        if not isinstance(results, list) and isinstance(results, Mapping | str | bytes):
            raise TypeError
        num_results = len(results)
    except TypeError:
        raise WrongResultCount(
            f"{stage} must return a sequence of {num_inputs} results, one per input, but returned "
            f"{type(results).__name__}"
        ) from None
    if num_results != num_inputs:
        raise WrongResultCount(
            f"{stage} was given {num_inputs} inputs and returned {num_results} results; they must match"
        )
    return results
