"""Draws pipelines: from a seed and nothing else, so that a case is the same on every machine and in every version of this file.

A healthy pipeline is drawn first; then one or two faults are planted, or, for one case in five, jobs come more slowly than it
could do them. Loads and limits are chosen by what the work would cost on a usual machine; what they really do is measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from benchmarks.truth.faults import KINDS, Planted, plant
from benchmarks.truth.spec import CORES, TASKS, WORKS, Part, Spec, StageSpec, fewest_workers

SHAPES = {"chain": 4, "device": 3, "two_devices": 1, "fan_out": 2, "tasks": 1}
_HEALTHY, _TWO = 0.2, 0.25
#: Milliseconds of a core that a stage takes for an item, evenly on the scale of logarithms.
_LEAST_MS, _MOST_MS = 0.3, 3.0
#: Of all stages together: so that some 80 jobs a second are done.
_TOTAL_MS = 9.0
DOSES = 1.2, 10.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline with what was done to it."""

    seed: int
    healthy: Spec
    planted: tuple[Planted, ...]
    """None: nothing is wrong, and jobs come more slowly than they could be done."""

    @property
    def spec(self) -> Spec:
        """With all faults."""
        return self.without(())

    def without(self, faults: Sequence[int]) -> Spec:
        """Return it with some of its faults taken away, by number."""
        spec = msgspec.structs.replace(self.healthy, planned_rate=self.healthy.rate())
        for number, planted in enumerate(self.planted):
            if number not in faults:
                spec = planted.applied(spec)
        return msgspec.structs.replace(spec, planned_rate=None)

    def with_doses(self, factors: Sequence[float]) -> Case:
        """Return it with its doses multiplied, each up to the greatest that is drawn."""
        doses = [min(DOSES[1], round(one.dose * factor, 2)) for one, factor in zip(self.planted, factors, strict=True)]
        planted = [msgspec.structs.replace(one, dose=dose) for one, dose in zip(self.planted, doses, strict=True)]
        return msgspec.structs.replace(self, planted=tuple(planted))

    def with_fewer_jobs(self, factor: float) -> Case:
        """Return a healthy case to which so many times as many jobs come."""
        rate = round(self.healthy.arrivals["per_second"] * factor, 1)
        return msgspec.structs.replace(self, healthy=self.healthy.with_arrivals(per_second=rate))

    @property
    def says(self) -> str:
        """What is wrong, in a line."""
        return " + ".join(map(str, self.planted)) or "healthy"


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    numbers = random.Random(seed)
    healthy = _draw_healthy(numbers)
    chance = numbers.random()
    if chance < _HEALTHY:
        return Case(seed=seed, healthy=_starved(healthy, numbers), planted=())
    planted: list[Planted] = []
    for _ in range(2 if chance < _HEALTHY + _TWO else 1):
        planted += _plant_one(healthy, planted, numbers)
    return Case(seed=seed, healthy=healthy, planted=tuple(planted))


def _plant_one(spec: Spec, planted: Sequence[Planted], numbers: random.Random) -> list[Planted]:
    """Return a fault that goes with this pipeline and with those that it has; none if there is none left."""
    taken = {one.stage for one in planted} | {one.kind for one in planted}
    for kind in numbers.sample(sorted(KINDS), len(KINDS)):
        dose = math.exp(numbers.uniform(*map(math.log, DOSES)))
        one = plant(kind, spec, round(dose, 2), numbers)
        if one is not None and not {one.stage, one.kind} & taken:
            return [one]
    return []


def _starved(spec: Spec, numbers: random.Random) -> Spec:
    """Return jobs that come at a quarter to half of what could be done: steady, at random, in bursts, or by long polls."""
    rate = round(spec.rate() * numbers.uniform(0.2, 0.45), 1)
    how = numbers.choice(("steady", "random", "bursts"))
    if how == "bursts":
        return spec.with_arrivals(per_second=rate, burst=numbers.randint(2, 8))
    return spec.with_arrivals(per_second=rate, jitter=how == "random")


def _draw_healthy(numbers: random.Random) -> Spec:
    shape = numbers.choices(list(SHAPES), list(SHAPES.values()))[0]
    stages = _draw_stages(shape, numbers)
    spec = Spec(shape=shape, stages=tuple(stages))
    if shape == "tasks":
        spec = spec.with_arrivals(tasks=TASKS)
    if numbers.random() < 0.12:
        spec = spec.with_machine(cores=1, which=numbers.randrange(CORES))
    if numbers.random() < 0.2:
        spec = spec.with_arrivals(poll_seconds=0.001, per_poll=numbers.choice((10, 32)))
    spec = _with_delivery(spec, numbers)
    return _with_plan(spec, numbers)


