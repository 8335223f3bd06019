"""The pipelines and the changes that `benchmarks.whatif_error` predicts and then makes.

Twelve pipelines: the four shapes of `benchmarks.faults`, a line of emulated stages (`line`), the same with jobs that come
slower than it could do them (`arriving`), stages that wait, compute in C and in Python, and take batches (`mixed`), and the
sequential pipeline of the article that `docs/design.md` names, eight times as fast (`article`); and four that compute
something (`whatif_programs`), whose costs are written down nowhere.

What a change is to the prediction, a `Change`, and how it is really made, a function from case to case, stand side by side
here; nothing else connects them. Stages are made slower or faster by giving them more or less to do.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import headrace as hr
from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.shapes import SHAPES, Computed
from benchmarks.whatif_programs import PROGRAMS
from headrace.base.plan import Plan
from headrace.pipeline.execute import Measuring, run
from headrace.runs.formats.prediction import Change
from headrace.stages.inputs import BytesInput
from headrace.stages.module import Module, ModuleContext, ProcessStage
from headrace.stages.stage import Stage

#: Different items of the emulated and the mixed pipeline, and how unlike they are: standard deviation of the logarithm.
NUM_SIZES, SIZE_SPREAD = 32, 0.5


@dataclass(frozen=True)
class WhatIf:
    """One change: as it is asked, and as it is made."""

    change: Change
    make: Callable[[Case], Case]
    arrival_share: float | None = None
    """Jobs come at this share of the base's measured rate; the change's `arrival_rate` is filled in then."""
    has_other_device: bool = False
    """The device stage's cost curve is measured beforehand and given to the prediction; it knows nothing else of the device."""

    def __and__(self, other: WhatIf) -> WhatIf:
        """Return both changes at once."""
        first, second = self.change, other.change
        change = msgspec.structs.replace(
            first,
            settings=(*first.settings, *second.settings),
            speedups={**first.speedups, **second.speedups},
            drop=(*first.drop, *second.drop),
            cost_curves={**first.cost_curves, **second.cost_curves},
        )
        return WhatIf(
            change,
            lambda case: other.make(self.make(case)),
            self.arrival_share or other.arrival_share,
            self.has_other_device or other.has_other_device,
        )

    def with_curve(self, case: Case) -> WhatIf:
        """Return the change with what warm-up measures of the other device, one item being all that it sees."""
        if not self.has_other_device:
            return self
        changed = self.make(case)
        with changed.opened() as pipeline:
            measured = run(pipeline, changed.plan, limit=1, measuring=Measuring(curve_repeats=3)).cost_curves
        curves = {name: dict(curve) for name, curve in measured.items()}
        return dataclasses.replace(self, change=msgspec.structs.replace(self.change, cost_curves=curves))

    def at_rate(self, base_rate: float) -> WhatIf:
        """Return the change with its arrival rate in jobs per second, given what the base does."""
        if self.arrival_share is None:
            return self
        rate = self.arrival_share * base_rate
        make = self.make
        return dataclasses.replace(
            self,
            change=msgspec.structs.replace(self.change, arrival_rate=rate),
            make=lambda case: make(case).with_broker(rate_per_second=rate),
        )


def plan(*settings: str) -> WhatIf:
    """Return a change of the Plan, `KEY=VALUE` each."""
    return WhatIf(Change(settings=settings), lambda case: case.with_settings(*settings))


def times_as_fast(name: str, factor: float, make: Callable[[Case], Case]) -> WhatIf:
    """Return a stage that is so many times as fast, made by a function that gives it so much less to do."""
    return WhatIf(Change(speedups={name: factor}), make)


def without(name: str) -> WhatIf:
    """Return a pipeline without a stage."""

    def make(case: Case) -> Case:
        stages = tuple(stage for stage in case.stages if stage.name != name)
        kept = {key: value for key, value in case.plan.stages.items() if key != name}
        return dataclasses.replace(case, stages=stages, plan=dataclasses.replace(case.plan, stages=kept))

    return WhatIf(Change(drop=(name,)), make)


def arriving_at(share: float) -> WhatIf:
    """Return jobs that come at a share of the base's rate."""
    return WhatIf(Change(), lambda case: case, share)


# --- stages of known cost


def _sizes() -> tuple[float, ...]:
    normal = statistics.NormalDist()
    raw = [math.exp(SIZE_SPREAD * normal.inv_cdf((number + 0.5) / NUM_SIZES)) for number in range(NUM_SIZES)]
    mean = statistics.fmean(raw)
    return tuple(raw[number * 7 % NUM_SIZES] / mean for number in range(NUM_SIZES))


#: Relative sizes of the items, mean 1: what is long to fetch is long to decode.
SIZES = _sizes()


