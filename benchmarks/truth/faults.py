"""What can be wrong with a generated pipeline, and what a diagnosis has to say of each.

A fault is a change of a `Spec`, so that it can be taken away again, alone or with another. Whether it matters is not decided
here: a dose may be too small to cost anything, or something else may hold up the pipeline; that is measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.truth.spec import CORES, MODELS, Part, Spec, StageSpec
from benchmarks.verdicts_required import Required


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in a certain pipeline."""

    kind: str
    stage: str
    """Where; empty where it is around the pipeline. No two faults of a case share it."""
    dose: float
    """How strong, 1.2 to 10."""

    def __str__(self) -> str:
        """Return it in a few words."""
        return f"{self.kind} x{self.dose:g}" + (f" at {self.stage}" if self.stage else "")

    @property
    def is_work(self) -> bool:
        """Whether it is more of a stage's own work, of which less can be done."""
        return KINDS[self.kind].apply is _heavy

    def applied(self, spec: Spec) -> Spec:
        """Return a pipeline with this fault."""
        return KINDS[self.kind].apply(spec, self.stage, self.dose)

    def required(self, spec: Spec) -> Required:
        """Return what is right to say of it."""
        kind = KINDS[self.kind]
        verdicts = kind.verdicts or own_work(spec, self.stage)
        return Required(verdicts, (self.stage,) if self.stage else kind.stages)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    says: str
    suits: Callable[[Spec, StageSpec], bool] | None
    """Whether it can be planted in a stage; None: it is around the pipeline, or wherever `apply` finds a place."""
    apply: Callable[[Spec, str, float], Spec]
    verdicts: tuple[str, ...] = ()
    """Any of these is right; empty: whatever names the stage's own work."""
    needs: Callable[[Spec], bool] = lambda spec: True
    stages: tuple[str, ...] = ()
    """Where `suits` is None: stages that may be named with it; empty: any."""


def plant(kind: str, spec: Spec, dose: float, numbers: random.Random) -> Planted | None:
    """Return a fault somewhere in a pipeline; None if it has no place there."""
    one = KINDS[kind]
    if not one.needs(spec):
        return None
    if one.suits is None:
        return Planted(kind=kind, stage="", dose=dose)
    places = [stage.name for stage in spec.stages if one.suits(spec, stage)]
    return Planted(kind=kind, stage=numbers.choice(places), dose=dose) if places else None


def own_work(spec: Spec, name: str) -> tuple[str, ...]:
    """Return the classes that say that a stage's own work is what limits; which of them depends on its place and its name."""
    stage = spec.stage(name)
    if stage.kind == "device":
        return ("DEVICE_COMPUTE", "DEVICE_MEMBW", "LAUNCH", "CPU_SATURATION")
    if stage.kind == "io" or stage.holds == "nothing":
        return ("DOWNLOAD_LATENCY", "CALLBACK", "LOCK")
    work = ("PREPROCESS", "POSTPROCESS", "DECODE")
    return (
        (*work, "GIL", "CPU_SATURATION") if stage.holds == "gil" else (*work, "CPU_SATURATION", "DEVICE_MEMBW", "DISK")
    )


# --- changes


def _planned_rate(spec: Spec) -> float:
    """Return what doses go by: not by the other fault, or curing that one would change this one, too."""
    return spec.rate() if spec.planned_rate is None else spec.planned_rate


def _heavy(spec: Spec, name: str, dose: float) -> Spec:
    repeats = spec.stage(name).part.inmost().whole("repeats")
    return spec.with_work(name, repeats=round(repeats * dose))


def _around(name: str, **options: Callable[[Spec, float], int]) -> Callable[[Spec, str, float], Spec]:
    """Return a change that puts something around the work of a stage; its options follow from pipeline and dose."""

    def apply(spec: Spec, stage: str, dose: float) -> Spec:
        part = spec.stage(stage).part
        more = {key: find(spec, dose) for key, find in options.items()}
        return spec.with_part(stage, Part(name, {"work": part, **more}))

    return apply


def _locked(spec: Spec, name: str, dose: float) -> Spec:
    part = Part("OneAtATime", {"work": spec.stage(name).part})
    return spec.with_part(name, part).with_settings(f"{name}.workers=4", f"{name}.executor=thread")


