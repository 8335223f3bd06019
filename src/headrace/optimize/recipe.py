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

import hashlib
import inspect
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headrace.base.errors import SettingsError

#: Loss on the recipe's own data, as a share of all items, from which on training has not repaired what was done to a network:
#: four times the usual margin of 0.5 points, because such data are few, and the golden set decides.
MOST_LOSS = 0.02


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
    """Return the SHA-256 of the file that defines a recipe: another file, another training."""
    try:
        file = inspect.getsourcefile(type(recipe))
        content = Path(file).read_bytes() if file else b""
    except (OSError, TypeError):
        content = b""
    return hashlib.sha256(content).hexdigest()