def payloads() -> Sequence[bytes]:
    """Return one payload of each size; its first byte says which."""
    return [bytes([number]) * 1024 for number in range(NUM_SIZES)]


@dataclass(frozen=True)
class Cost:
    """A function that passes its value on and costs what is stated, times the item's size."""

    wait: float = 0.0
    """Seconds asleep."""
    c: float = 0.0
    """Seconds of a core in C, without the GIL."""
    python: float = 0.0
    """Seconds of a core in Python."""

    def __call__(self, value: bytes) -> bytes:
        """Take the time."""
        size = SIZES[value[0]]
        if self.wait:
            time.sleep(self.wait * size)
        if self.c:
            work.burn(self.c * size)
        if self.python:
            work.spin(self.python * size)
        return value


@dataclass(frozen=True)
class BatchCost:
    """A function of a batch that costs call + item n seconds of a core, without the GIL."""

    call: float
    item: float

    def __call__(self, batch: Any) -> list[bytes]:
        """Take the time."""
        work.burn(self.call + self.item * len(batch))
        return list(batch)


class OnDevice(Module):
    """A model on the emulated device."""

    input = BytesInput()

    def load(self, context: ModuleContext) -> None:
        """Open the device."""
        self.device = context.open_model()

    def process(self, batch: Any) -> list[int]:
        """Return a number for each item."""
        return [int(value) for value in self.device(batch)[:, 0]]


def _process_of(module: Module) -> Stage:
    return next(stage for stage in module.stages() if stage.name == "process")


# --- the pipelines


def line() -> Case:
    """Return emulated stages around an emulated device: nothing needs a core."""
    return Case(
        shape="line",
        stages=(
            hr.emulated("fetch", seconds=0.060, kind="io"),
            hr.emulated("prepare", seconds=0.012),
            _process_of(OnDevice()),
            hr.emulated("tell", seconds=0.020, kind="io"),
        ),
        payloads=payloads,
        plan=Plan().with_settings(
            ["fetch.workers=8", "prepare.workers=2", "process.batch=4", "tell.workers=4", "model.engine=emulated",
             "model.options.launch_seconds=0.012", "model.options.item_seconds=0.004"]
        ),
    )  # fmt: skip


def arriving() -> Case:
    """Return the line with 60 jobs a second, of the 130 or so that it could do."""
    return dataclasses.replace(line(), shape="arriving").with_broker(rate_per_second=60.0)


_MIXED = {
    "fetch": Cost(wait=0.040),
    "decode": Cost(c=0.005),
    "prepare": Cost(c=0.0005, python=0.001),
    "tell": Cost(wait=0.01),
}
_KINDS = {"fetch": "io", "decode": "cpu", "prepare": "cpu", "tell": "io"}
_MIXED_PROCESS = BatchCost(0.0008, 0.001)


def mixed() -> Case:
    """Return stages that wait, compute in C and in Python, and take batches on the cores."""
    stages = {name: _mixed_stage(name, cost) for name, cost in _MIXED.items()}
    return Case(
        shape="mixed",
        stages=(
            stages["fetch"],
            stages["decode"],
            stages["prepare"],
            hr.stage("process", _MIXED_PROCESS, kind="device"),
            stages["tell"],
        ),
        payloads=payloads,
        plan=Plan().with_settings(["fetch.workers=6", "decode.workers=2", "process.batch=8", "tell.workers=4"]),
    )


def _mixed_stage(name: str, cost: Cost) -> Stage:
    kind: Any = _KINDS[name]
    return hr.stage(name, cost, kind=kind, releases_gil=cost.python == 0)


def article() -> Case:
    """Return the article's pipeline, eight times as fast: 222 ms of input and output, 63 ms of preprocessing, 13.6 + 34 n ms.

    Everything runs in one thread, one image after the other, as the article's begins.
    """
    return Case(
        shape="article",
        stages=(
            hr.emulated("fetch", seconds=0.180 / 8, kind="io"),
            hr.emulated("preprocess", seconds=0.063 / 8),
            _process_of(OnDevice()),
            hr.emulated("tell", seconds=0.042 / 8, kind="io"),
        ),
        payloads=payloads,
        plan=Plan().with_settings(
            ["fetch.executor=inline", "preprocess.executor=inline", "process.executor=inline", "tell.executor=inline",
             "deliver.executor=inline", "model.engine=emulated", "process.batch=1",
             f"model.options.launch_seconds={0.0136 / 8}", f"model.options.item_seconds={0.034 / 8}"]
        ),
    )  # fmt: skip


PIPELINES: Mapping[str, Callable[[], Case]] = {
    **SHAPES,
    "line": line,
    "mixed": mixed,
    "arriving": arriving,
    "article": article,
    **PROGRAMS,
}


