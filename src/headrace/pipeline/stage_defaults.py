"""What the stages of a pipeline ask for where a Plan says nothing, and which of them share a worker then.

Two stages that compute while they keep the GIL cannot run at the same time, whatever threads they have: overlap brings
nothing, and a hand-off between their threads costs at every item. So the second one runs in the worker of the first. This
needs no measurement, and the same Plan means the same on every machine; see docs/decisions/0044-fused-by-default.md.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence

from headrace.base.plan import Plan, StageDefaults
from headrace.base.protocols import GivesFiles
from headrace.pipeline.definition import Pipeline
from headrace.stages.stage import Stage


def stage_defaults(pipeline: Pipeline, plan: Plan) -> list[StageDefaults]:
    """Return what each stage asks for, in the order in which an item meets them, for `resolve`."""
    before: dict[str, set[Stage]] = defaultdict(set)
    for route in pipeline.routes.values():
        for first, second in itertools.pairwise(route):
            before[second.name].add(first)
    of_files = isinstance(pipeline.source, GivesFiles) and pipeline.source.gives_files
    return [_defaults(stage, before[stage.name], plan, of_files=of_files) for stage in pipeline.stages]


def fused_because(plan: Plan, resolved: Plan, stages: Sequence[StageDefaults]) -> dict[str, str]:
    """Return {stage that runs in the workers of the one before: why}, as `StageInfo.fused` has it.

    Args:
        plan: As written.
        resolved: The same, resolved.
        stages: As `stage_defaults` returned them.
    """
    found = {}
    for stage in stages:
        written = plan.stages.get(stage.name)
        if resolved.stages[stage.name].executor == "inline":
            by_rule = "gil" if stage.fuse_with else "default"
            found[stage.name] = by_rule if written is None or written.executor is None else "plan"
    return found


def _defaults(stage: Stage, before: set[Stage], plan: Plan, *, of_files: bool) -> StageDefaults:
    defaults = stage.defaults()
    if of_files and stage.work == "download":
        # One thread that carries calls has others read the files, and each hand-off costs more than most files.
        defaults = dataclasses.replace(defaults, executor="thread")
    if plan.run.ordered and stage.role == "deliver":
        return dataclasses.replace(defaults, workers=1)  # several would overtake one another
    if len(before) == 1 and stage.role == "map" and all(_needs_gil(one) for one in (stage, *before)):
        return dataclasses.replace(defaults, fuse_with=next(iter(before)).name)
    return defaults


def _needs_gil(stage: Stage) -> bool:
    """Return whether a stage does nothing but compute with the GIL, and asks for no workers of its own."""
    computes = stage.kind == "cpu" and stage.computes and not stage.releases_gil
    return computes and stage.role in ("map", "join") and stage.executor == "thread" and stage.workers is None
