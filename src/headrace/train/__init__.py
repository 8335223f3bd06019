"""Where a training step goes: steps cut into phases, what loading costs in the workers, several processes in one run folder.

Read `runs.training_phases` first (what is recorded), then `recorder` (how the training thread's time is cut), `torch_hooks` and
`loader_watch` (who tells it), `device_clock` (what a GPU takes), `session` (one process from beginning to end). `recording`
runs a program and records it, `in_turn` compares two. `search` holds what tries a training in other forms: batch size,
accumulation, checkpointing, precision. `ranks` trains a script on several ranks for a short while. `framework_run` is what the
callbacks of frameworks share: `lightning_callback`, `transformers_callback`, `keras_callback`, which `keras_arming` adds to
scripts under `headrace train`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.train.keras_callback import KerasCallback
    from headrace.train.lightning_callback import LightningCallback
    from headrace.train.search.recipe import Recipe
    from headrace.train.session import profile
    from headrace.train.transformers_callback import TrainerCallback

__all__ = ["KerasCallback", "LightningCallback", "Recipe", "TrainerCallback", "profile"]


if not TYPE_CHECKING:
    #: Where each name is; imported when it is asked for.
    _HOMES = {
        "KerasCallback": "headrace.train.keras_callback",
        "LightningCallback": "headrace.train.lightning_callback",
        "Recipe": "headrace.train.search.recipe",
        "TrainerCallback": "headrace.train.transformers_callback",
        "profile": "headrace.train.session",
    }

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'headrace.train' has no attribute {name!r}")
