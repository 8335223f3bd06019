"""Where the time of an item goes, stage by stage."""

from __future__ import annotations

from collections.abc import Callable

from headrace.report.charts import Chart, horizontal_bars
from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.numbers import count, data, rate, ratio, seconds, size, time_scale
from headrace.report.section import Section
from headrace.runs.formats.profile import ProfileDocument, StageAccount

Part = tuple[str, str, Callable[[StageAccount], float | None]]

#: (name, colour, seconds per item), in the order in which an item meets them.
PASSAGE: tuple[Part, ...] = (
    ("queue wait", "var(--wait)", lambda stage: stage.queue_wait.mean),
    ("setup", "var(--setup)", lambda stage: stage.setup),
    ("service", "var(--service)", lambda stage: stage.service.mean),
    ("blocked by next queue", "var(--blocked-put)", lambda stage: stage.blocked_put),
)


def _split(name: str) -> Callable[[StageAccount], float | None]:
    return lambda stage: None if stage.blocked_split is None else getattr(stage.blocked_split, name)


def _not_split(stage: StageAccount) -> float | None:
    return stage.blocked if stage.blocked_split is None else None


def _find_undivided(stage: StageAccount) -> float | None:
    return stage.service.mean if stage.cpu is None else None


#: Counts of `CacheAccount` beside hits and misses.
_NOT_KEPT = ("kept", "full", "waits", "unversioned", "unfit")

SERVICE: tuple[Part, ...] = (
    ("CPU", "var(--cpu)", lambda stage: stage.cpu),
    ("run delay", "var(--run-delay)", lambda stage: stage.run_delay),
    ("GIL", "var(--gil)", _split("gil")),
    ("lock", "var(--lock)", _split("lock")),
    ("network", "var(--network)", _split("network")),
    ("disk", "var(--disk)", _split("disk")),
    ("sleep", "var(--sleep)", _split("sleep")),
    ("other process", "var(--process)", _split("process")),
    ("output that nobody reads", "var(--output)", _split("output")),
    ("other system call", "var(--other)", _split("other")),
    ("blocked, not sampled", "var(--unknown)", _split("unknown")),
    ("blocked, not split", "var(--unknown)", _not_split),
    ("service, not measured further", "var(--service)", _find_undivided),
)


def stages(document: ProfileDocument) -> Section | None:
    """Return the bars of all stages and their tables."""
    if not document.stages:
        return None
    passage = _bars("passage", "Time per item, stage by stage", PASSAGE, document.stages)
    service = [_bars("service", "Inside the service", SERVICE, document.stages)] if _has_cpu(document) else []
    return Section(
        anchor="stages",
        title="Stages",
        parts=[
            note(
                "Means over the items of the steady part. Queue wait is before a worker takes the item; blocked is after it, "
                "while the next queue is full."
            ),
            passage.element(),
            _passage_table(document),
            *(part for chart in service for part in _service(chart, document)),
            *_caches(document),
            fold("Work, queues and sizes of each stage", _work_table(document)),
            *_shapes(document),
        ],
        charts=[passage, *service],
    )


def _caches(document: ProfileDocument) -> list[Html]:
    """Return what caches did, or, without one, which results would be worth keeping."""
    rows = [
        [
            stage.name,
            *(count(number) for number in (stage.cache.hits, stage.cache.misses)),
            ratio(stage.cache.hit_ratio),
            *(seconds(time) for time in (stage.cache.hit_seconds, stage.cache.miss_seconds)),
            *(count(getattr(stage.cache, name)) for name in _NOT_KEPT),
        ]
        for stage in document.stages
        if stage.cache
    ]
    if rows:
        head = ["stage", "hits", "misses", "hit rate", "a hit takes", "a miss takes", *_NOT_KEPT]
        return [table(head, rows, caption="What caches did: items found, and the time of the stages up to the cache")]
    rows = [
        [one.stage, *map(seconds, (one.saved_seconds, one.saved_cpu_seconds)), *map(size, (one.item_bytes, one.total_bytes)),
         seconds(one.seconds_per_gigabyte)]
        for one in document.keepable
    ]  # fmt: skip
    if not rows:
        return []
    head = ["stage", "saves an item", "of it CPU", "an item takes", "all items take", "saved a gigabyte"]
    return [fold("What keeping the results of a stage would save, if the same items come again", table(head, rows))]


