"""How a model's calls share the cores: workers x threads, and items a call.

Two calls of one thread each are often faster together than one of two threads, which wait for one another at every layer (1.1
to 1.4 times on two cores); and larger batches pay only once the kernel is fast (1.5 times for int8, nothing for float32). So
what is best for float32 is not what is best for int8. This is the last rung of the ladder: it is swept on the variants that may
win, each for itself, and not before.

How this works: the layout in use is held against one other at a time, in turn, so that no more than two are open at once.
First the cores are divided otherwise, then batches grow until that pays no longer, so that of equals the smaller one stays.
Who wins a sweep was lucky too: the winner is at last held against the layout as given in new rounds, and that ratio is the
one that counts.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from headrace.runs.formats.optimization import Layout
from headrace.runs.formats.profile import Estimate
from headrace.validate.detections import detections_in
from headrace.validate.items import Items, batch_of, fed
from headrace.validate.meanings import Detections
from headrace.validate.model_speed import BLOCK_SECONDS, ROUNDS, Settled, Speed, measure_turns
from headrace.validate.parity import compare_outputs, joined
from headrace.validate.variant_spec import VariantSpec

#: Rounds of A, B, A of one comparison of the sweep: the fewest that give an interval.
SWEEP_ROUNDS = 6
#: What another layout must surely gain to take the place of a simpler one.
LEAST_GAIN = 1.02
#: Batches that are tried; beyond, latency grows and hardly anything is gained.
BATCHES = (1, 2, 4, 8, 16, 32)
#: Larger batches that do not pay, one after the other, before growing ends.
_TRIES = 2
_WARM_UP_CALLS = 2

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Workers, threads inside a call, and items of a call."""

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads} thread{'' if self.threads == 1 else 's'}, batch {self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep came to."""

    best: Shares
    """That of the first, if nothing is surely faster."""
    layouts: tuple[Layout, ...]
    """In the order in which they were timed."""
    speed: Speed | None
    """Of the best over the first, in rounds of their own; None: it is the first."""
    refused: dict[str, str]
    """{layout: why it could not be timed}."""


def divisions(cores: int, objective: str) -> list[tuple[int, int]]:
    """Return (workers, threads) that use the cores: all of them, by powers of two, from many workers to many threads.

    Args:
        cores: That may be used, >= 1.
        objective: `throughput`; for `latency` there is one worker, and only its threads vary.
    """
    sizes = sorted({*(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores})
    if objective == "latency":
        return [(1, threads) for threads in sizes]
    return [(cores // threads, threads) for threads in sizes]


def sweep_layouts(
    spec: VariantSpec,
    items: Items,
    first: Shares,
    *,
    cores: int,
    objective: str = "throughput",
    stop: Stop = lambda: False,
    say: Callable[[str], object] = lambda text: None,
) -> Swept:
    """Return the layout in which a variant does most items per second (for `latency`: answers one call soonest).

    Args:
        spec: The variant; its threads are replaced.
        items: (items, ...) as the model takes them.
        first: The layout as given, which is kept where nothing is surely faster.
        cores: To divide.
        objective: `throughput`, or `latency`, for which the batch stays as it is.
        stop: Asked between rounds; what was timed by then is returned.
        say: Told what is being timed.

    Raises:
        HeadraceError: If the variant cannot be opened in the first layout.
    """
    sweep = _Sweep(spec, items, first, stop, say)
    ways = divisions(cores, objective)
    with contextlib.closing(sweep):
        sweep.begin()
        sweep.divide(ways)
        if objective != "latency":
            sweep.grow([size for size in BATCHES if size > first.batch])
            sweep.divide(ways)  # what pays may be another division now
    speed = None
    if sweep.best != first and not stop():
        speed = compare_layouts((spec, first), (spec, sweep.best), items, stop=stop)
    return Swept(best=sweep.best, layouts=tuple(sweep.layouts), speed=speed, refused=sweep.refused)


def compare_layouts(
    a: tuple[VariantSpec, Shares],
    b: tuple[VariantSpec, Shares],
    items: Items,
    b_items: Items | None = None,
    *,
    rounds: int = ROUNDS,
    stop: Stop = lambda: False,
    settled: Settled | None = None,
) -> Speed | None:
    """Return items per second of one variant in its layout over those of another in its own; None if it was stopped.

    Args:
        a: The incumbent and its layout.
        b: The candidate and its layout.
        items: (items, ...) as the models take them.
        b_items: The same as the candidate takes them; None: as the incumbent does.
        rounds: As `measure_turns` takes them.
        stop: Asked after each round.
        settled: As `measure_turns` takes it.

    Raises:
        HeadraceError: If one cannot be opened.
    """
    others = items if b_items is None else b_items
    with contextlib.closing(_Crew(*a, items)) as first, contextlib.closing(_Crew(*b, others)) as second:
        return measure_turns(first.block, second.block, rounds=rounds, stop=stop, settled=settled)


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
        first, second = map(joined, answers)
    except ValueError:
        return math.inf
    return compare_outputs(first, second).worst_l2


class _Crew:
    """Workers that share a model, as in a pipeline, and call it side by side."""

    def __init__(self, spec: VariantSpec, shares: Shares, items: Items) -> None:
        self.shares = shares
        own = VariantSpec(spec.text, replace(spec.model, threads=shares.threads))
        self._model = own.open(calls=shares.workers)
        self._batch = batch_of(items, shares.batch)
        self._pool = ThreadPoolExecutor(shares.workers, thread_name_prefix="layout")
        self.seconds: list[float] = []
        list(self._pool.map(self._warm_up, range(shares.workers)))

    def block(self) -> float:
        """Return seconds per item of all workers together, from a block in which each calls as often as it can."""
        ends = time.perf_counter() + BLOCK_SECONDS
        rates = list(self._pool.map(self._calls_per_second, [ends] * self.shares.workers))
        each = 1.0 / (sum(rates) * self.shares.batch)
        self.seconds.append(each)
        return each

    def _warm_up(self, worker: int) -> None:
        for _ in range(_WARM_UP_CALLS):
            self._model(self._batch)

    def _calls_per_second(self, ends: float) -> float:
        began = now = time.perf_counter()
        calls = 0
        while calls == 0 or now < ends:
            self._model(self._batch)
            calls += 1
            now = time.perf_counter()
        return calls / (now - began)

    def close(self) -> None:
        """Let its workers go."""
        self._pool.shutdown()


class _Sweep:
    """The layout in use, and what was held against it."""

    def __init__(
        self, spec: VariantSpec, items: Items, first: Shares, stop: Stop, say: Callable[[str], object]
    ) -> None:
        self._spec, self._items, self._first, self._stop, self._say = spec, items, first, stop, say
        self._crew: _Crew | None = None
        self._tried: set[Shares] = set()
        self.layouts: list[Layout] = []
        self.refused: dict[str, str] = {}

    @property
    def best(self) -> Shares:
        """The layout in use."""
        return self._used.shares

    @property
    def _used(self) -> _Crew:
        assert self._crew is not None
        return self._crew

    def begin(self) -> None:
        """Open the layout as given."""
        self._crew = _Crew(self._spec, self._first, self._items)
        self._tried.add(self._first)
        self._note(self._used, None, "", chosen=True)

    def close(self) -> None:
        """Close what is open."""
        if self._crew is not None:
            self._crew.close()

    def divide(self, ways: Sequence[tuple[int, int]]) -> None:
        """Try other workers and threads with the batch in use."""
        for workers, threads in ways:
            self.challenge(replace(self.best, workers=workers, threads=threads))

    def grow(self, batches: Sequence[int]) -> None:
        """Try one batch after the other until that pays no longer."""
        failed = 0
        for batch in batches:
            failed = 0 if self.challenge(replace(self.best, batch=batch)) else failed + 1
            if failed == _TRIES:
                return

    def challenge(self, shares: Shares) -> bool:
        """Hold a layout against the one in use; return whether it took its place."""
        if shares in self._tried or self._stop():
            return False
        self._tried.add(shares)
        crew = self._opened(shares)
        if crew is None:
            return False
        found = measure_turns(self._used.block, crew.block, rounds=SWEEP_ROUNDS, stop=self._stop)
        won = found is not None and found.low > LEAST_GAIN
        if found is not None:
            self._note(crew, found, str(self.best), chosen=won)
            self._say(f"layout {shares}: {found.ratio:.2f} times {self.best}")
        if won:
            self._used.close()
            self._crew = crew
        else:
            crew.close()
        return won

    def _opened(self, shares: Shares) -> _Crew | None:
        try:
            return _Crew(self._spec, shares, self._items)
        except Exception as error:  # engines raise their own types: a model of a fixed batch refuses others
            self.refused[str(shares)] = str(error)
            self._say(f"layout {shares}: refused: {error}")
            return None

    def _note(self, crew: _Crew, found: Speed | None, against: str, *, chosen: bool) -> None:
        if found is None:
            crew.block()
        ratio = None if found is None else Estimate(found.low, found.ratio, found.high)
        shares = crew.shares
        self.layouts.append(
            Layout(
                workers=shares.workers, threads=shares.threads, batch=shares.batch,
                items_per_second=1.0 / float(np.median(crew.seconds)), ratio=ratio, against=against, chosen=chosen,
            )
        )  # fmt: skip
