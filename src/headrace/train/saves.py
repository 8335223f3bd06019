"""The functions by which frameworks save a training: more than `torch.save`, which not all of them call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

#: Module, class (empty: a function of the module), name. A framework may call one within another.
_SAVES = (
    ("transformers.trainer", "Trainer", "_save_checkpoint"),  # all that `save_steps` and `save_strategy` bring about
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint"),
    ("keras.src.models.model", "Model", "save"),
    ("keras.src.models.model", "Model", "save_weights"),
    ("safetensors.torch", "", "save_file"),
    ("torch.distributed.checkpoint", "", "save"),
)


def find_saves() -> Iterator[tuple[Any, str]]:
    """Return the owner and the name of each function that is imported by now."""
    for module, kind, name in _SAVES:
        owner = sys.modules.get(module)
        owner = getattr(owner, kind, None) if kind else owner
        if hasattr(owner, name):
            yield owner, name
