"""Recorded runs made by hand: what each unit needed is known, so what another Plan would do can be worked out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.plan import Plan, StageDefaults, resolve
from headrace.base.records import Receiving
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import Replay
from headrace.runs.hardware import Hardware


@dataclass(kw_only=True)
class Step:
    """One stage; seconds for each item, or one value for all."""

    name: str
    cpu: Any = 0.0
    wait: Any = 0.0
    delay: Any = 0.0
    """Waiting for a core."""
    kind: str = "cpu"
    workers: int = 1
    batch: int = 1
    releases_gil: bool = True
    work: str = ""
    is_emulated: bool = False
    shape: str | None = None
    bytes_in: int = 10
    bytes_out: int = 10
    executor: str = "thread"
    task: str = ""
    """Items take turns between the tasks of the steps; without one, all of them come."""
    posted: int = 0
    """Of the first step: every so-manieth job begins at the second one; 1: all of them do."""
    is_chained: bool = False
    """All items come in spite of the task: it only chooses the model."""


@dataclass(kw_only=True)
class Recorded:
    """A run of `num` items, one every `gap` seconds."""

    steps: list[Step]
    num: int = 120
    gap: float = 0.01
    cores: int = 2
    settings: list[str] = field(default_factory=lambda: ["model.threads=1"])
    changes: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def replay_of(tmp_path: Path, builder: Any) -> Callable[..., Replay]:
    """Writes the folder of a recorded run and makes it ready to be simulated: `replay_of([{"name": ..., ...}], num=...)`."""

    def make(steps: Sequence[Mapping[str, Any]], **recorded: Any) -> Replay:
        folder = type(builder)(tmp_path / f"run-{next(_numbers)}")
        return Analysis(_write(folder, Recorded(steps=[Step(**step) for step in steps], **recorded))).replay

    return make


@pytest.fixture
def fan_of(tmp_path: Path, builder: Any) -> Callable[..., Replay]:
    """Writes a run of 60 jobs that `cut` cuts into children, of which `piece` works on each: seconds of CPU time.

    `tasks` are those of `cut` and `piece`; each `childless`-th job is cut into nothing.
    """

    def make(
        *, whole: float, child: float, children: int, tasks: tuple[str, str] = ("", ""), childless: int = 0
    ) -> Replay:
        num = 60
        task_of = dict(zip(("cut", "piece"), tasks, strict=True))
        folder = type(builder)(tmp_path / f"run-{next(_numbers)}")
        names = {"cut": "fan_out", "piece": "map", "vote": "join", "deliver": "deliver"}
        for name, role in names.items():
            folder.stage(name, role=role, task=task_of.get(name, ""))
        each = whole + child * children
        arrived = np.arange(num) * each
        cut = arrived + whole
        folder.spans("cut", arrived=arrived, ended=cut, cpu=whole)
        parents = [job for job in range(num) if not childless or job % childless]
        began = (cut[parents, None] + np.arange(children) * child).ravel()
        ids = [(f"job-{job}", f"job-{job}/{number}") for job in parents for number in range(children)]
        folder.spans(
            "piece",
            unit=["child"] * len(ids),
            unit_id=[own for _, own in ids],
            parent_id=[job for job, _ in ids],
            arrived=began,
            ended=began + child,
            cpu=child,
        )
        for name in ("vote", "deliver"):
            folder.spans(name, arrived=arrived + each, ended=arrived + each + 1e-6, cpu=1e-6)
        plan = resolve(Plan(), [StageDefaults(name=name, kind="cpu", workers=1) for name in names], 2)
        return Analysis(folder.finish(plans={"p1": plan.as_table()}, hardware=Hardware(num_cores=2))).replay

    return make


_numbers = itertools.count()


def _write(builder: Any, recorded: Recorded) -> Any:
    defaults = [
        StageDefaults(name=step.name, kind=step.kind, executor=step.executor, workers=step.workers, task=step.task)  # type: ignore[arg-type]
        for step in recorded.steps
    ]
    tasks = list(dict.fromkeys(step.task for step in recorded.steps if step.task))
    batches = [f"stages.{step.name}.batch={step.batch}" for step in recorded.steps if step.batch > 1]
    plan = resolve(Plan().with_settings([*batches, *recorded.settings]), defaults, recorded.cores)
    arrived = np.arange(recorded.num) * recorded.gap
    for step in recorded.steps:
        settings = plan.stages[step.name]
        builder.stage(
            step.name,
            kind=step.kind,
            workers=settings.workers,
            queue_capacity=settings.queue_items,
            releases_gil=step.releases_gil,
            work=step.work,
            is_emulated=step.is_emulated,
            executor=settings.executor,
            task=step.task,
        )
        # Jobs are there from the start: the source never has to be waited for.
        cpu, wait, delay = (np.broadcast_to(value, recorded.num) for value in (step.cpu, step.wait, step.delay))
        ended = arrived + np.nan_to_num(cpu) + wait + delay
        takes_turns = bool(step.task) and not step.is_chained
        own = np.arange(tasks.index(step.task) if takes_turns else 0, recorded.num, len(tasks) if takes_turns else 1)
        if step.posted:
            own = own[own % step.posted != 0]
        batched: dict[str, Any] = {}
        if step.kind == "device":
            number = np.arange(len(own)) // step.batch
            batched = {"batch_id": number, "batch_size": step.batch, "release_reason": "full"}
        if not len(own):
            continue
        builder.spans(
            step.name,
            unit_id=[f"job-{number}" for number in own],
            thread=[f"{step.name}-{number % (step.workers or 1)}" for number in range(len(own))],
            arrived=arrived[own],
            ended=ended[own],
            cpu=cpu[own],
            run_delay=delay[own],
            shape_key=step.shape,
            bytes_in=step.bytes_in,
            bytes_out=step.bytes_out,
            **batched,
        )
        arrived = arrived.copy()
        arrived[own] = ended[own]
    receiving = Receiving(
        num_receivers=1,
        calls=max(1, recorded.num // 10),
        empty_calls=0,
        full_calls=max(1, recorded.num // 10),
        jobs=recorded.num,
        asked=recorded.num,
        call_seconds=0.0,
        empty_call_seconds=0.0,
        blocked_seconds=recorded.num * recorded.gap,
        inline_seconds=0.0,
    )
    fields = {"hardware": Hardware(num_cores=recorded.cores), "receiving": receiving, **recorded.changes}
    return builder.finish(plans={"p1": plan.as_table()}, **fields)
