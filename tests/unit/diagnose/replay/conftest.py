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
from headrace.diagnose.replay import Replay
from headrace.runs.hardware import Hardware
from headrace.runs.run_folder import Receiving


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
    shape: str | None = None
    bytes_in: int = 10


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
        return Replay.of(_write(folder, Recorded(steps=[Step(**step) for step in steps], **recorded)))

    return make


_numbers = itertools.count()


def _write(builder: Any, recorded: Recorded) -> Any:
    defaults = [
        StageDefaults(name=step.name, kind=step.kind, workers=step.workers)  # type: ignore[arg-type]
        for step in recorded.steps
    ]
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
            executor=settings.executor,
        )
        # Jobs are there from the start: the source never has to be waited for.
        cpu, wait, delay = (np.broadcast_to(value, recorded.num) for value in (step.cpu, step.wait, step.delay))
        ended = arrived + np.nan_to_num(cpu) + wait + delay
        batched: dict[str, Any] = {}
        if step.kind == "device":
            number = np.arange(recorded.num) // step.batch
            batched = {"batch_id": number, "batch_size": step.batch, "release_reason": "full"}
        builder.spans(
            step.name,
            arrived=arrived,
            ended=ended,
            cpu=cpu,
            run_delay=delay,
            shape_key=step.shape,
            bytes_in=step.bytes_in,
            **batched,
        )
        arrived = ended
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
