"""What makes two runs the same run: the items, and what decides the answers. Workers, batches and threads may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.base.plan import ModelPlan, Plan
from headrace.pipeline.definition import Pipeline
from headrace.sources.finite import Entry


def fingerprint(entries: Iterable[Entry]) -> str:
    """Return the SHA-256 of the ids, in order."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.id.encode() + b"\0")
    return digest.hexdigest()


def answers_of(pipeline: Pipeline, plan: Plan) -> dict[str, Any]:
    """Return the settings that decide the answers, as they are written in a Plan, and the names of the stages.

    Options of stages that wait on the outside (addresses, timeouts) decide none. Neither is what the user's own code does in
    here: nobody can tell whether that is the same.
    """
    answers: dict[str, Any] = {
        "the stages": [stage.name for stage in pipeline.stages],
        "decode.scale": plan.decode.scale,
        "decode.decoder": plan.decode.decoder,
        **_model("model", plan.model),
    }
    for task, model in plan.models.items():
        answers |= _model(f"models.{task}", model)
    for stage in pipeline.stages:
        if stage.kind != "io":
            options = plan.stages[stage.name].options
            answers |= {f"stages.{stage.name}.options.{key}": value for key, value in options.items()}
    return answers


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs, in words: `model.engine was 'onnx' and is 'openvino'`."""
    return [
        f"{key} was {_show(was.get(key))} and is {_show(now.get(key))}"
        for key in dict.fromkeys([*was, *now])
        if was.get(key) != now.get(key)
    ]


def _model(where: str, model: ModelPlan) -> dict[str, Any]:
    options = {f"{where}.options.{key}": value for key, value in model.options.items()}
    side = {} if model.input_side is None else {f"{where}.input_side": model.input_side}
    return {f"{where}.artifact": model.artifact, f"{where}.engine": model.engine, **side, **options}


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not set" if value is None else repr(value)
