"""How many of a model's calls run side by side: workers x threads inside a call, and items a call.

Two calls of one thread each are often faster together than one of two threads, which wait for one another at every layer (1.1
to 1.4 times on two cores); and larger batches pay only once the kernel is fast (1.5 times for int8, nothing for float32). So
the best concurrency of float32 is not that of int8: it is searched last, for each variant that may win by itself.

How this works: a coordinate search (`base.coordinate_search`, as in `tune`, which predicts whole Plans) over two axes, the ways
to divide the cores and the batch. A point is tried by timing it in turn with the one in use, so that two are open at most.
Batches grow until that pays no longer, so that of equals the smaller one stays. The winner of many comparisons was lucky too:
it is compared with the concurrency as given in new rounds, and that ratio is the one that counts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.base.coordinate_search import Axis, climb, powers_of_two, try_in_order
from headrace.runs.formats.optimization import Layout
from headrace.runs.formats.profile import Estimate
from headrace.validate import measuring
from headrace.validate.detections import detections_in
from headrace.validate.items import Items, batch_of, fed
from headrace.validate.meanings import Detections
from headrace.validate.model_speed import ROUNDS, Settled, Speed, as_estimate, measure_turns
from headrace.validate.parity import compare_outputs, join_answers
from headrace.validate.variant_spec import VariantSpec

#: Rounds of A, B, A of one comparison of the search: the fewest that give an interval.
SEARCH_ROUNDS = 6
#: What another concurrency must surely gain to take the place of a simpler one.
LEAST_GAIN = 1.02
#: Batches that are tried; beyond, latency grows and hardly anything is gained.
BATCHES = (1, 2, 4, 8, 16, 32)
#: Larger batches that do not pay, one after the other, before growing ends.
_PATIENCE = 2
_WARM_UP_CALLS = 2

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Workers, threads inside a call, and items of a call."""

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads} thread{'' if self.threads == 1 else 's'}, batch {self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyFound:
    """What a search came to."""

    best: Concurrency
    """That as given, if nothing is surely faster."""
    timed: tuple[Layout, ...]
    """In the order in which they were timed."""
    speed: Speed | None
    """Of the best over the first, in rounds of their own; None if it is the first."""
    refused: dict[str, str]
    """{concurrency: why it could not be timed}."""


def divide_cores(cores: int, objective: str) -> list[tuple[int, int]]:
    """Return (workers, threads) that use the cores: all of them, by powers of two, from many workers to many threads.

    Args:
        cores: That may be used, >= 1.
        objective: `throughput`; for `latency` there is one worker, and only its threads vary.
    """
    return [(1 if objective == "latency" else cores // threads, threads) for threads in powers_of_two(cores)]


def search_concurrency(
    spec: VariantSpec,
    items: Items,
    first: Concurrency,
    *,
    cores: int,
    objective: str = "throughput",
    stop: Stop = lambda: False,
    say: Callable[[str], object] = lambda text: None,
) -> ConcurrencyFound:
    """Return the concurrency at which a variant does most items per second (for `latency`: answers one call soonest).

    Args:
        spec: The variant; its threads are replaced.
        items: (items, ...) as the model takes them.
        first: The concurrency as given, which is kept where nothing is surely faster.
        cores: To divide.
        objective: `throughput`, or `latency`, for which the batch stays as it is.
        stop: Asked between rounds; what was timed by then is returned.
        say: Told what is being timed.

    Raises:
        HeadraceError: If the variant cannot be opened at the first concurrency.
    """
    divisions: Axis[dict[str, int]] = Axis(
        "cores", tuple({"workers": workers, "threads": threads} for workers, threads in divide_cores(cores, objective))
    )
    batches = Axis("batch", tuple({"batch": size} for size in BATCHES if size > first.batch), _PATIENCE)
    # The cores are divided once more at the end: with larger batches another division may pay.
    passes = [[divisions]] if objective == "latency" else [[divisions, batches], [divisions]]
    with contextlib.closing(_Search(spec, items, _Workers(spec, first, items), stop, say)) as search:
        search.time_first()
        best = climb(first, passes, search.improve)
    speed = None
    if best != first and not stop():
        speed = compare_concurrency((spec, first), (spec, best), items, stop=stop)
    return ConcurrencyFound(best=best, timed=tuple(search.timed), speed=speed, refused=search.refused)


def compare_concurrency(
    a: tuple[VariantSpec, Concurrency],
    b: tuple[VariantSpec, Concurrency],
    items: Items,
    b_items: Items | None = None,
    *,
    rounds: int = ROUNDS,
    stop: Stop = lambda: False,
    settled: Settled | None = None,
) -> Speed | None:
    """Return items per second of one variant at its concurrency over those of another at its own; None if it was stopped.

    Args:
        a: The incumbent and its concurrency.
        b: The candidate and its concurrency.
        items: (items, ...) as the models take them.
        b_items: The same as the candidate takes them; None: as the incumbent does.
        rounds: As `measure_turns` takes them.
        stop: Asked after each round.
        settled: As `measure_turns` takes it.

    Raises:
        HeadraceError: If one cannot be opened.
    """
    others = items if b_items is None else b_items
    with contextlib.closing(_Workers(*a, items)) as first, contextlib.closing(_Workers(*b, others)) as second:
        return measure_turns(first.run_block, second.run_block, rounds=rounds, stop=stop, settled=settled)


def answers_alike(spec: VariantSpec, items: Items, batches: Sequence[int]) -> float:
    """Return how far a variant's answers in batches of two sizes are apart: relative L2 of the worst item.

    They should be the same but for rounding. Where ranges are taken from each batch (dynamic quantization) they are not.
    Infinite where they have other shapes. Detections are matched, for they may be filled up to the most of the batch: 0 where
    both find the same, infinite where not.
    """
    model = spec.open()
    size = max(batches)
    chosen = items[np.arange(size) % len(items)]
    answers = [
        [model(fed(chosen[start : start + batch])) for start in range(0, len(chosen), batch)] for batch in batches
    ]
    detections = [[detections_in(one) for one in calls] for calls in answers]
    if all(one is not None for calls in detections for one in calls):
        first, second = ([image for found in calls for image in found or ()] for calls in detections)
        same = Detections()
        alike = all(same.same(one, other) >= same.least for one, other in zip(first, second, strict=False))
        return 0.0 if len(first) == len(second) and alike else math.inf
    try:
        first, second = map(join_answers, answers)
    except ValueError:
        return math.inf
    return compare_outputs(first, second).worst_l2


class _Workers:
    """Workers that share a model, as in a pipeline, and call it side by side."""

    def __init__(self, spec: VariantSpec, concurrency: Concurrency, items: Items) -> None:
        self.concurrency = concurrency
        own = VariantSpec(spec.text, replace(spec.model, threads=concurrency.threads))
        self._timing = measuring.current().timing
        self._model = own.open(calls=concurrency.workers)
        self._batch = batch_of(items, concurrency.batch)
        self._pool = ThreadPoolExecutor(concurrency.workers, thread_name_prefix="concurrency")
        self.seconds: list[float] = []
        list(self._pool.map(self._warm_up, range(concurrency.workers)))

    def run_block(self) -> float:
        """Return seconds per item of all workers together, from a block in which each calls as often as it can."""
        ends = self._timing.clock.perf_counter() + self._timing.block_seconds
        rates = list(self._pool.map(self._count_calls, [ends] * self.concurrency.workers))
        each = 1.0 / (sum(rates) * self.concurrency.batch)
        self.seconds.append(each)
        return each

    def _warm_up(self, worker: int) -> None:
        for _ in range(_WARM_UP_CALLS):
            self._model(self._batch)

    def _count_calls(self, ends: float) -> float:
        """Return calls per second of one worker until the block ends."""
        clock = self._timing.clock
        began = now = clock.perf_counter()
        calls = 0
        while calls == 0 or now < ends:
            self._model(self._batch)
            calls += 1
            now = clock.perf_counter()
        return calls / (now - began)

    def close(self) -> None:
        """Let its workers go."""
        self._pool.shutdown()


@dataclass(slots=True)
class _Search:
    """The concurrency in use, and those that were timed against it."""

    spec: VariantSpec
    items: Items
    used: _Workers
    stop: Stop
    say: Callable[[str], object]
    timed: list[Layout] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    _tried: set[Concurrency] = field(default_factory=set)

    def time_first(self) -> None:
        """Time the concurrency as given."""
        self._tried.add(self.used.concurrency)
        self.used.run_block()
        self._note(self.used, None, "", chosen=True)

    def close(self) -> None:
        """Close what is open."""
        self.used.close()

    def improve(self, axis: Axis[dict[str, Any]], at: Concurrency) -> Concurrency | None:
        """Return the best concurrency along an axis; None if none is better than the one in use."""
        is_better = try_in_order(axis, lambda value: self._challenge(replace(self.used.concurrency, **value)))
        return self.used.concurrency if is_better else None

    def _challenge(self, concurrency: Concurrency) -> bool:
        """Compare with the concurrency in use; return whether it took its place."""
        if concurrency in self._tried or self.stop():
            return False
        self._tried.add(concurrency)
        other = self._open(concurrency)
        if other is None:
            return False
        found = measure_turns(self.used.run_block, other.run_block, rounds=SEARCH_ROUNDS, stop=self.stop)
        is_won = found is not None and found.low > LEAST_GAIN
        if found is not None:
            against = str(self.used.concurrency)
            self._note(other, as_estimate(found), against, chosen=is_won)
            self.say(f"layout {concurrency}: {found.ratio:.2f} times {against}")
        loser = self.used if is_won else other
        loser.close()
        self.used = other if is_won else self.used
        return is_won

    def _open(self, concurrency: Concurrency) -> _Workers | None:
        try:
            return _Workers(self.spec, concurrency, self.items)
        except Exception as error:  # engines raise their own types: a model of a fixed batch refuses others
            self.refused[str(concurrency)] = str(error)
            self.say(f"layout {concurrency}: refused: {error}")
            return None

    def _note(self, workers: _Workers, ratio: Estimate | None, against: str, *, chosen: bool) -> None:
        one = workers.concurrency
        self.timed.append(
            Layout(
                workers=one.workers, threads=one.threads, batch=one.batch, ratio=ratio, against=against, chosen=chosen,
                items_per_second=1.0 / float(np.median(workers.seconds)),
            )
        )  # fmt: skip
