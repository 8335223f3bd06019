"""The caches of a run: what goes around the calls of the stages up to one whose results are kept.

How this works. The first of these stages that an item comes to looks its result up, in the cache of the last stage first. If it
is there, the value goes on from there, and the stages up to that one pass it by. Else the item claims the key, so that others
that want the same wait for it (`store.single_flight`); each stage with a cache keeps what it made, and the claim ends. A
failure on the way ends it, too, as does the item's end, whatever ends it. What an item has to do with caches is its `flight`;
one that goes back to a station's beginning for another try goes back to the flight that it had there.

Memory caches live as long as the process: the next run over the same items finds them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.base.cache_setting import CacheSetting
from headrace.base.calls import Call, InThread, run_call
from headrace.base.current_job import hands
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.base.records import Job
from headrace.pipeline.definition import Pipeline
from headrace.stages.placement import Placement
from headrace.stages.stage import Stage
from headrace.store.cache_key import digest_recipe, identity, make_key
from headrace.store.disk_cache import DiskCache
from headrace.store.memory_cache import MemoryCache, size_of
from headrace.store.single_flight import Claim

logger = logging.getLogger("headrace")

Count = Callable[[str], object]
_stores: dict[tuple[Any, ...], MemoryCache | DiskCache] = {}
_stores_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class StageCache:
    """What is kept of one stage's results."""

    stage: str
    place: int
    """Of the stage in the pipeline's route, from 0."""
    recipe: bytes
    """Hash of what was done to an item so far."""
    setting: CacheSetting
    store: MemoryCache | DiskCache


@dataclass(slots=True)
class Flight:
    """What caches have to do with one item."""

    found: str | None = None
    """What tells its content from others; None: nothing does, or it is over."""
    until: int = -1
    """Place of the stage whose result it has; -1: none was found."""
    missing: dict[int, bytes] = field(default_factory=dict)
    """{place of a stage: key under which its result is to be kept}."""
    claim: Claim | None = None
    marks: dict[str, str] = field(default_factory=dict)
    """{stage that it came to: hit | miss}; see `records.Span.cached`."""

    def end(self) -> None:
        """Keep nothing more, and let others make it."""
        self.found, self.missing = None, {}
        if self.claim is not None:
            self.claim.release()
            self.claim = None


@dataclass(frozen=True, slots=True)
class StageCaches:
    """The caches that a stage has to do with: its own, and those of stages behind it."""

    stage: str
    place: int
    caches: tuple[StageCache, ...]
    """The last stage's first."""

    def around(self, call: Callable[[Any], Any], count: Count) -> Callable[[Any], Any]:
        """Return what a worker calls in place of the stage's own."""
        return _Cached(self, call, count)


class _Cached:
    """A stage's call of one worker."""

    def __init__(self, caches: StageCaches, call: Callable[[Any], Any], count: Count) -> None:
        self._caches = caches
        self._place = caches.place
        self._call = call
        self._count = count
        carried = getattr(call, "carried", None)
        if carried is not None:
            self.carried = functools.partial(self._carry, carried)

    def __call__(self, value: Any) -> Any:
        return run_call(self._going(value, lambda: _at_once(self._call, value)))

    def _carry(self, carried: Callable[[Job, Any], Call[Any]], job: Job, value: Any) -> Call[Any]:
        return self._going(value, lambda: carried(job, value))

    def _going(self, value: Any, begin: Callable[[], Call[Any]]) -> Call[Any]:
        if len(hands.items) != 1:
            return (yield from begin())
        item: Any = hands.items[0]
        if item.flight is None:
            item.flight, found = yield from self._look_up(item)
        else:
            found = None
        flight: Flight = item.flight
        if self._place <= flight.until:
            flight.marks[self._caches.stage] = "hit"
            return value if found is None else found
        if self._place in flight.missing:
            flight.marks[self._caches.stage] = "miss"
        try:
            result = yield from begin()
        except BaseException:
            flight.end()
            raise
        if self._place in flight.missing:
            yield from self._keep(item, flight, result)
        return result

    def _look_up(self, item: Any) -> Call[tuple[Flight, Any]]:
        """Return an item's flight, and a value that was found."""
        flight = Flight()
        for cache in self._caches.caches:
            found = identity(item.job.payload, is_immutable=cache.setting.is_immutable)
            if found is None:
                self._count(f"{cache.stage}.cache_unversioned")
                continue
            key = make_key(cache.recipe, found)
            hit = yield from self._get(cache, key)
            if hit is None and flight.claim is None:
                flight.claim = cache.store.flights.claim(key)
                if flight.claim is None:
                    self._count(f"{cache.stage}.cache_waits")
                    flight.claim = yield InThread(functools.partial(cache.store.flights.wait, key))
                hit = yield from self._get(cache, key)  # made meanwhile
            if hit is not None:
                self._count(f"{cache.stage}.cache_hits")
                if flight.claim is not None and not flight.missing:
                    flight.claim.release()
                    flight.claim = None
                flight.until = cache.place
                value, note = hit
                item.placement = _read_note(note)
                return flight, value
            self._count(f"{cache.stage}.cache_misses")
            flight.found = found
            flight.missing[cache.place] = key
        return flight, None

    def _get(self, cache: StageCache, key: bytes) -> Call[tuple[Any, Any] | None]:
        get = functools.partial(cache.store.get, key)
        return (yield InThread(get)) if cache.store.is_slow else get()

    def _keep(self, item: Any, flight: Flight, result: Any) -> Call[None]:
        """Keep what the stage made, if it is of what was looked up."""
        cache = next(one for one in self._caches.caches if one.place == self._place)
        key = flight.missing.pop(self._place)
        if identity(item.job.payload, is_immutable=cache.setting.is_immutable) == flight.found:
            put = functools.partial(cache.store.put, key, result, _make_note(item.placement))
            is_kept = (yield InThread(put)) if cache.store.is_slow else put()
            kind = "kept" if is_kept else "full" if size_of(result) is not None else "unfit"
            self._count(f"{cache.stage}.cache_{kind}")
        if not flight.missing and flight.claim is not None:
            cache.store.flights.note(flight.claim.seconds)
            flight.end()


