"""What a stage does: by what it says of itself; a user's own by its kind, its place relative to the model, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headrace.runs.run_folder import StageInfo

Work = Literal["download", "decode", "preprocess", "model", "postprocess", "deliver", "callback", "compute"]

#: Words in a stage's name, first match wins. A name is weak evidence, but the only one that a stage of a user's own gives.
_NAMES: tuple[tuple[Work, tuple[str, ...]], ...] = (
    ("download", ("download", "fetch", "load", "read", "pull", "http")),
    ("decode", ("decode", "jpeg", "decompress", "parse")),
    ("postprocess", ("postprocess", "post_process", "nms", "rank", "filter", "suppress", "assemble")),
    ("preprocess", ("preprocess", "pre_process", "resize", "crop", "normalize", "normalise", "augment", "prepare")),
    ("callback", ("callback", "notify", "webhook", "upload", "send", "publish")),
)
_SAYS: dict[str, Work] = {
    "download": "download",
    "decode": "decode",
    "resize": "preprocess",
    "preprocess": "preprocess",
    "model": "model",
    "postprocess": "postprocess",
    "deliver": "deliver",
}


def find_work(stages: Sequence[StageInfo]) -> dict[str, Work]:
    """Return {stage: what it does}.

    Args:
        stages: In the order an item meets them.
    """
    model = next((index for index, stage in enumerate(stages) if _is_model(stage)), None)
    return {stage.name: _one(stage, index, model) for index, stage in enumerate(stages)}


def _is_model(stage: StageInfo) -> bool:
    return stage.work == "model" or stage.kind == "device"


def _one(stage: StageInfo, index: int, model: int | None) -> Work:
    if stage.role == "deliver":
        return "deliver"
    if stage.work in _SAYS:
        return _SAYS[stage.work]
    if stage.kind == "device":
        return "model"
    is_after = model is not None and index > model
    name = stage.name.rpartition(".")[2].lower()  # the task stands before the dot
    for work, words in _NAMES:
        if any(word in name for word in words):
            return "postprocess" if work == "preprocess" and is_after else work
    if stage.kind == "io":
        return "callback" if is_after else "download"
    if is_after:
        return "postprocess"
    return "preprocess" if model is not None else "compute"
