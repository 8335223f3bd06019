"""Which of a pipeline's modules a command means that names a model file: the one that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError

if TYPE_CHECKING:
    from headrace.pipeline.definition import Pipeline
    from headrace.stages.module import ProcessStage


def stage_of_model(pipeline: Pipeline, model: str | None) -> ProcessStage:
    """Return the stage that runs a model: the only one of its kind, else the one whose module names that file.

    Args:
        pipeline: The user's.
        model: The file; None: not known.

    Raises:
        SettingsError: If there is none, or it cannot be told which.
    """
    from headrace.stages.module import ProcessStage

    found = [stage for stage in pipeline.stages if isinstance(stage, ProcessStage)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError("the pipeline has no module: there is nothing that prepares items for a model, and runs it")
    same = [stage for stage in found if model is not None and _is_same(stage.defaults().model, model)]
    if len({stage.module for stage in same}) == 1:
        return same[0]
    names = "; ".join(f"{stage.name}: {stage.defaults().model or 'no file'}" for stage in found)
    raise SettingsError(
        f"the pipeline has {len(found)} modules ({names}), and {len(same) or 'none'} of them names {model}: name the file that "
        "one of them does"
    )


def _is_same(one: str, other: str) -> bool:
    """Return whether two paths are one file, or hold the same bytes: a model is often copied beside the program."""
    first, second = Path(one), Path(other)
    if not (first.is_file() and second.is_file()):
        return False
    if first.samefile(second):
        return True
    return first.stat().st_size == second.stat().st_size and first.read_bytes() == second.read_bytes()