# --- the changes

#: What a stage of a shape with a computed model costs: attributes of its module, in seconds.
_COSTS_OF = {"preprocess": ("python_seconds",), "process": ("call_seconds", "item_seconds")}


def _emulated(name: str, factor: float, seconds: float) -> WhatIf:
    return times_as_fast(name, factor, lambda case: case.with_settings(f"{name}.options.seconds={seconds / factor}"))


def _mixed_faster(name: str, factor: float) -> WhatIf:
    cost = _MIXED[name]
    less = Cost(wait=cost.wait / factor, c=cost.c / factor, python=cost.python / factor)
    return times_as_fast(name, factor, lambda case: case.with_stage(_mixed_stage(name, less)))


def _mixed_process_faster(factor: float) -> WhatIf:
    less = BatchCost(_MIXED_PROCESS.call / factor, _MIXED_PROCESS.item / factor)
    return times_as_fast("process", factor, lambda case: case.with_stage(hr.stage("process", less, kind="device")))


def _computed_faster(name: str, factor: float) -> WhatIf:
    """Return a shape whose module states what it costs, with one of its stages so many times as fast."""

    def make(case: Case) -> Case:
        process = case.stage("process")
        if not isinstance(process, ProcessStage) or not isinstance(process.module, Computed):
            raise ValueError(f"shape {case.shape} has no module of a stated cost")
        faster = copy.copy(process.module)  # as the shape has it now: a number written down here again would grow old
        for cost in _COSTS_OF[name]:
            setattr(faster, cost, getattr(faster, cost) / factor)
        return case.with_stage(next(stage for stage in faster.stages() if stage.name == name))

    return times_as_fast(name, factor, make)


def _other_device(launch: float, item: float) -> WhatIf:
    """Return another device, known to the prediction by its measured cost curve only."""
    options = f"model.options.launch_seconds={launch}", f"model.options.item_seconds={item}"
    return WhatIf(Change(), lambda case: case.with_settings(*options), has_other_device=True)


def _twice(name: str) -> WhatIf:
    """Return a stage that does its work twice."""

    def make(case: Case) -> Case:
        return case.around(name, lambda call: lambda value: (call(value), call(value))[1])

    return times_as_fast(name, 0.5, make)


