"""Networks of the user's own code that a Plan may name: the torch engine puts weights from a file into one of them.

    from headrace.engines.networks import register

    register("scenes", make_scenes, example=np.zeros((1, 3, 224, 224), np.float32))

in the module of the pipeline, and `options = { network = "scenes" }` in the Plan. A Plan names what was registered and nothing
else: were it a path to a function, a Plan from a stranger could call any function on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.settings import check


@dataclass(frozen=True, slots=True)
class Network:
    """How one network is made."""

    make: Callable[[], Any]
    """Returns a torch.nn.Module with any weights."""
    example: Any
    """float32 (1, ...): one item as it takes it."""


_networks: dict[str, Network] = {}


def register(name: str, make: Callable[[], Any], *, example: Any) -> None:
    """Let Plans name a network; the same name again replaces it.

    Args:
        name: As Plans write it.
        make: Returns the network, a torch.nn.Module, with any weights; called once for each model that is opened.
        example: float32 array (1, ...), one item as the network takes it.
    """
    check(bool(name), "network", name, "a name")
    _networks[name] = Network(make, example)


def unregister(name: str) -> None:
    """Take a name back: Plans cannot name that network any more."""
    _networks.pop(name, None)


def names() -> tuple[str, ...]:
    """Return the names of all networks that are registered, in that order."""
    return tuple(_networks)


def registered(name: str) -> Network:
    """Return the network of this name.

    Raises:
        SettingsError: If there is none.
    """
    if name in _networks:
        return _networks[name]
    raise SettingsError(
        f"no network is registered as {name!r}; there are: {', '.join(_networks) or 'none'}. Call "
        "headrace.engines.networks.register in the module of the pipeline"
    )
