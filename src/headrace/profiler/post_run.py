"""What is measured after the run, on the first items of a source that can be read again: layers, and stages alone.

Each writes one document into the run folder, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.profiler.layers import measure_layers
from headrace.profiler.model_calls import model_calls
from headrace.profiler.stage_bench import isolate
from headrace.runs.formats import isolation, layers
from headrace.runs.formats.isolation import IsolationDocument
from headrace.runs.formats.layers import LayersDocument
from headrace.runs.run_folder import replace_file

Progress = Callable[[str], object]
Stop = Callable[[], bool]


def add_layers(pipeline: Pipeline, plan: Plan, folder: Path, progress: Progress, stop: Stop) -> LayersDocument:
    """Measure the layers of the first model that a device stage calls, write `layers.json` and return it.

    Raises:
        SettingsError: If no device stage calls a model file, or the source is a queue.
        HeadraceError: If the model has no layers that can be measured.
        OSError: If it cannot be written.
    """
    progress("collecting real inputs of the model")
    calls = model_calls(pipeline, plan, stop)
    if not calls:
        raise SettingsError(
            "--layers needs a device stage that opens a model file with context.open_model(); none was called on the first "
            "items (an emulated device has no layers)"
        )
    call = calls[0]
    progress(f"layers of {call.artifact.name} at batch size {call.batch_size}")
    document = measure_layers(
        call.artifact,
        engine=call.engine,
        threads=call.threads,
        batch_size=call.batch_size,
        inputs=call.inputs,
        options=call.options,
    )
    others = sorted({other.artifact.name for other in calls[1:]} - {call.artifact.name})
    if others:
        note = f"the pipeline also calls {', '.join(others)}, whose layers were not measured"
        document = msgspec.structs.replace(document, warnings=(*document.warnings, note))
    _write(folder / layers.FILE, document)
    return document


def add_isolation(
    pipeline: Pipeline, plan: Plan, folder: Path, progress: Progress, stop: Stop, *, items: int, seconds: float
) -> IsolationDocument:
    """Run each stage alone, write `isolation.json` and return it; see `headrace.profiler.stage_bench.isolate`.

    Raises:
        SettingsError: If the source is a queue.
        HeadraceError: If a stage cannot be opened.
        OSError: If it cannot be written.
    """
    document = isolate(pipeline, plan, items=items, seconds=seconds, progress=progress, stop=stop)
    _write(folder / isolation.FILE, document)
    return document


def _write(path: Path, document: Any) -> None:
    replace_file(path, encode_document(document, indent=True) + b"\n")
