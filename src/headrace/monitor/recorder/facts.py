"""What changed beside the times of stages: arrivals, sizes, model, Plan, machine, memory; and each change in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from headrace.base.units import format_duration, format_size
from headrace.monitor.recorder.state import RunState, StageState
from headrace.runs.formats.incident import ChangeKind, IncidentChange

#: A mean that grew by less is as it was.
RATIO = 1.15
#: Jobs that come so many times as unevenly (index of dispersion) come in bursts.
BURSTS = 2.5
#: Growth that counts: cores of others, share of the time in Python's collector.
CORES, GC_SHARE = 0.2, 0.02
#: The same of periods that a quota stopped, of workers that are missing, of page faults and of time under pressure.
_THROTTLED, _WORKERS, _FAULTS_PER_SECOND, _PRESSURE = 0.05, 0.6, 20.0, 0.05
#: A call that lasts so long, and ten times as long as the slowest stage takes, may never end.
_HANGS_SECONDS = 3.0
#: Cores that a stage must use more for the others to feel it; CPU time that others on the cores can cost any stage, times.
_FELT_CORES, _INFLATED = 0.05, 1.5
#: Memory that grows by this share of the machine's in a minute, or less memory available than this share of it.
_LEAK_SHARE, _SHORT_SHARE = 0.005, 0.08

#: A change and the stage where it shows; None for the whole run or the machine.
Key = tuple[ChangeKind, str | None]
#: In words, before, after, unit.
Figures = tuple[str, float | None, float | None, str]

#: What of a run tells of a change: words, figure, unit.
_GAUGES: dict[ChangeKind, tuple[str, Callable[[RunState], float | None], str]] = {
    ChangeKind.ARRIVALS: ("jobs arrive at", lambda run: run.arrival_rate, "1/s"),
    ChangeKind.NEIGHBOUR: ("others use", lambda run: run.other_cores, "cores"),
    ChangeKind.CORES: ("the run may use", lambda run: run.mean("machine", "usable_cores"), "cores"),
    ChangeKind.CLOCK: ("the cores' frequency is", lambda run: run.mean("machine", "cpu_frequency_hertz"), "Hz"),
    ChangeKind.GC: (
        "Python's collector takes this share of the time:",
        lambda run: run.slope("run", "gc_seconds"),
        "ratio",
    ),
}


class Facts:
    """What changed beside the stages' times."""

    def __init__(self, before: RunState, after: RunState) -> None:
        self.before, self.after = before, after
        b, a = before, after
        self.arrivals_ratio = ratio_of(b.arrival_rate, a.arrival_rate)
        self.burst_ratio = _burst_ratio(b, a)
        self.more_own = (a.own_cores or 0.0) - (b.own_cores or 0.0)
        self.more_others = (a.other_cores or 0.0) - (b.other_cores or 0.0)
        self.outside_cores = self.more_own - (a.stage_cores - b.stage_cores)
        self.quota_grew = _more(b, a, "machine", "throttled_ratio") >= _THROTTLED or _quota(a) < 0.95 * _quota(b)
        cores = ratio_of(b.mean("machine", "usable_cores"), a.mean("machine", "usable_cores"))
        self.cores_fell = cores < 0.95 and not self.quota_grew
        self.clock_ratio = ratio_of(b.mean("machine", "cpu_frequency_hertz"), a.mean("machine", "cpu_frequency_hertz"))
        self.gc_share = (a.slope("run", "gc_seconds") or 0.0) - (b.slope("run", "gc_seconds") or 0.0)
        self.more_io_pressure = _more(b, a, "machine", "io_pressure_ratio") >= _PRESSURE
        memory = a.info.hardware.memory_bytes or 0
        available = a.mean("machine", "memory_available_bytes")
        swap = _more(b, a, "machine", "swap_in_bytes_per_second") + _more(b, a, "machine", "swap_out_bytes_per_second")
        faults = _more(b, a, "processes", "major_faults_per_second")
        self.is_short_of_memory = (
            swap > 2**20
            or _more(b, a, "machine", "memory_pressure_ratio") >= _PRESSURE
            or (faults >= _FAULTS_PER_SECOND and available is not None and available < _SHORT_SHARE * memory)
        )
        self.rss_slope = a.slope("processes", "rss_bytes") or 0.0
        self.is_leaking = bool(memory) and self.rss_slope * 60 >= _LEAK_SHARE * memory and self._grows_on()
        self.is_other_model = _models(b) != _models(a)
        self.other_settings = _other_settings(b, a)
        self.environment = _other_environment(b, a)
        self.first_larger = next(
            (
                name
                for name, stage in a.stages.items()
                if name in b.stages and size_ratio(b.stages[name], stage) >= RATIO
            ),
            None,
        )
        self.missing_workers = self._find_missing_workers()

    def _grows_on(self) -> bool:
        """Return whether memory grows to the end, and not only by what a larger image takes once."""
        gauge = self.after.evidence.gauges.get("processes", "rss_bytes")
        if gauge is None or len(gauge.values) < 6:
            return False
        half = len(gauge.values) // 2
        first, second = gauge.values[half] - gauge.values[0], gauge.values[-1] - gauge.values[half]
        return bool(first > 0 and second > 0.5 * first)

    @property
    def heaviest_growth(self) -> str | None:
        """The stage whose CPU time per second grew most, if one took enough for the others to feel it."""
        grown = {
            name: stage.cores - self.before.stages[name].cores
            for name, stage in self.after.stages.items()
            if name in self.before.stages and stage.cpu > RATIO * self.before.stages[name].cpu
        }
        name = max(grown, key=lambda one: grown[one], default=None)
        return name if name is not None and grown[name] >= _FELT_CORES else None

    def inflation(self, name: str) -> float:
        """Return how many times as much CPU time a stage can take because of others on the cores.

        They take caches and halves of cores from all stages: so no more than the growth of most, or half as much again.
        """
        ratios = sorted(
            stage.cpu / self.before.stages[one].cpu
            for one, stage in self.after.stages.items()
            if one != name and one in self.before.stages and self.before.stages[one].cpu > 20e-6
        )
        return max(_INFLATED, 1.3 * min(ratios[len(ratios) // 2], 2.0)) if ratios else _INFLATED

    def _find_missing_workers(self) -> dict[str, float]:
        """{station: share of its workers that are gone, or held by a call that does not end}."""
        found = {}
        slowest = max((stage.service for stage in self.after.stages.values()), default=0.0)
        longest = self.after.largest("run", "longest_call_seconds") or 0.0
        hangs = longest > max(_HANGS_SECONDS, 10 * slowest)
        for name, before in self.before.stages.items():
            if before.account.station != name:
                continue
            had, has = (state.mean(f"stage:{name}", "workers") or 0.0 for state in (self.before, self.after))
            gone = max(0.0, had - has)
            stuck = self.after.stuck_workers.get(name, 0.0) - max(0.0, self.before.stuck_workers.get(name, 0.0))
            gone += stuck if hangs and stuck >= _WORKERS else 0.0
            if had and gone >= min(_WORKERS, 0.2 * had):
                found[name] = min(1.0, gone / had)
        return found

    def seen(self) -> Iterator[Key]:
        """Yield changes that are worth a line even where they explain nothing: the run's own first, then the machine's."""
        for name in self.missing_workers:
            yield ChangeKind.WORKERS, name
        if self.is_leaking or self.is_short_of_memory:
            yield ChangeKind.MEMORY, None
        if self.is_other_model:
            yield ChangeKind.MODEL, None
        elif self.other_settings:
            yield ChangeKind.PLAN, min(self.other_settings)
        if self.environment:
            yield ChangeKind.ENVIRONMENT, None
        if self.quota_grew:
            yield ChangeKind.QUOTA, None
        elif self.cores_fell:
            yield ChangeKind.CORES, None
        if self.first_larger is not None:
            yield ChangeKind.INPUT_SIZE, self.first_larger
        if self.arrivals_ratio >= 2 * RATIO - 1:
            yield ChangeKind.ARRIVALS, None
        if self.more_others >= 2 * CORES:
            yield ChangeKind.NEIGHBOUR, None

    def unchanged(self) -> list[str]:
        """Return what was compared and stayed as it was."""
        checks = [
            ("arrivals", self.after.arrival_rate is not None, self.arrivals_ratio < 2 * RATIO - 1),
            ("sizes of items", True, self.first_larger is None),
            ("model", True, not self.is_other_model),
            ("Plan", True, not self.other_settings),
            ("versions and machine", True, not self.environment),
            ("other programs on the cores", self.after.other_cores is not None, self.more_others < CORES),
            ("CPU quota", self.after.mean("machine", "throttled_ratio") is not None, not self.quota_grew),
            (
                "memory",
                self.after.mean("processes", "rss_bytes") is not None,
                not (self.is_leaking or self.is_short_of_memory),
            ),
            ("garbage collection", self.after.slope("run", "gc_seconds") is not None, self.gc_share < GC_SHARE),
        ]
        return [name for name, is_known, is_same in checks if is_known and is_same]

    def describe(self, kind: ChangeKind, stage: str | None, seconds: float, share: float) -> IncidentChange:
        """Return a change in words."""
        says, before, after, unit = self._figures(kind, stage)
        return IncidentChange(
            kind=kind, stage=stage, says=says, before=before, after=after, unit=unit, explains_seconds=seconds,
            explains_share=min(1.0, share), to_do=TO_DO[kind].format(stage=stage or "the run"),
        )  # fmt: skip

    def describe_failures(self, kind: ChangeKind, stage: str, share: float) -> IncidentChange:
        """Return a change that makes jobs fail, in words."""
        before, after = self.before.failed_share, self.after.failed_share
        says = f"{after:.1%} of the jobs fail, {before:.1%} before, in {stage}"
        reasons = Counter(
            line.reason.split(":")[0][-60:] if ":" in line.reason else line.reason[:60]
            for line in self.after.evidence.run.errors()
        )
        if reasons:
            says += f"; most often: {_example(self.after, reasons)}"
        if prefix := _common_origin(self.after):
            says += f"; {prefix}"
        return IncidentChange(
            kind=kind, stage=stage, says=says, before=before, after=after, unit="ratio", explains_seconds=0.0,
            explains_share=min(1.0, share), to_do=TO_DO[kind].format(stage=stage),
        )  # fmt: skip

    def _figures(self, kind: ChangeKind, stage: str | None) -> Figures:
        """Return a change in words, with the figures of before and after, and their unit."""
        old, new = (state.stages.get(stage or "") for state in (self.before, self.after))
        if kind in _GAUGES:
            return self._say_gauge(kind)
        match kind:
            case ChangeKind.MODEL:
                says = f"another model answers: {_describe_models(self.before, self.after)}"
                return says, old.service if old else None, new.service if new else None, "seconds" if new else ""
            case ChangeKind.PLAN:
                return f"the Plan sets other values for {', '.join(sorted(self.other_settings))}", None, None, ""
            case ChangeKind.ENVIRONMENT:
                return f"another environment: {'; '.join(self.environment)}", None, None, ""
            case ChangeKind.QUOTA:
                return self._say_quota()
            case ChangeKind.MEMORY:
                return self._say_memory()
            case ChangeKind.WORKERS:
                return self._say_workers(stage or "")
        if stage is None and kind in _OUTSIDE:
            before, after = (
                max(0.0, (state.own_cores or 0.0) - state.stage_cores) for state in (self.before, self.after)
            )
            return _pair(_OUTSIDE[kind], before, after, "cores")
        if old is None or new is None:
            return f"{kind.value} of {stage or 'the run'}", None, None, ""
        if kind is ChangeKind.INPUT_SIZE:
            return _pair(f"items of {stage} have", *_sizes(old, new), "bytes")
        if kind is ChangeKind.BATCHING:
            return _pair(f"batches of {stage} hold", old.batch, new.batch, "items")
        return _pair(f"{_NAMES.get(kind, 'a call')} of {stage} takes", old.service, new.service, "seconds")

    def _say_quota(self) -> Figures:
        ratio = self.after.mean("machine", "throttled_ratio")
        says, before, after, unit = _pair("the control groups allow", _quota(self.before), _quota(self.after), "cores")
        stopped = f"; the run is stopped in {ratio:.0%} of their periods" if ratio else ""
        return f"{says}{stopped}", before, after, unit

    def _say_gauge(self, kind: ChangeKind) -> Figures:
        what, read, unit = _GAUGES[kind]
        old, new = self.before.arrivals_at_once, self.after.arrivals_at_once
        if kind is not ChangeKind.ARRIVALS or self.arrivals_ratio >= RATIO or old is None or new is None:
            return _pair(what, read(self.before), read(self.after), unit)
        says = f"as many jobs arrive, but less evenly: up to {new[1]:.0f} within a quarter of a second, before {old[1]:.0f}"
        return says, old[1], new[1], "items"

    def _say_workers(self, stage: str) -> Figures:
        longest = self.after.largest("run", "longest_call_seconds") or 0.0
        says = (
            f"{self.missing_workers.get(stage, 0.0):.0%} of the workers of {stage} are missing; "
            f"the oldest call lasts {format_duration(longest)} by now"
        )
        if any(one.name == stage and one.work == "download" for one in self.after.info.stages):
            says += ": a server that it downloads from does not answer"
        name = f"stage:{stage}"
        return says, self.before.mean(name, "workers"), self.after.mean(name, "workers"), "items"

    def _say_memory(self) -> Figures:
        says, before, after, unit = _pair(
            "resident memory is",
            self.before.mean("processes", "rss_bytes"),
            self.after.largest("processes", "rss_bytes"),
            "bytes",
        )
        return f"{says}, growing by {format_size(max(0.0, self.rss_slope * 60))} a minute", before, after, unit


#: Of threads of the run that serve no stage.
_OUTSIDE = {
    ChangeKind.GIL: "threads beside the stages keep Python's lock and use",
    ChangeKind.CODE: "threads beside the stages use",
}
_NAMES = {
    ChangeKind.DOWNLOAD: "a download",
    ChangeKind.RECEIVER: "a delivery",
    ChangeKind.REMOTE: "a call",
    ChangeKind.DEVICE: "a batch",
}

#: What to do about each; `{stage}` is where it shows.
TO_DO: dict[ChangeKind, str] = {
    ChangeKind.ARRIVALS: "add workers or machines (headrace capacity), or refuse what cannot be answered in time",
    ChangeKind.INPUT_SIZE: "ask who sends larger items since then; decode at scale (Plan: decode), or limit the size",
    ChangeKind.INPUT_FAILURES: "look at the ids in errors.jsonl and ask their sender; the items themselves are to blame",
    ChangeKind.MODEL: "compare the two models (headrace validate) and go back if it is not worth it (headrace ledger rollback)",
    ChangeKind.PLAN: "compare the two Plans (headrace compare) and go back to the one before",
    ChangeKind.ENVIRONMENT: "go back to the environment before, or measure again in this one (headrace profile)",
    ChangeKind.CORES: "give the cores back (affinity, cpuset, requests of the container)",
    ChangeKind.QUOTA: "raise the container's CPU limit, or use fewer threads (Plan: workers)",
    ChangeKind.NEIGHBOUR: "find the other program (top) or guest and move it, or reserve cores",
    ChangeKind.CLOCK: "look at temperature and power limits of the machine",
    ChangeKind.DISK: "look at the disk that {stage} uses (iostat): another user of it, a full cache, or a slow volume",
    ChangeKind.MEMORY: "find what keeps memory (tracemalloc); restart workers until then (--supervise)",
    ChangeKind.DOWNLOAD: "look at the servers that {stage} downloads from; more of its workers hide a slow answer",
    ChangeKind.RECEIVER: "look at who takes the results of {stage}; more of its workers hide a slow answer",
    ChangeKind.REMOTE: "look at what {stage} waits for: a service that it asks, or who reads what it writes (a log, a pipe)",
    ChangeKind.LOCK: "look at the lock that {stage} waits for: who holds it, and why so long",
    ChangeKind.GIL: "see which stage computes with the GIL (headrace profile --python); executor = process, or fuse stages",
    ChangeKind.GC: "see what makes so many objects; gc.freeze() after loading, or a higher threshold",
    ChangeKind.BATCHING: "see why batches are small: shapes that differ, or items that come one by one",
    ChangeKind.WORKERS: "look at what the call in {stage} waits for; run.stall_seconds leaves such a thread behind",
    ChangeKind.CODE: "see what {stage} does since then (headrace profile): the input is as it was, and it takes longer",
    ChangeKind.DEVICE: "look at the device of {stage}: its clock, temperature and other users",
}


def ratio_of(before: float | None, after: float | None) -> float:
    """Return after over before; 1 where one of them is not known."""
    return after / before if before and after else 1.0


def _quota(state: RunState) -> float:
    """Return how many cores' worth of time the control groups allowed for most of the time; all cores without a limit."""
    cores, gauges = float(state.info.hardware.num_cores), state.evidence.gauges
    limits, looks = gauges.get("machine", "quota_cores"), gauges.get("machine", "usable_cores")
    if limits is None or (looks is not None and len(limits.values) < len(looks.values) / 2):
        return cores
    return min(float(np.median(limits.values)), cores)


def _more(before: RunState, after: RunState, scope: str, name: str) -> float:
    return (after.mean(scope, name) or 0.0) - (before.mean(scope, name) or 0.0)


def _burst_ratio(before: RunState, after: RunState) -> float:
    """Return how many times as unevenly jobs come; 1 where that is not known, or they come more evenly."""
    old, new = before.arrivals_at_once, after.arrivals_at_once
    return 1.0 if old is None or new is None else max(1.0, (1 + new[0]) / (1 + old[0]))


def size_ratio(before: StageState, after: StageState) -> float:
    """Return by how much the stage's input grew; of a stage that has none, its output (a download)."""
    ratios = [ratio_of(before.account.bytes_in, after.account.bytes_in)]
    if before.account.work in ("download", "decode") or not before.account.bytes_in:
        ratios.append(ratio_of(before.account.bytes_out, after.account.bytes_out))
    return max(ratios)


def _sizes(before: StageState, after: StageState) -> tuple[float | None, float | None]:
    if ratio_of(before.account.bytes_in, after.account.bytes_in) >= RATIO:
        return before.account.bytes_in, after.account.bytes_in
    return before.account.bytes_out, after.account.bytes_out


def _models(state: RunState) -> dict[str, dict[str, str]]:
    """Return {table of the Plan: its settings} of the models that most spans ran under."""
    plan = state.profile.plan
    tables = {"model": plan.get("model", {}), **plan.get("models", {})}
    return {name: {key: str(value) for key, value in table.items()} for name, table in tables.items()}


def _describe_models(before: RunState, after: RunState) -> str:
    """Return which settings of the models differ, in words."""
    old, new = _models(before), _models(after)
    found = [
        f"{name}.{key} = {new.get(name, {}).get(key, 'none')}, before {old.get(name, {}).get(key, 'none')}"
        for name in sorted({*old, *new})
        for key in sorted({*old.get(name, {}), *new.get(name, {})})
        if old.get(name, {}).get(key) != new.get(name, {}).get(key)
    ]
    return "; ".join(found[:4])


def _other_settings(before: RunState, after: RunState) -> set[str]:
    """Return the stages, or other tables of the Plan, that are set otherwise; models apart."""
    tables = [state.profile.plan for state in (before, after)]
    stages = [table.get("stages", {}) for table in tables]
    found = {name for name in {*stages[0], *stages[1]} if stages[0].get(name) != stages[1].get(name)}
    rest = {*tables[0], *tables[1]} - {"stages", "model", "models"}
    return found | {name for name in rest if tables[0].get(name) != tables[1].get(name)}


def _other_environment(before: RunState, after: RunState) -> list[str]:
    """Return what differs in versions and machine, in words."""
    old, new = before.info.versions, after.info.versions
    found = [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    for name in ("cpu_id", "cpu_flags", "num_cores", "cpu_quota", "memory_bytes", "kernel", "python", "accelerators"):
        was, now = getattr(before.info.hardware, name), getattr(after.info.hardware, name)
        if was != now:
            found.append(f"{name} {was} -> {now}")
    return found


def _pair(what: str, before: float | None, after: float | None, unit: str) -> Figures:
    return f"{what} {_in_words(after, unit)}, before {_in_words(before, unit)}", before, after, unit


def _in_words(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    match unit:
        case "seconds":
            return format_duration(value)
        case "bytes":
            return format_size(value)
        case "1/s":
            return f"{value:.3g}/s"
        case "ratio":
            return f"{value:.1%}"
    return f"{value:.3g} {unit}" if unit != "items" else f"{value:.3g}"


def _example(state: RunState, _: Counter[str]) -> str:
    """Return the reason that stands most often in errors.jsonl, without the names of stage and item."""
    texts = Counter(re.sub(r"\d+", "N", line.reason) for line in state.evidence.run.errors())
    common = texts.most_common(1)[0][0]
    first = next(line.reason for line in state.evidence.run.errors() if re.sub(r"\d+", "N", line.reason) == common)
    return first[:160]


def _common_origin(state: RunState) -> str:
    """Return what the ids of failing jobs have in common and others have not; empty if nothing."""
    heads = Counter(_head(line.job_id) for line in state.evidence.run.errors())
    if not heads:
        return ""
    head, count = heads.most_common(1)[0]
    spans = state.evidence.spans
    everyone = Counter(_head(str(name)) for name in spans.unit_ids.to_pylist()) if len(spans) else Counter[str]()
    share_of_all = everyone[head] / max(1, sum(everyone.values()))
    if head and count >= 0.8 * sum(heads.values()) and share_of_all < 0.6:
        return f"{count / sum(heads.values()):.0%} of their ids begin with {head}"
    return ""


def _head(job_id: str) -> str:
    """Return the part of an id before its first separator."""
    found = re.match(r"([^/_:.-]+)[/_:.-]", job_id)
    return found[1] if found else ""