def _behind_a_lock(spec: Spec, name: str, dose: float) -> Spec:
    """Have each call wait for a while with the lock held, as for something outside that takes one at a time."""
    seconds = round(dose / _planned_rate(spec) / spec.times(name), 4)
    part = Part("OneAtATime", {"work": Part("Sleep", {"seconds": seconds})})
    return spec.with_part(name, part)


def _service(spec: Spec, name: str, **options: float | bool) -> Spec:
    service = spec.stage(name).part.inmost().part("service")
    return spec.with_work(name, service=service.with_options(**options))


def _slow_service(spec: Spec, name: str, dose: float) -> Spec:
    return _service(spec, name, latency=round(spec.wait_seconds(name) * 1.5 * dose, 4))


def _few_workers(spec: Spec, name: str, dose: float) -> Spec:
    return spec.with_settings(f"{name}.workers={max(1, round(spec.workers(name) / 1.5 / dose))}")


def _allowed(spec: Spec, name: str, dose: float) -> float:
    """Return calls a second, so many times fewer than would be made."""
    return round(_planned_rate(spec) * spec.times(name) / dose, 1)


def _narrow_link(spec: Spec, name: str, dose: float) -> Spec:
    return _service(spec, name, bytes_per_second=round(_allowed(spec, name, dose) * 3200))


def _slow_receiver(spec: Spec, name: str, dose: float) -> Spec:
    workers = spec.workers("deliver")
    service = Part("Service", {"latency": round(workers * dose / _planned_rate(spec), 4)})
    return msgspec.structs.replace(spec, delivery=f"hr.callback(receiver_of({service}))")


def _large_results(spec: Spec, name: str, dose: float) -> Spec:
    stage = StageSpec("result", Part("Large", {"numbers": round(1000 * dose)}))
    settings = tuple(one for one in spec.settings if one != "deliver.executor=events")  # which is for callbacks
    return msgspec.structs.replace(
        spec, stages=(*spec.stages, stage), delivery="hr.jsonl(results_file())", settings=settings
    )


def _synced(spec: Spec, name: str, dose: float) -> Spec:
    index = round(dose * 10) % (len(spec.stages) + 1)
    before, after = spec.stages[:index], spec.stages[index:]
    if any(stage.role == "fan_out" for stage in before) and any(stage.role == "join" for stage in after):
        before, after = spec.stages, ()
    stage = StageSpec("journal", Part("Write", {"repeats": max(1, round(dose / 2)), "sync": True}))
    return msgspec.structs.replace(spec, stages=(*before, stage, *after)).with_settings("journal.executor=thread")


def _slow_poll(spec: Spec, name: str, dose: float) -> Spec:
    return spec.with_arrivals(poll_seconds=round(4 * dose / _planned_rate(spec), 4), per_poll=4)


def _blas_threads(spec: Spec, name: str, dose: float) -> Spec:
    for stage in spec.stages:
        if stage.part.inmost().name in ("Blas", *MODELS):
            spec = spec.with_work(stage.name, threads=max(2, round(1.6 * dose)))
    return spec.with_settings(f"{name}.workers=4", f"{name}.executor=thread")


def _neighbours(spec: Spec, name: str, dose: float) -> Spec:
    on, off = (1.0, 0.0) if dose > 3 else (0.3, 0.1)
    return spec.with_machine(neighbours=max(1, round(dose)) if dose < 6 else 6, on=on, off=off)


def _quota(spec: Spec, name: str, dose: float) -> Spec:
    return spec.with_machine(quota=round((spec.machine.cores or CORES) / min(dose, 5.0), 2))


def _batch_of_one(spec: Spec, name: str, dose: float) -> Spec:
    launches = round(20 * dose)
    return spec.with_work(name, launches=launches).with_settings(f"{name}.batch=1")


# --- places


def _computes(spec: Spec, stage: StageSpec) -> bool:
    return stage.role == "map" and stage.kind == "cpu" and stage.milliseconds > 0


def _is_python(spec: Spec, stage: StageSpec) -> bool:
    return _computes(spec, stage) and stage.holds == "gil"


def _is_native(spec: Spec, stage: StageSpec) -> bool:
    return _computes(spec, stage) and stage.holds == "core"