def _has_cpu(document: ProfileDocument) -> bool:
    return any(stage.cpu is not None for stage in document.stages)


def _service(chart: Chart, document: ProfileDocument) -> list[Html]:
    """Return what the service was made of: CPU, waiting for a core, and waits by kind."""
    batching = any(stage.batches is not None for stage in document.stages)
    words = note(
        "Run delay: could run, but no core was free. GIL: waited for Python's interpreter lock. ",
        "For a stage with batches, the service of an item is that of its whole batch." if batching else None,
    )
    return [chart.element(), words, _service_table(document)]


def _bars(name: str, title: str, parts: tuple[Part, ...], accounts: tuple[StageAccount, ...]) -> Chart:
    values = {part: (color, [read(stage) for stage in accounts]) for part, color, read in parts}
    present = {part: pair for part, pair in values.items() if any(pair[1])}
    totals = [sum(row[index] or 0.0 for _, row in present.values()) for index in range(len(accounts))]
    factor, unit = time_scale(totals)
    scaled = {
        part: (color, [None if value is None else value * factor for value in row])
        for part, (color, row) in present.items()
    }
    return horizontal_bars(
        name,
        title,
        f"mean {unit} per item of each stage: {', '.join(present)}",
        [stage.name for stage in accounts],
        scaled,
        unit,
        axis_name=f"{unit} per item",
        stacked=True,
    )


def _passage_table(document: ProfileDocument) -> Html:
    rows = [
        [
            stage.name,
            count(stage.workers),
            count(stage.items),
            rate(stage.throughput),
            ratio(stage.utilization),
            *(seconds(read(stage)) for _, _, read in PASSAGE),
        ]
        for stage in document.stages
    ]
    head = ["stage", "workers", "items", "throughput", "busy", *(name for name, _, _ in PASSAGE)]
    return table(head, rows, caption="Mean time per item in each stage")


def _service_table(document: ProfileDocument) -> Html:
    shown = [part for part in SERVICE if any(part[2](stage) for stage in document.stages)]
    rows = [
        [
            stage.name,
            seconds(stage.service.mean),
            *(seconds(read(stage)) for _, _, read in shown),
            count(stage.blocked_split.num_samples) if stage.blocked_split else None,
        ]
        for stage in document.stages
    ]
    return table(["stage", "service", *(name for name, _, _ in shown), "samples"], rows, caption="Service, taken apart")


def _work_table(document: ProfileDocument) -> Html:
    head = [
        "stage", "kind", "executor", "queue of", "failed", "spans", "service p50", "p90", "p99", "CPU demand", "busy time",
        "bytes in", "bytes out", "queue mean", "queue max", "of",
    ]  # fmt: skip
    rows = [
        [
            stage.name,
            stage.kind,
            stage.executor,
            stage.station,
            count(stage.failed),
            count(stage.num_spans),
            *(seconds(stage.service.percentile(percent)) for percent in (50, 90, 99)),
            seconds(stage.cpu_demand),
            seconds(stage.busy_seconds),
            size(stage.bytes_in),
            size(stage.bytes_out),
            data(stage.queue_depth_mean, "items"),
            data(stage.queue_depth_max, "items"),
            count(stage.queue_capacity),
        ]
        for stage in document.stages
    ]
    return table(head, rows, text_columns=4, caption="Work, queues and sizes of each stage")


def _shapes(document: ProfileDocument) -> list[Html]:
    rows = [
        [stage.name, tag("code", shape), count(items)]
        for stage in document.stages
        for shape, items in stage.shapes.items()
    ]
    if not rows:
        return []
    return [fold("Shapes of the outputs", table(["stage", "shape", "items"], rows, text_columns=2))]
