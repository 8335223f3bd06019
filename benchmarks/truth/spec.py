"""What a generated pipeline is made of: plain data, drawn by `grammar`, changed by `faults` and `changes`, run by `program`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

Holds = Literal["gil", "core", "nothing"]

#: {work: (milliseconds of a core for one repeat on a usual machine, what it holds, names that people give such a stage)}.
WORKS: Mapping[str, tuple[float, Holds, tuple[str, ...]]] = {
    "Tokenise": (0.10, "gil", ("tokenise", "split_words")),
    "FindNames": (0.07, "gil", ("find_names", "extract_dates")),
    "EditDistance": (0.08, "gil", ("match_lines", "align")),
    "Json": (0.16, "gil", ("parse_record", "convert")),
    "Table": (0.05, "gil", ("read_table", "order_rows")),
    "Forest": (0.37, "gil", ("score_trees", "classify")),
    "Compress": (0.11, "core", ("compress", "pack")),
    "Digest": (0.04, "core", ("digest", "fingerprint")),
    "Blur": (0.21, "core", ("blur", "prepare_image")),
    "DecodeJpeg": (0.22, "core", ("decode", "open_image")),
    "SortNumbers": (0.08, "core", ("sort_scores", "rank_all")),
    "Spectrum": (0.05, "core", ("spectrum", "features")),
    "Cluster": (0.16, "core", ("cluster", "nearest_centre")),
    "CopyMemory": (0.10, "core", ("stack_frames", "copy_frames")),
    "Blas": (0.13, "core", ("project", "embed")),
    "Lookup": (0.10, "core", ("look_up", "join_table")),
}
#: Milliseconds that a model takes for an item in a batch of eight, a layer; and for a launch.
LAYER_MS, LAUNCH_MS = 0.004, 0.008
MODELS = ("Model", "TorchModel")
#: Of a pipeline whose jobs are for one of two modules; stages are called `TASK.preprocess`, `.process`, `.postprocess`.
TASKS = ("names", "prices")
CORES = 2


class Part(msgspec.Struct, frozen=True):
    """A call of a class of `library` or `surroundings`, with its arguments; one of them may be another part."""

    name: str
    options: dict[str, Part | bool | int | float | str] = {}

    def __str__(self) -> str:
        """Return it as Python."""
        return f"{self.name}({', '.join(f'{key}={value!s}' for key, value in self._arguments())})"

    def _arguments(self) -> list[tuple[str, str]]:
        return [(key, str(value) if isinstance(value, Part) else repr(value)) for key, value in self.options.items()]

    def with_options(self, **options: Any) -> Part:
        """Return the part with some arguments replaced."""
        return Part(self.name, {**self.options, **options})

    def whole(self, name: str, default: int | None = None) -> int:
        """Return an argument that is a whole number; the default where it is not given."""
        value = self.options.get(name, default)
        if not isinstance(value, int):
            raise TypeError(f"{name} of {self} is {value!r}; expected a whole number")
        return value

    def seconds(self, name: str) -> float:
        """Return an argument that is a time; 0 where it is not given."""
        value = self.options.get(name, 0.0)
        if not isinstance(value, int | float):
            raise TypeError(f"{name} of {self} is {value!r}; expected seconds")
        return float(value)

    def part(self, name: str) -> Part:
        """Return an argument that is a part."""
        value = self.options[name]
        if not isinstance(value, Part):
            raise TypeError(f"{name} of {self} is {value!r}; expected a part")
        return value

    def inmost(self) -> Part:
        """Return the work that is done, without what is around it."""
        work = self.options.get("work")
        return work.inmost() if isinstance(work, Part) else self

    def changed(self, change: Callable[[Part], Part]) -> Part:
        """Return the part with the work that is done replaced, and what is around it kept."""
        work = self.options.get("work")
        return self.with_options(work=work.changed(change)) if isinstance(work, Part) else change(self)


class StageSpec(msgspec.Struct, frozen=True):
    """One stage."""

    name: str
    part: Part
    kind: str = "cpu"
    releases_gil: bool = False
    role: str = "map"

    def __str__(self) -> str:
        """Return it as Python."""
        if self.role == "map":
            more = f", kind={self.kind!r}" if self.kind != "cpu" else ", releases_gil=True" if self.releases_gil else ""
            return f"hr.stage({self.name!r}, {self.part}{more})"
        return f"hr.{self.role}({self.name!r}, {self.part if self.role == 'fan_out' else self.part.name})"

    @property
    def milliseconds(self) -> float:
        """Of a core that an item takes on a usual machine."""
        work = self.part.inmost()
        if work.name in MODELS:
            return LAYER_MS * work.whole("repeats") + LAUNCH_MS * work.whole("launches", 0) / 8
        if work.name in WORKS:
            return WORKS[work.name][0] * work.whole("repeats")
        return 0.0

    @property
    def holds(self) -> Holds:
        """What it holds while it computes."""
        work = self.part.inmost()
        return WORKS[work.name][1] if work.name in WORKS else "core" if work.name in MODELS else "nothing"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the pipeline has of the machine."""

    cores: int | None = None
    """Cores that it may use; None: all."""
    which: int = 0
    """Number of the choice of so many cores, in their order, counted round."""
    quota: float | None = None
    """Cores' worth of CPU time that a control group allows; None: no limit."""
    neighbours: int = 0
    """Programs that keep a core busy each,"""
    on: float = 1.0
    """for so many seconds,"""
    off: float = 0.0
    """with pauses of so many between."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline, its Plan and what is around it. Immutable: methods that begin with `with_` return a changed copy."""

    shape: str
    stages: tuple[StageSpec, ...]
    arrivals: dict[str, Any] = {}
    """Of the jobs: arguments of `surroundings.jobs`."""
    delivery: str = "hr.collect()"
    """As Python."""
    settings: tuple[str, ...] = ()
    """Of the Plan, each `KEY=VALUE`."""
    machine: Machine = Machine()
    planned_rate: float | None = None
    """Jobs per second of the healthy pipeline, while faults are planted in it: doses go by it; None: of this one."""

    def stage(self, name: str) -> StageSpec:
        """Return the stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def with_part(self, name: str, part: Part) -> Spec:
        """Return it with another part in a stage."""
        stages = [msgspec.structs.replace(one, part=part) if one.name == name else one for one in self.stages]
        return msgspec.structs.replace(self, stages=tuple(stages))

    def with_work(self, name: str, **options: Any) -> Spec:
        """Return it with some arguments of a stage's work replaced."""
        return self.with_part(name, self.stage(name).part.changed(lambda part: part.with_options(**options)))

    def with_settings(self, *settings: str) -> Spec:
        """Return it with settings of its Plan replaced or added."""
        merged = {one.partition("=")[0]: one for one in (*self.settings, *settings)}
        return msgspec.structs.replace(self, settings=tuple(merged.values()))

    def with_arrivals(self, **arrivals: Any) -> Spec:
        """Return it with jobs that come otherwise."""
        return msgspec.structs.replace(self, arrivals={**self.arrivals, **arrivals})

    def with_machine(self, **changes: Any) -> Spec:
        """Return it on another machine."""
        return msgspec.structs.replace(self, machine=msgspec.structs.replace(self.machine, **changes))

    def setting(self, key: str) -> str | None:
        """Return what the Plan says; None if nothing."""
        return next((one.partition("=")[2] for one in self.settings if one.partition("=")[0] == key), None)

    def workers(self, name: str) -> int:
        """Return the workers of a stage that the Plan names, 1 if it names none."""
        return int(self.setting(f"{name}.workers") or 1)

    def times(self, name: str) -> float:
        """Return how often a stage works for one job: for each piece between a cut and its join, for each of its task's."""
        if self.shape == "tasks":
            return 1 / len(TASKS)
        pieces = 1
        for stage in self.stages:
            if stage.name == name:
                return pieces
            if stage.role == "fan_out":
                pieces = stage.part.whole("pieces")
            elif stage.role == "join":
                pieces = 1
        return 1

    def rate(self) -> float:
        """Return the jobs per second that the cores of a usual machine would do: to choose loads and limits by."""
        costs = [(stage.milliseconds * self.times(stage.name), stage.holds) for stage in self.stages]
        python = sum(cost for cost, holds in costs if holds == "gil")
        total = sum(cost for cost, _ in costs) / min(CORES, self.machine.cores or CORES)
        return 1000 / max(python, total, 0.2)

    def wait_seconds(self, name: str) -> float:
        """Return how long a call of a stage waits for something outside; 0 if it does not."""
        work = self.stage(name).part.inmost()
        if work.name == "Call":
            return work.part("service").seconds("latency")
        return work.seconds("seconds") if work.name == "Sleep" else 0.0


def fewest_workers(rate: float, seconds: float) -> int:
    """Return how many have to wait side by side, with a half to spare."""
    return max(1, math.ceil(1.5 * rate * seconds))