def _at_once(call: Callable[[Any], Any], value: Any) -> Call[Any]:
    return call(value)
    yield  # type: ignore[unreachable]  # a generator that waits for nothing


def _make_note(placement: Placement | None) -> Any:
    return None if placement is None else dataclasses.astuple(placement)


def _read_note(note: Any) -> Placement | None:
    if note is None:
        return None
    image, scaled, top, left, size = note
    return Placement(tuple(image), tuple(scaled), top, left, tuple(size))


def open_caches(pipeline: Pipeline, plan: Plan, seen: Plan) -> dict[str, StageCaches]:
    """Return {stage: the caches that it has to do with}; empty where the Plan keeps nothing.

    Args:
        pipeline: Whose stages.
        plan: Resolved.
        seen: As workers see it.

    Raises:
        SettingsError: If results of a stage cannot be kept, because equal items may give others.
    """
    names = {name for name, stage in plan.stages.items() if stage.cache is not None}
    found: dict[str, StageCaches] = {}
    for route in pipeline.routes.values():
        own = [_open(name, route, plan, seen) for name in names & {stage.name for stage in route}]
        for place, stage in enumerate(route):
            covering = tuple(sorted((one for one in own if one.place >= place), key=lambda one: -one.place))
            if covering:
                caches = StageCaches(stage.name, place, covering)
                before = found.setdefault(stage.name, caches)
                if before != caches:
                    raise SettingsError(
                        f"stages.{covering[0].stage}.cache is not possible: jobs of several tasks come to {stage.name}, and "
                        "only some of them to the same stages; cache the results of a stage that they have in common"
                    )
    return found


def _open(name: str, route: Sequence[Stage], plan: Plan, seen: Plan) -> StageCache:
    place = next(number for number, stage in enumerate(route) if stage.name == name)
    recipes = [_recipe(stage, name, plan, seen) for stage in route[: place + 1]]
    setting = CacheSetting.parse(plan.stages[name].cache or "")
    return StageCache(name, place, digest_recipe(recipes, __version__), setting, _open_store(name, setting))


def _recipe(stage: Stage, name: str, plan: Plan, seen: Plan) -> Mapping[str, Any]:
    """Return what a stage before a cache does."""
    why = ""
    recipe = stage.recipe(seen)
    if stage.role != "map" or stage.kind == "device":
        why = f"{stage.name} is no stage from one value to one value"
    elif plan.stages[stage.name].executor == "process":
        why = f"{stage.name} runs in processes of its own, which get values alone; set its executor to thread"
    elif recipe is None:
        why = (
            f"{stage.name} does not say that equal items give equal results; if they do, say so in the program: "
            "hr.stage(..., deterministic=True), or deterministic = True in the module"
        )
    if why or recipe is None:
        raise SettingsError(f"stages.{name}.cache is not possible: {why}")
    return recipe


def _open_store(name: str, setting: CacheSetting) -> MemoryCache | DiskCache:
    folder: Path | None = setting.folder.absolute() if setting.folder is not None else None
    key = (folder or name, setting.limit_bytes)
    with _stores_lock:
        if key not in _stores or _stores[key].is_off:  # its disk may have room again by now
            limit = setting.limit_bytes
            _stores[key] = MemoryCache(limit) if folder is None else DiskCache(folder, limit)
        _stores[key].begin()
        return _stores[key]
