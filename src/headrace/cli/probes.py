"""`--probe`: the items with which a service tries itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import BadMessage, SettingsError

if TYPE_CHECKING:
    from headrace.pipeline.definition import Pipeline


def read_probes(given: Sequence[str], pipeline: Pipeline) -> dict[str, Any]:
    """Return {task: item}; tasks of images have a photograph of ours where nothing is given for them.

    Args:
        given: `FILE`, for all tasks, or `TASK=FILE`.
        pipeline: That is served.

    Raises:
        SettingsError: If a file cannot be read, is for no task, or for one that has another already, or is no array where the
            task takes arrays.
    """
    from headrace.samples.catalogue import PHOTOGRAPHS
    from headrace.stages.decode import DecodeStage

    files: dict[str, str] = {}
    for text in given:
        task, found, file = text.partition("=")
        tasks, file = ([task], file) if found and task in pipeline.routes else (list(pipeline.routes), text)
        if found and len(tasks) > 1 and not Path(text).exists():
            raise SettingsError(f"--probe {text}: there is no task {task!r}; there is {', '.join(pipeline.routes)}")
        for one in tasks:
            if one in files:
                raise SettingsError(f"--probe {text}: there is {files[one]} already; name the task: --probe TASK=FILE")
            files[one] = file
    probes = {task: _read(task, file, pipeline) for task, file in files.items()}
    for task, route in pipeline.routes.items():
        if task not in probes and any(isinstance(stage, DecodeStage) for stage in route):
            probes[task] = PHOTOGRAPHS[0].path.read_bytes()
    return probes


def _read(task: str, file: str, pipeline: Pipeline) -> Any:
    from headrace.serve.npy import arrays_of, read_npy

    try:
        content = Path(file).read_bytes()
        array = arrays_of(pipeline).get(task)
        return content if array is None else read_npy(content, array)
    except (OSError, BadMessage) as error:
        raise SettingsError(f"--probe {file}: {error}") from error
