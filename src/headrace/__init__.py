"""headrace keeps an accelerator fed, shows where the time goes, and proves every repair.

A newcomer reads the folders in the order of the data:

    base/        records, errors, clock, statistics, units, policies, protocols, observer, Plan
    runs/        reads and writes run folders
    store/       data sets in few files: tar shards with an index
    sources/     queues (SQLite, SQS, Redis), folder, shards, list of URLs, values in memory
    stages/      fetch, decode, resize, the user's module, postprocess
    engines/     ONNX Runtime, OpenVINO, PyTorch, the emulated device
    delivery/    HTTP callback, JSON Lines, Parquet
    pipeline/    joins the four: bounded queues, batches, workers, shutdown
    ray/         whole workers on a Ray cluster; a pipeline as a step of a Dataset
    compare/     measures alternatives in turn: is B better than A
    profiler/    watches a run: meters, resources, thread states; layers, hot spots, stages alone
    diagnose/    run folder -> analysis, and checks of whether it can be believed
    report/      one HTML page of it; timelines
    validate/    whether a model may stand in for another: as right, and faster
    ledger/      what was predicted, tried and decided, in one file
    tune/        from a Plan to a better one: sweeps, search, capacity
    optimize/    from a model to a cheaper one: engines, precisions, sizes
    serve/       the same pipeline behind HTTP
    train/       where a training step goes
    loop/        profile, diagnose, tune or optimize, validate: unattended
    deploy/      systemd unit, Kubernetes manifests, Containerfile of a pipeline
    monitor/     metrics, alerts, drift, flight recorder, history, review
    samples/     real photographs, a generator of labelled crops, a small model
    demo/        what `headrace demo` runs
    cli/         one module per command
    testing/     memory queue, fake clock, conformance suites, for users' own tests

Nothing heavy is imported here: a name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import headrace.ray  # noqa: F401 - a folder that is a public name
    from headrace.base.current_job import current_jobs
    from headrace.base.errors import DecodeRejected, HeadraceError, ItemError, ItemFailed, ItemRejected, SettingsError
    from headrace.base.meaning import Meaning
    from headrace.base.observer import Observer
    from headrace.base.plan import Plan
    from headrace.base.records import Job, Outcome, Span
    from headrace.delivery.callback import Callback as callback
    from headrace.delivery.collect import Collect as collect
    from headrace.delivery.jsonl import JsonLines as jsonl
    from headrace.delivery.only import only
    from headrace.delivery.parquet import Parquet as parquet
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.execute import Result, run
    from headrace.profiler.profile import ProfileSettings, profile
    from headrace.sources.folder import Folder as folder
    from headrace.sources.items import Items as items
    from headrace.sources.live_video import LiveVideo as live_video
    from headrace.sources.objects import Objects as objects
    from headrace.sources.queue_source import QueueSource as queue
    from headrace.sources.records import Records as records
    from headrace.sources.shards import Shards as shards
    from headrace.sources.urls import UrlList as urls
    from headrace.sources.video import Video as video
    from headrace.stages import images, temporal
    from headrace.stages.augment import Augmentation, augment
    from headrace.stages.decode import DecodeStage as decode
    from headrace.stages.decode import ResizeStage as resize
    from headrace.stages.emulated import emulated
    from headrace.stages.fetch import FetchStage as fetch
    from headrace.stages.inputs import ArrayInput, BytesInput, ImageInput, TextInput
    from headrace.stages.module import Module
    from headrace.stages.placement import Placement, current_placements, note_placement
    from headrace.stages.postprocess import nms
    from headrace.stages.stage import Fan, Joined, Stage, fan_out, join, stage
    from headrace.stages.tokenise import stack_tokens
    from headrace.store.loader import Loader as loader
    from headrace.validate.meanings import Classes, Detections, Embedding, Mask, Numbers, Text

_WHERE = {
    "ArrayInput": "headrace.stages.inputs",
    "Augmentation": "headrace.stages.augment",
    "augment": "headrace.stages.augment",
    "BytesInput": "headrace.stages.inputs",
    "Classes": "headrace.validate.meanings",
    "DecodeRejected": "headrace.base.errors",
    "Detections": "headrace.validate.meanings",
    "Embedding": "headrace.validate.meanings",
    "Fan": "headrace.stages.stage",
    "HeadraceError": "headrace.base.errors",
    "ImageInput": "headrace.stages.inputs",
    "ItemError": "headrace.base.errors",
    "ItemFailed": "headrace.base.errors",
    "ItemRejected": "headrace.base.errors",
    "Job": "headrace.base.records",
    "Joined": "headrace.stages.stage",
    "Mask": "headrace.validate.meanings",
    "Meaning": "headrace.base.meaning",
    "Module": "headrace.stages.module",
    "Numbers": "headrace.validate.meanings",
    "Observer": "headrace.base.observer",
    "Outcome": "headrace.base.records",
    "Pipeline": "headrace.pipeline.definition",
    "Placement": "headrace.stages.placement",
    "Plan": "headrace.base.plan",
    "ProfileSettings": "headrace.profiler.profile",
    "Result": "headrace.pipeline.execute",
    "SettingsError": "headrace.base.errors",
    "Span": "headrace.base.records",
    "Stage": "headrace.stages.stage",
    "Text": "headrace.validate.meanings",
    "TextInput": "headrace.stages.inputs",
    "callback": "headrace.delivery.callback:Callback",
    "collect": "headrace.delivery.collect:Collect",
    "current_jobs": "headrace.base.current_job",
    "current_placements": "headrace.stages.placement",
    "note_placement": "headrace.stages.placement",
    "decode": "headrace.stages.decode:DecodeStage",
    "emulated": "headrace.stages.emulated",
    "fan_out": "headrace.stages.stage",
    "fetch": "headrace.stages.fetch:FetchStage",
    "folder": "headrace.sources.folder:Folder",
    "images": "headrace.stages.images:",
    "items": "headrace.sources.items:Items",
    "join": "headrace.stages.stage",
    "jsonl": "headrace.delivery.jsonl:JsonLines",
    "live_video": "headrace.sources.live_video:LiveVideo",
    "loader": "headrace.store.loader:Loader",
    "nms": "headrace.stages.postprocess",
    "objects": "headrace.sources.objects:Objects",
    "only": "headrace.delivery.only",
    "parquet": "headrace.delivery.parquet:Parquet",
    "profile": "headrace.profiler.profile",
    "queue": "headrace.sources.queue_source:QueueSource",
    "ray": "headrace.ray:",
    "records": "headrace.sources.records:Records",
    "resize": "headrace.stages.decode:ResizeStage",
    "run": "headrace.pipeline.execute",
    "shards": "headrace.sources.shards:Shards",
    "stack_tokens": "headrace.stages.tokenise",
    "stage": "headrace.stages.stage",
    "temporal": "headrace.stages.temporal:",
    "urls": "headrace.sources.urls:UrlList",
    "video": "headrace.sources.video:Video",
}

__all__ = [
    "ArrayInput",
    "Augmentation",
    "BytesInput",
    "Classes",
    "DecodeRejected",
    "Detections",
    "Embedding",
    "Fan",
    "HeadraceError",
    "ImageInput",
    "ItemError",
    "ItemFailed",
    "ItemRejected",
    "Job",
    "Joined",
    "Mask",
    "Meaning",
    "Module",
    "Numbers",
    "Observer",
    "Outcome",
    "Pipeline",
    "Placement",
    "Plan",
    "ProfileSettings",
    "Result",
    "SettingsError",
    "Span",
    "Stage",
    "Text",
    "TextInput",
    "augment",
    "callback",
    "collect",
    "current_jobs",
    "current_placements",
    "decode",
    "emulated",
    "fan_out",
    "fetch",
    "folder",
    "images",
    "items",
    "join",
    "jsonl",
    "live_video",
    "loader",
    "nms",
    "note_placement",
    "objects",
    "only",
    "parquet",
    "profile",
    "queue",
    "records",
    "resize",
    "run",
    "shards",
    "stack_tokens",
    "stage",
    "temporal",
    "urls",
    "video",
]


if not TYPE_CHECKING:  # where types are checked, a name that is not above is an error

    def __getattr__(name: str) -> Any:
        where = _WHERE.get(name)
        if where is None:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        module, colon, attribute = where.partition(":")
        loaded = importlib.import_module(module)
        value = loaded if colon and not attribute else getattr(loaded, attribute or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