def _is_called(spec: Spec, stage: StageSpec) -> bool:
    return stage.part.inmost().name == "Call"


def _is_model(spec: Spec, stage: StageSpec) -> bool:
    return stage.kind == "device"


def _has_one_route(spec: Spec) -> bool:
    return spec.shape != "tasks"


def _has_callback(spec: Spec) -> bool:
    return spec.delivery.startswith("hr.callback")


_LATENCY = ("DOWNLOAD_LATENCY", "CALLBACK")

KINDS: Mapping[str, Kind] = {
    "heavy_python": Kind("Python code does more", _is_python, _heavy),
    "heavy_native": Kind("native code does more", _is_native, _heavy),
    "heavy_model": Kind("a larger model", _is_model, _heavy),
    "slow_service": Kind("a service answers late", _is_called, _slow_service, _LATENCY),
    "few_workers": Kind("too few wait side by side", _is_called, _few_workers, _LATENCY),
    "rate_limit": Kind(
        "a service lets so many calls a second wait their turn", _is_called,
        lambda spec, name, dose: _service(spec, name, per_second=_allowed(spec, name, dose)), ("RATE_LIMIT", "BANDWIDTH"),
    ),
    "refusals": Kind(
        "a service answers 429 beyond so many calls a second", _is_called,
        lambda spec, name, dose: _service(spec, name, per_second=_allowed(spec, name, dose), refuses=True),
        ("RATE_LIMIT", "RETRY"),
    ),
    "narrow_link": Kind("a link lets so many bytes through", _is_called, _narrow_link, ("BANDWIDTH", "RATE_LIMIT")),
    "slow_receiver": Kind("the receiver of results answers late", None, _slow_receiver, ("CALLBACK",), _has_callback),
    "large_results": Kind(  # the GIL too: writing numbers as text holds it
        "results are large, and written as text", None, _large_results, ("SERIALIZATION", "GIL"),
        _has_one_route, ("deliver", "result"),
    ),
    "lock": Kind("one lock around the work, for all workers", _is_native, _locked, ("LOCK",)),
    "lock_outside": Kind("a lock is held while something outside is waited for", _is_called, _behind_a_lock, ("LOCK",)),
    "collector": Kind(
        "the collector of cyclic garbage runs for each item", _computes,
        _around("Collecting", living=lambda spec, dose: round(4000 * dose)), ("GC",),
    ),
    "log_pipe": Kind(
        "debug lines go to a pipe that is read slowly", _computes,
        _around(
            "Logging", lines=lambda spec, dose: 10,
            bytes_per_second=lambda spec, dose: round(750 * _planned_rate(spec) / dose),
        ),
        ("LOGGING",),
    ),
    "sync_writes": Kind(
        "each item is written to the disk, and waited for", None, _synced, ("DISK", "LOGGING"), _has_one_route
    ),
    "dear_items": Kind(
        "one item in nine is dear", _computes,
        _around("Rarely", every=lambda spec, dose: 9, times=lambda spec, dose: round(8 * dose)),
        ("INPUT_SKEW", "GIL", "PREPROCESS", "POSTPROCESS", "DECODE", "CPU_SATURATION"),
    ),
    "slow_poll": Kind("the broker takes long for each few jobs", None, _slow_poll, ("BROKER", "SOURCE")),
    "blas_threads": Kind(
        "each of four workers computes with many threads", lambda spec, stage: stage.part.inmost().name == "Blas",
        _blas_threads, ("OVERSUBSCRIPTION",),
    ),
    "neighbours": Kind("other programs come and go on the cores", None, _neighbours, ("NEIGHBOUR",)),
    "quota": Kind("a control group allows less CPU time", None, _quota, ("QUOTA",)),
    "batch_of_one": Kind(
        "a model that is dear to launch, called for each item", _is_model, _batch_of_one, ("LAUNCH", "BATCH_UNDERFILL")
    ),
}  # fmt: skip


def both_named(required: Sequence[Required], findings: Sequence[object]) -> bool:
    """Return whether each fault is named by one of some findings."""
    return all(any(one.accepts(finding) for finding in findings) for one in required)  # type: ignore[arg-type]
