"""What the user gives for techniques that train: how the network is made, trained further and scored.

    class Scenes:
        example = np.zeros((1, 3, 224, 224), np.float32)    # one item as the network takes it

        def build(self):                                    # the trained network, a torch.nn.Module
            network = make_network()
            network.load_state_dict(torch.load("scenes.pt", weights_only=True))
            return network

        def fit(self, network, teacher=None):               # train it further, in place, for as long as one round may take
            ...

        def evaluate(self, network):                        # right answers, 0 to 1, on data of its own
            ...

    recipe = Scenes()

and `headrace optimize training:recipe --data ... --golden ...`. Without `fit` and `evaluate` the network is converted and goes
through everything that trains nothing. `evaluate` steers the rounds; it must not look at the golden set, which decides.

Two more are optional: `names`, the classes in the order of the output, which go into the converted file; and `keep(network)`,
the layers whose outputs are the answer, where headrace does not find them itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from headrace.base.errors import EngineError, SettingsError

#: Loss on the recipe's own data, as a share of all items, from which on training has not repaired what was done to a network:
#: four times the usual margin of 0.5 points, because such data are few, and the golden set decides.
MOST_LOSS = 0.02
#: Share of each layer's channels that is gone after each round of pruning.
PRUNE_SHARES = (0.3, 0.5, 0.65, 0.75)


@runtime_checkable
class Buildable(Protocol):
    """A network that can be converted."""

    example: Any
    """float32 (1, ...): one item as the network takes it."""

    def build(self) -> Any:
        """Return the trained network, a torch.nn.Module; anew in every call."""
        ...


@runtime_checkable
class Trainable(Buildable, Protocol):
    """A network that can be trained further too."""

    def fit(self, network: Any, teacher: Any = None) -> None:
        """Train a changed network further, in place, for as long as one round may take.

        Args:
            network: A torch.nn.Module.
            teacher: The network as it was, whose answers may be learned from too; None: the labels alone.
        """
        ...

    def evaluate(self, network: Any) -> float:
        """Return the share of right answers, 0 to 1, on data that are neither trained on nor in the golden set."""
        ...


def check_recipe(found: object, target: str) -> Buildable:
    """Return what the user named, if it can be built.

    Raises:
        SettingsError: If it cannot.
    """
    if isinstance(found, Buildable) and not isinstance(found, type):
        return found
    raise SettingsError(
        f"{target} is a {type(found).__name__}; expected an object with `example`, one item as the network takes it, and "
        "`build()`, which returns the trained network (and `fit` and `evaluate` for techniques that train)"
    )


def source_hash(recipe: Buildable) -> str:
    """Return the SHA-256 of what makes a recipe another one: another file, class or setting, another training.

    It is of the file that defines the class, the class's name, and those attributes of the object that can be written as JSON
    (numbers, texts, lists of them). Two objects that differ in anything else alone, such as functions or arrays that they were
    given, or code of other files that theirs calls, are taken for one: give such recipes an attribute that tells them apart.
    Taken before training: attributes that `fit` counts up would make it another recipe.
    """
    digest = hashlib.sha256(source_of(type(recipe)))
    digest.update(type(recipe).__qualname__.encode())
    for name, value in sorted(getattr(recipe, "__dict__", {}).items()):
        with contextlib.suppress(TypeError, ValueError, RecursionError):  # what is no plain value
            digest.update(msgspec.json.encode([name, value], order="sorted"))
    return digest.hexdigest()


def source_of(defined: Any) -> bytes:
    """Return the file that defines a class or function; empty where there is none."""
    try:
        file = inspect.getsourcefile(defined)
        return Path(file).read_bytes() if file else b""
    except (OSError, TypeError):
        return b""


def called(recipe: Trainable, method: str, *arguments: Any, on: str, hint: str = "") -> Any:
    """Return what the user's own code returns.

    Raises:
        EngineError: If it fails, which ends a technique and not the search.
    """
    try:
        return getattr(recipe, method)(*arguments)
    except Exception as error:
        raise EngineError(
            f"the recipe's `{method}` failed on {on}: {type(error).__name__}: {' '.join(str(error).split())[:300]}{hint}"
        ) from error


def right_answers(recipe: Trainable, network: Any, on: str) -> float:
    """Return the share of right answers, and take the network back from where `evaluate` has put it: a GPU, another type.

    Raises:
        EngineError: If `evaluate` fails.
    """
    right = float(called(recipe, "evaluate", network, on=on))
    network.float().cpu()
    return right
