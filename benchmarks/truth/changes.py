"""Draws the changes whose effect is predicted and then measured: a `Change`, and the pipeline as it is then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from benchmarks.truth.spec import CORES, Spec, StageSpec
from headrace.runs.formats.prediction import Change


@dataclass(frozen=True, slots=True)
class Asked:
    """One change."""

    kind: str
    says: str
    change: Change
    spec: Spec
    """The pipeline with the change made."""


def draw_changes(spec: Spec, seed: int, count: int) -> list[Asked]:
    """Return different changes of a pipeline, drawn from its seed.

    Args:
        spec: The pipeline as it was recorded, with its faults.
        seed: Of the case.
        count: How many at most.
    """
    numbers = random.Random(f"changes of {seed}")
    found: dict[str, Asked] = {}
    for _ in range(20 * count):
        kind = numbers.choice(sorted(_KINDS))
        for asked in _KINDS[kind](spec, numbers):
            found.setdefault(asked.says, asked)
        if len(found) >= count:
            break
    return list(found.values())[:count]


def _plan(kind: str, spec: Spec, *settings: str) -> Asked:
    return Asked(kind, " ".join(settings), Change(settings=settings), spec.with_settings(*settings))


def _own_stages(spec: Spec) -> list[StageSpec]:
    return [stage for stage in spec.stages if stage.role == "map"]


def _workers(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    stage = numbers.choice(_own_stages(spec))
    now = spec.workers(stage.name)
    factor = numbers.choice((0.5, 2.0, 4.0))
    new = max(1, round(now * factor))
    named = spec.setting(f"{stage.name}.workers") is not None
    if new != now and stage.kind != "device" and named:
        yield _plan("workers", spec, f"{stage.name}.workers={new}")


def _batch(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    devices = [stage for stage in _own_stages(spec) if stage.kind == "device"]
    if devices:
        stage = numbers.choice(devices)
        batch = numbers.choice((1, 2, 4, 8, 16))
        if str(batch) != spec.setting(f"{stage.name}.batch"):
            yield _plan("batch", spec, f"{stage.name}.batch={batch}")


def _inline(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    stages = [stage for stage in _own_stages(spec)[1:] if stage.kind == "cpu"]
    if stages:
        stage = numbers.choice(stages)
        if spec.setting(f"{stage.name}.executor") == "thread" and spec.setting(f"{stage.name}.workers") == "1":
            yield _plan("executor", spec, f"{stage.name}.executor=inline")


def _faster(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    stage = numbers.choice(_own_stages(spec))
    work, factor = stage.part.inmost(), numbers.choice((0.5, 2.0, 4.0))
    # What is around the work, or launches the model, would not get faster with it.
    if (
        stage.part is work
        and work.options.get("repeats")
        and not work.options.get("launches")
        and not work.options.get("sync")
    ):
        repeats = work.whole("repeats")
        new = round(repeats / factor)
        if new >= 2:
            change = Change(speedups={stage.name: repeats / new})
            says = f"{stage.name} {repeats / new:.3g}x as fast"
            yield Asked("stage", says, change, spec.with_work(stage.name, repeats=new))


def _cores(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    if spec.machine.cores is None and spec.machine.quota is None and not spec.machine.neighbours:
        yield Asked("cores", f"{CORES - 1} core", Change(cores=CORES - 1.0), spec.with_machine(cores=CORES - 1))


def _without(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    stages = [stage for stage in spec.stages if stage.role == "map" and stage.kind == "cpu"]
    inside = spec.shape == "tasks" or any(stage.role == "fan_out" for stage in spec.stages)
    if len(stages) > 1 and not inside:
        stage = numbers.choice(stages)
        if stage.name != "result":
            yield Asked("drop", f"without {stage.name}", Change(drop=(stage.name,)), _dropped(spec, stage.name))


def _dropped(spec: Spec, name: str) -> Spec:
    """Return a pipeline without a stage, whose workers the next one keeps if it was run by them: so a prediction takes it."""
    number = next(number for number, stage in enumerate(spec.stages) if stage.name == name)
    after = spec.stages[number + 1] if number + 1 < len(spec.stages) else None
    own = [one for one in spec.settings if one.startswith(f"{name}.")]
    kept = [one for one in spec.settings if one not in own]
    if after is not None and after.kind == "cpu" and spec.setting(f"{after.name}.executor") is None:
        kept += [one.replace(f"{name}.", f"{after.name}.", 1) for one in own]
    return msgspec.structs.replace(
        spec, stages=(*spec.stages[:number], *spec.stages[number + 1 :]), settings=tuple(kept)
    )


def _arrivals(spec: Spec, numbers: random.Random) -> Iterator[Asked]:
    if not spec.arrivals.get("per_second") and not spec.arrivals.get("poll_seconds"):
        rate = round(spec.rate() * numbers.uniform(0.1, 0.4), 1)
        change = Change(arrival_rate=rate)
        yield Asked("arrivals", f"{rate:g} jobs/s arrive", change, spec.with_arrivals(per_second=rate, jitter=True))


_KINDS: Mapping[str, Callable[[Spec, random.Random], Iterator[Asked]]] = {
    "arrivals": _arrivals,
    "batch": _batch,
    "cores": _cores,
    "drop": _without,
    "executor": _inline,
    "faster": _faster,
    "faster_2": _faster,
    "workers": _workers,
    "workers_2": _workers,
    "workers_3": _workers,
}