def _every(name: str, number: int) -> WhatIf:
    """Return a stage that does one item in so many, and gives the others its last answer."""

    def around(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        seen: list[Any] = [0, None]

        def skipping(value: Any) -> Any:
            if seen[0] % number == 0:
                seen[1] = call(value)
            seen[0] += 1
            return seen[1]

        return skipping

    return WhatIf(Change(every={name: number}), lambda case: case.around(name, around))


_LINE = {"fetch": 0.060, "prepare": 0.012, "tell": 0.020}
_line_faster = {name: functools.partial(_emulated, name, seconds=seconds) for name, seconds in _LINE.items()}

#: The changes of each pipeline.
WHAT_IFS: Mapping[str, Sequence[WhatIf]] = {
    "download_heavy": (
        plan("fetch.workers=2"),
        plan("fetch.workers=3"),
        plan("fetch.workers=40"),
        plan("decode.workers=1"),
        plan("process.batch=1"),
        plan("process.batch=3"),
        plan("decode.scale=full"),
        plan("resize.executor=inline", "preprocess.executor=inline"),
        plan("deliver.workers=1"),
        plan("fetch.workers=4", "process.batch=1"),
        plan("decode.scale=full", "fetch.workers=4"),
        arriving_at(0.5),
    ),
    "decode_heavy": (
        plan("decode.scale=auto"),
        plan("decode.workers=1"),
        plan("decode.workers=8"),
        plan("process.batch=1"),
        plan("process.batch=2", "process.queue_items=2"),
        plan("resize.executor=inline", "preprocess.executor=inline"),
        plan("decode.executor=process", "decode.workers=2"),
        _computed_faster("process", 0.25),
        _computed_faster("process", 4),
        plan("decode.scale=auto") & _computed_faster("process", 0.25),
        plan("decode.scale=auto", "process.batch=1"),
        plan("decode.workers=1") & _computed_faster("process", 0.5),
        arriving_at(0.6),
    ),
    "python_preprocess": (
        plan("preprocess.executor=process", "preprocess.workers=2"),
        plan("preprocess.workers=1"),
        plan("preprocess.workers=8"),
        plan("process.batch=1"),
        plan("process.workers=2"),
        plan("preprocess.executor=inline"),
        _computed_faster("preprocess", 0.5),
        _computed_faster("preprocess", 4),
        _computed_faster("process", 4),
        _computed_faster("process", 0.33),
        plan("preprocess.executor=process", "preprocess.workers=1") & _computed_faster("preprocess", 0.5),
        _computed_faster("preprocess", 2) & plan("process.batch=2"),
    ),
    "device_heavy": (
        plan("process.batch=4"),
        plan("process.batch=1"),
        plan("process.batch=8"),
        plan("process.batch=32"),
        plan("process.max_wait_seconds=0.05"),
        plan("model.options.launch_seconds=0.002"),
        _other_device(0.004, 0.004),
        _other_device(0.002, 0.0003),
        plan("decode.workers=1") & _other_device(0.002, 0.0002),
        plan("process.batch=2", "model.options.launch_seconds=0.004"),
        arriving_at(0.5),
    ),
    "line": (
        plan("fetch.workers=2"),
        plan("fetch.workers=32"),
        plan("prepare.workers=1"),
        plan("prepare.workers=8"),
        plan("process.batch=1"),
        plan("process.batch=16"),
        plan("process.batch=16", "fetch.workers=32", "prepare.workers=8", "tell.workers=16"),
        plan("prepare.queue_items=1", "process.queue_items=1"),
        plan("process.max_wait_seconds=0.03"),
        plan("fetch.executor=inline", "prepare.executor=inline"),
        _line_faster["fetch"](0.25),
        _line_faster["fetch"](4.0),
        _line_faster["prepare"](0.5),
        _line_faster["prepare"](4.0) & plan("fetch.workers=16"),
        without("prepare"),
        without("tell") & plan("process.batch=8", "fetch.workers=24"),
        plan("run.ordered=true"),
        arriving_at(0.5),
    ),
    "mixed": (
        plan("fetch.workers=2"),
        plan("fetch.workers=16"),
        plan("fetch.workers=32", "decode.workers=4"),
        plan("decode.workers=1"),
        plan("process.batch=1"),
        plan("prepare.executor=process", "prepare.workers=2"),
        plan("prepare.executor=inline"),
        plan("decode.queue_items=1", "prepare.queue_items=1"),
        _mixed_faster("fetch", 0.33),
        _mixed_faster("decode", 0.5),
        _mixed_faster("decode", 4) & plan("fetch.workers=24"),
        _mixed_faster("prepare", 0.25),
        _mixed_process_faster(0.25),
        _mixed_faster("tell", 0.25),
        without("decode") & plan("fetch.workers=32"),
        without("prepare") & plan("fetch.workers=16"),
    ),
    "arriving": (
        arriving_at(1.6),
        arriving_at(4.0),
        plan("fetch.workers=2"),
        plan("process.batch=1") & _line_faster["prepare"](0.25),
        arriving_at(4.0) & plan("fetch.workers=32", "prepare.workers=4", "process.batch=8", "tell.workers=8"),
    ),
    "article": (
        plan("fetch.executor=thread", "fetch.workers=12", "preprocess.executor=thread", "preprocess.workers=1",
             "tell.executor=thread", "tell.workers=4"),
        plan("fetch.executor=thread", "fetch.workers=12", "preprocess.executor=thread", "preprocess.workers=4",
             "process.executor=thread", "tell.executor=thread", "tell.workers=4"),
        plan("fetch.executor=thread", "fetch.workers=12", "preprocess.executor=thread", "preprocess.workers=4",
             "process.executor=thread", "process.batch=8", "tell.executor=thread", "tell.workers=4"),
    ),
    "limited": (
        plan("enrich.workers=12"),
        plan("enrich.workers=3"),
        _twice("tokenize"),
        _every("vectorize", 3),
    ),
    "text": (
        plan("enrich.workers=16"),
        plan("enrich.workers=2"),
        plan("vectorize.workers=2"),
        plan("tokenize.executor=process"),
        plan("process.batch=1"),
        _twice("tokenize"),
        _twice("vectorize"),
        _every("vectorize", 3),
    ),
    "sound": (
        plan("fetch.workers=2"),
        plan("fetch.workers=12"),
        plan("spectrum.workers=2"),
        plan("spectrum.workers=2", "decode.workers=2", "smooth.executor=process"),
        plan("smooth.executor=process"),
        plan("process.batch=1"),
        _twice("spectrum"),
        _twice("smooth"),
        _every("spectrum", 3),
    ),
    "crops": (
        plan("normalize.workers=2"),
        plan("normalize.workers=4"),
        plan("detect.workers=2"),
        plan("process.batch=2"),
        _twice("normalize"),
        _twice("detect"),
        _every("normalize", 2),
    ),
}  # fmt: skip

#: How many of them a smoke run tries.
QUICK: Mapping[str, int] = {"line": 2, "mixed": 1}