def _draw_stages(shape: str, numbers: random.Random) -> list[StageSpec]:
    if shape == "tasks":
        return [stage for task in TASKS for stage in _draw_module(task, numbers)]
    computing = [_draw_work(name, numbers) for name in numbers.sample(sorted(WORKS), numbers.randint(2, 4))]
    while sum(stage.milliseconds for stage in computing) > _TOTAL_MS:
        computing.pop()
    if shape in ("device", "two_devices"):
        computing.insert(numbers.randint(1, len(computing)), _draw_model("model", numbers))
    if shape == "two_devices":
        computing.append(_draw_model("second_model", numbers))
    if numbers.random() < 0.65:
        computing.insert(numbers.randint(0, len(computing)), _draw_service(numbers))
    return _cut(computing, numbers) if shape == "fan_out" else computing


def _draw_module(task: str, numbers: random.Random) -> list[StageSpec]:
    before, after = (_draw_work(name, numbers) for name in numbers.sample(sorted(WORKS), 2))
    stages = {"preprocess": before, "process": _draw_model("", numbers), "postprocess": after}
    # A module does not say whether its code lets go of the GIL.
    return [msgspec.structs.replace(stage, name=f"{task}.{name}", releases_gil=False) for name, stage in stages.items()]


def _draw_work(name: str, numbers: random.Random) -> StageSpec:
    each_ms, holds, names = WORKS[name]
    wanted_ms = math.exp(numbers.uniform(math.log(_LEAST_MS), math.log(_MOST_MS)))
    repeats = max(4, 4 * round(wanted_ms / each_ms / 4))  # so that a half and a quarter are whole
    # People forget to say that their NumPy code lets go of the GIL.
    says = holds == "core" and numbers.random() < 0.7
    return StageSpec(numbers.choice(names), Part(name, {"repeats": repeats}), releases_gil=says)


def _draw_model(name: str, numbers: random.Random) -> StageSpec:
    part = Part(
        "TorchModel" if numbers.random() < 0.15 else "Model",
        {"repeats": 4 * numbers.randint(10, 120), "launches": 8 * numbers.randint(0, 12)},
    )
    return StageSpec(name, part, kind="device")


def _draw_service(numbers: random.Random) -> StageSpec:
    name = numbers.choice(("enrich", "fetch_user", "ask_price", "translate"))
    service = Part("Service", {"latency": round(numbers.uniform(0.004, 0.04), 4), "jitter": numbers.choice((0.0, 0.5))})
    return StageSpec(name, Part("Call", {"service": service}), kind="io")


def _cut(stages: Sequence[StageSpec], numbers: random.Random) -> list[StageSpec]:
    """Return them with one or two of them done for each of some pieces of an item, at as much cost in all."""
    start = numbers.randrange(len(stages))
    end, pieces = min(len(stages), start + numbers.randint(1, 2)), numbers.randint(2, 4)
    cut = StageSpec("cut", Part("Cut", {"pieces": pieces}), role="fan_out")
    inner = [_lighter(stage, pieces) for stage in stages[start:end]]
    return [*stages[:start], cut, *inner, StageSpec("gather", Part("paste"), role="join"), *stages[end:]]


def _lighter(stage: StageSpec, pieces: int) -> StageSpec:
    if "repeats" not in stage.part.options:
        return stage
    part = stage.part.with_options(repeats=max(4, 4 * round(stage.part.whole("repeats") / pieces / 4)))
    return msgspec.structs.replace(stage, part=part)


def _with_delivery(spec: Spec, numbers: random.Random) -> Spec:
    """Return results that are kept in memory, go to a file, to a receiver, or to both of them."""
    chance, file = numbers.random(), "hr.jsonl(results_file())"
    if 0.1 <= chance < 0.5:
        return spec
    if 0.5 <= chance < 0.75:
        return msgspec.structs.replace(spec, delivery=file)
    service = Part("Service", {"latency": round(numbers.uniform(0.002, 0.02), 4)})
    workers = f"deliver.workers={fewest_workers(spec.rate(), service.seconds('latency'))}"
    callback = f"hr.callback(receiver_of({service}))"
    if chance < 0.1:
        return msgspec.structs.replace(spec, delivery=f"Both({file}, {callback})").with_settings(workers)
    spec = msgspec.structs.replace(spec, delivery=callback).with_settings(workers)
    return spec.with_settings("deliver.executor=events") if chance >= 0.9 else spec


def _with_plan(spec: Spec, numbers: random.Random) -> Spec:
    """Return it with a Plan under which what waits has workers enough, and what computes has as many as people give it."""
    for stage in spec.stages:
        if stage.kind == "io":
            rate = spec.rate() * spec.times(stage.name)
            spec = spec.with_settings(f"{stage.name}.workers={fewest_workers(rate, spec.wait_seconds(stage.name))}")
        elif stage.kind == "device":
            spec = spec.with_settings(f"{stage.name}.batch={numbers.choice((4, 8, 16))}")
        elif stage.role == "map" and numbers.random() < 0.5:
            spec = spec.with_settings(
                f"{stage.name}.workers={numbers.choice((1, 2, 2, 4))}", f"{stage.name}.executor=thread"
            )
    return spec
