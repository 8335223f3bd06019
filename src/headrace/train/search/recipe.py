"""What a search needs of a user's training: model, loss, data and optimizer, made anew in each process that tries something."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training, as a function without arguments returns it; a dict with the same keys does as well."""

    model: Any
    """A `torch.nn.Module`, on the device where it trains."""
    loss: Callable[[Any, Any], Any]
    """Called with the model and a batch; returns the loss, a tensor with one number, as your training computes it."""
    data: Any
    """The data set of training: has `len()` and is read by index."""
    optimizer: Callable[[Iterable[Any]], Any]
    """Called with the parameters; returns the optimizer, its learning rate right for `batch_size`."""
    batch_size: int = 32
    """The one that you train with today."""
    validation: Any = None
    """Data set of which the loss is compared; None: validation loss is not looked at."""
    collate: Callable[[Sequence[Any]], Any] | None = None
    """Makes a batch of a list of samples, as a DataLoader's `collate_fn`; None: PyTorch's own."""
    accumulate: Callable[[Any, Sequence[Any]], object] | None = None
    """Called with the model and a list of micro-batches; calls `backward()` for them as your training does for an update.
    None: the sum of each loss divided by the number of micro-batches."""

    def __post_init__(self) -> None:
        """Raise SettingsError for what cannot be trained."""
        for name in ("loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise SettingsError(
                    f"`{name}` of the recipe is a {type(getattr(self, name)).__name__}, expected a function"
                )
        for name in ("__len__", "__getitem__"):
            if not hasattr(self.data, name):
                raise SettingsError(
                    f"`data` of the recipe is a {type(self.data).__name__} without {name}; "
                    "expected a data set that is read by index"
                )
        if not len(self.data):
            raise SettingsError("`data` of the recipe is empty; give at least one sample")
        if not (isinstance(self.batch_size, int) and self.batch_size >= 1):
            raise SettingsError(f"`batch_size` of the recipe is {self.batch_size!r}, expected a whole number >= 1")

    def make_batch(self, indices: Iterable[int], *, of_validation: bool = False) -> Any:
        """Return the batch of these samples, where the model is."""
        from torch.utils.data import default_collate

        data = self.validation if of_validation else self.data
        batch = (self.collate or default_collate)([data[index] for index in indices])
        return move(batch, self.device)

    @property
    def device(self) -> Any:
        """Of the model's first parameter; the CPU if it has none."""
        import torch

        first = next(iter(self.model.parameters()), None)
        return torch.device("cpu") if first is None else first.device


def move(batch: Any, device: Any, dtype: Any = None) -> Any:
    """Return a batch with its tensors on a device; with a dtype, those of floating point also in it."""
    if hasattr(batch, "is_floating_point"):
        return batch.to(device, dtype if batch.is_floating_point() else None)
    if isinstance(batch, dict):
        return type(batch)({key: move(value, device, dtype) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device, dtype) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device, dtype) for value in batch)
    return batch.to(device) if hasattr(batch, "to") and dtype is None else batch


def load_maker(target: str) -> Callable[[], Any]:
    """Return the function that `package.module:function` or `path/to/file.py:function` names; `make` is the default.

    The arguments of this process are not the file's: it finds none, if it parses a command line while it is imported.

    Raises:
        SettingsError: If there is no such file, module or function, or if it wants arguments.
    """
    name, _, attribute = target.partition(":")
    attribute = attribute or "make"
    path = Path(name)
    if name.endswith(".py"):
        if not path.is_file():
            raise SettingsError(f"{path.resolve()} does not exist; expected FILE.py:FUNCTION, got {target!r}")
        sys.path.insert(0, str(path.resolve().parent))
        name = path.stem
    else:
        sys.path.insert(0, "")
    sys.argv = [target.partition(":")[0]]
    unknown = SettingsError(
        f"there is no module {name!r} here or installed; expected FILE.py:FUNCTION or MODULE:FUNCTION, got {target!r}"
    )
    if not name or name.startswith("."):
        raise unknown
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise unknown from None
        raise  # what the module itself imports
    if target.partition(":")[0].endswith(".py") and Path(module.__file__ or "").resolve() != path.resolve():
        raise SettingsError(f"{path.name} bears the name of another module, {module.__file__}: rename the file")
    made = getattr(module, attribute, None)
    if not callable(made):
        raise SettingsError(f"{name} has no function {attribute!r}; expected one that returns a headrace.train.Recipe")
    if wanted := _required_arguments(made):
        raise SettingsError(
            f"{attribute}() of {name} needs the argument {wanted[0]!r}; expected a function that is called without any: give "
            "each a default"
        )
    found: Callable[[], Any] = made
    return found


def _required_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of arguments without a default; empty where a function does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def make_recipe(maker: Callable[[], Any], seed: int) -> Recipe:
    """Return what the user's function makes, with the random numbers of a seed.

    Raises:
        SettingsError: If it is no recipe.
    """
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    made = maker()
    if isinstance(made, dict):
        known = [field.name for field in fields(Recipe)]
        unknown = sorted(set(made) - set(known))
        missing = sorted({"model", "loss", "data", "optimizer"} - set(made))
        if unknown or missing:
            what = f"has no {missing[0]!r}" if missing else f"has the unknown key {unknown[0]!r}"
            raise SettingsError(f"the recipe {what}; its keys are {', '.join(known)}")
        made = Recipe(**made)
    if not isinstance(made, Recipe):
        raise SettingsError(
            f"the function returned a {type(made).__name__}, expected a headrace.train.Recipe or a dict"
        )
    return replace(made, loss=_checked_loss(made.loss), optimizer=_checked_optimizer(made.optimizer))


def _checked_loss(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function, which raises SettingsError where it returns no loss."""

    def loss(model: Any, batch: Any) -> Any:
        found = compute(model, batch)
        if not hasattr(found, "backward") or found.numel() != 1:
            what = f"a tensor of shape {tuple(found.shape)}" if hasattr(found, "shape") else f"a {type(found).__name__}"
            raise SettingsError(
                f"`loss` of the recipe{_place(compute)} returned {what}, expected a tensor with one number: no .item(), but "
                ".mean()"
            )
        return found

    return loss


def _place(function: Any) -> str:
    """Return where a function begins, in brackets; empty where it does not say."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def _checked_optimizer(make: Callable[[Iterable[Any]], Any]) -> Callable[[Iterable[Any]], Any]:
    """Return the function, which raises SettingsError where it returns nothing that a plain loop can step."""

    def optimizer(parameters: Iterable[Any]) -> Any:
        found = make(parameters)
        step = getattr(found, "step", None)
        if not callable(step) or not hasattr(found, "zero_grad"):
            raise SettingsError(
                f"`optimizer` of the recipe{_place(make)} returned a {type(found).__name__}, expected an optimizer alone"
            )
        if _required_arguments(step):
            raise SettingsError(
                f"{type(found).__name__}.step() needs a closure, and steps are made without one here; expected an optimizer "
                "such as SGD or Adam"
            )
        return found

    return optimizer
