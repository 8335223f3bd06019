"""Times the making of batches in the thread that loads them: a worker's, or the one that trains.

How this works: `WatchedFetcher` stands where the loader has its fetcher, the object that gets items and collates them. It
reads the thread's clocks when a batch begins, when its items are there and when it is collated; in between, what is wrapped in
`loader_parts` says when decoding, augmenting and tokenising begin and end. Each such event ends one part and begins the next,
so parts do not overlap. Items are timed one by one without touching the data set: the indices that the loader goes through
read a clock on the way. The user's data set, items and batches are not changed.

Telling the parts of an item apart costs some microseconds. Where items take less than `SHORT_ITEM_NS` it is done for one item
in `SPLIT_ONE_IN`; the time of the others is given to the parts as those of the last batches had it, so they still add up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from operator import index as as_integer
from typing import Any

import torch

from headrace.base.metering import Reading, ThreadMeter
from headrace.runs.training_phases import LoaderWork
from headrace.train.batch_values import values_of
from headrace.train.loader_parts import TransformWatch, inside, watch_decoders
from headrace.train.loader_record import BatchRecord, Cost

#: An attribute of an enumeration takes longer to find than a clock to read (Python 3.11).
_AUGMENT, _OPEN, _REST = LoaderWork.AUGMENT, LoaderWork.OPEN, LoaderWork.ITEMS
_NOTHING, _NO_SUMS = Cost(), (0, 0, 0, 0)
#: Mean of a batch, ns, below which not all of the next one's items are split into their parts, and how many are: no divisor of
#: usual batch sizes, so that it is now this and now that place in the batch.
SHORT_ITEM_NS, SPLIT_ONE_IN = 200_000, 11
#: What a batch before counts for in that.
_FADING = 0.9

#: Values in a batch that are looked at for their size; a list of a million numbers has none.
_MOST_VALUES = 256
_now = time.monotonic_ns


class BatchClock:
    """Times one batch after the other in one thread.

    Args:
        keep: Takes the record of each batch, before it is given away.
        process: That of this thread.
        is_alone: The process does nothing but load, so that its other threads work for its batches.
    """

    def __init__(self, keep: Callable[[BatchRecord], None], process: int, *, is_alone: bool) -> None:
        self._keep, self._process, self._is_alone = keep, process, is_alone
        self._meter = ThreadMeter(_now)
        self._number = 0
        self._other_cpu = time.process_time_ns() - time.thread_time_ns()
        self.num_items = 0
        self.slowest_item, self.slowest = -1, 0
        self.has_transforms = False
        self.is_split = True
        #: Items that were begun; whether they are short.
        self.num_begun, self.is_short = 0, False
        #: What each part had lately of items that were split, ns: blocked, CPU time, run-queue delay.
        self._lately: dict[LoaderWork | None, tuple[float, float, float]] = {}

    def begin(self) -> None:
        """A batch is wanted."""
        self.num_items, self.slowest_item, self.slowest = 0, -1, 0
        #: Wall and CPU time of each part, its run-queue delay, and how often that was not measured; of None: items not split.
        self._sums: dict[LoaderWork | None, list[int]] = {}
        self._part: LoaderWork | None = _REST
        self.is_split = True
        self._begun = self._since = self._meter.read()
        self._collated: Reading | None = None
        self._tokenised = _NOTHING

    def begin_item(self, *, is_split: bool) -> None:
        """An item is wanted; until its transform begins it is opened. Called where there are transforms."""
        if is_split or self.is_split:
            self.is_split = is_split
            self._switch(_OPEN if is_split else None)

    def items_ended(self) -> None:
        """The items are there, and are collated now."""
        self._switch(LoaderWork.COLLATE)
        self._spread(self._sums.pop(None, None))
        self.is_split = True
        self._collated = self._since
        self._tokenised = self._cost_of(LoaderWork.TOKENISE)

    def around(self, part: LoaderWork, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call something that is a part of its own; what calls itself is one part."""
        if self._part is part or not self.is_split:
            return call(*args, **kwargs)
        before = self._switch(part)
        try:
            return call(*args, **kwargs)
        finally:
            self._switch(_REST if before is _OPEN and part is _AUGMENT else before)

    def end(self, batch: Any, *, failed: bool = False) -> None:
        """The batch is there, or an exception ended it."""
        self._switch(_REST)
        if None in self._sums:  # an item failed
            self._spread(self._sums.pop(None))
        ended = self._since
        collated = self._collated or ended
        # Tokenising is counted with the items also where `collate_fn` does it, so that parts add up to one whole.
        tokenised = self._cost_of(LoaderWork.TOKENISE)
        items, collate = _cost(self._begun, collated), _cost(collated, ended)
        if self._collated is not None and tokenised != self._tokenised:
            moved = tokenised - self._tokenised
            items, collate = items + moved, collate - moved
        other_cpu = time.process_time_ns() - (ended[1] or 0) if self._is_alone else 0
        augment, rest, opened = map(self._cost_of, (LoaderWork.AUGMENT, _REST, LoaderWork.OPEN))
        if _AUGMENT not in self._sums:  # no transform was called, so nothing was before one
            rest, opened = rest + opened, _NOTHING
        record = BatchRecord(
            process=self._process,
            number=self._number,
            num_items=self.num_items,
            failed=failed,
            begun=self._begun[0],
            collated=self._begun[0] + items.wall,
            ended=ended[0],
            items=items,
            collate=collate,
            decode=self._cost_of(LoaderWork.DECODE),
            augment=augment,
            tokenise=tokenised,
            rest=rest,
            opened=opened,
            num_bytes=count_bytes(batch),
            slowest_item=self.slowest_item,
            slowest=self.slowest,
            other_cpu=max(other_cpu - self._other_cpu, 0) if self._is_alone else 0,
        )
        self._other_cpu = other_cpu
        self._number += 1
        self.is_short = items.wall < SHORT_ITEM_NS * self.num_items
        self._keep(record)

    def _spread(self, others: list[int] | None) -> None:
        """Give the parts the time of items that were not split: each kind of time as they had it lately."""
        if others is None and not self.is_short:
            return
        lately, sums = self._lately, self._sums
        for part in {*lately, *sums} - {LoaderWork.COLLATE}:
            wall, cpu, delay, _ = sums.get(part, _NO_SUMS)
            blocked_was, cpu_was, delay_was = lately.get(part, (0.0, 0.0, 0.0))
            blocked = max(wall - cpu - delay, 0)
            lately[part] = blocked + _FADING * blocked_was, cpu + _FADING * cpu_was, delay + _FADING * delay_was
        if others is None:
            return
        wall, cpu, delay, num_unknown = others
        rest = sums.setdefault(_REST, [0, 0, 0, 0])
        rest[3] += num_unknown
        for at, left in enumerate((wall - cpu - delay, cpu, delay)):
            whole = sum([shares[at] for shares in lately.values()]) if left > 0 else 0
            per_share = left / whole if whole else 0.0
            for part, shares in lately.items() if per_share else ():
                more = int(shares[at] * per_share)
                left -= more
                own = sums.get(part) or sums.setdefault(part, [0, 0, 0, 0])
                own[0] += more
                own[at] += more if at else 0
            rest[0] += left
            rest[at] += left if at else 0

    def _switch(self, part: LoaderWork | None) -> LoaderWork | None:
        before, begun = self._part, self._since
        reading = self._meter.read()
        self._part, self._since = part, reading
        sums = self._sums.get(before)
        if sums is None:
            sums = self._sums[before] = [0, 0, 0, 0]
        sums[0] += reading[0] - begun[0]
        sums[1] += (reading[1] or 0) - (begun[1] or 0)
        if reading[2] is None or begun[2] is None:
            sums[3] += 1
        elif reading[2] > begun[2]:
            sums[2] += reading[2] - begun[2]
        return before

    def _cost_of(self, part: LoaderWork) -> Cost:
        if (sums := self._sums.get(part)) is None:
            return _NOTHING
        wall, cpu, delay, num_unknown = sums
        return Cost(wall, cpu, -1 if num_unknown else delay)


def _cost(begun: Reading, ended: Reading) -> Cost:
    delay = -1 if ended[2] is None else max(ended[2] - (begun[2] or 0), 0) if begun[2] is not None else -1
    return Cost(ended[0] - begun[0], (ended[1] or 0) - (begun[1] or 0), delay)


class TimedIndices(list[Any]):
    """The indices of a batch, which read a clock while the loader goes through them."""

    def __init__(self, indices: list[Any], clock: BatchClock) -> None:
        super().__init__(indices)
        self._clock = clock

    def __iter__(self) -> Iterator[Any]:
        clock = self._clock
        count, slowest, where = 0, 0, None
        number = clock.num_begun if clock.has_transforms else None
        every = SPLIT_ONE_IN if clock.is_short and len(self) >= 2 * SPLIT_ONE_IN else 1
        last = _now()
        try:
            for index in super().__iter__():
                if number is not None:
                    number += 1
                    if number % every == 0:
                        clock.begin_item(is_split=True)
                    elif clock.is_split:
                        clock.begin_item(is_split=False)
                yield index  # the loader gets the item before it comes back
                count += 1
                at = _now()
                if at - last > slowest:
                    slowest, where = at - last, index
                last = at
        finally:
            clock.num_items, clock.slowest = count, slowest
            clock.slowest_item = _as_index(where)
            clock.num_begun += count


def _as_index(value: Any) -> int:
    try:
        return as_integer(value)
    except (TypeError, ValueError):
        return -1  # a data set whose keys are no numbers, or that has none


class TimedCollate:
    """Calls `collate_fn`, and says before that the items are there."""

    def __init__(self, collate: Callable[[Any], Any], clock: BatchClock) -> None:
        self._collate, self._clock = collate, clock

    def __call__(self, items: Any) -> Any:
        """Return the batch of these items."""
        if getattr(inside, "clock", None) is self._clock:
            self._clock.items_ended()
        return self._collate(items)


class WatchedFetcher:
    """A fetcher of a loader whose batches are timed.

    Args:
        fetcher: PyTorch's; its `collate_fn` is wrapped until `release`.
        clock: Times the batches.
        is_over: Asked before each batch: whether nobody reads the records any more.
        is_wanted: Asked before each batch: whether this one is to be timed.
    """

    def __init__(
        self,
        fetcher: Any,
        clock: BatchClock,
        is_over: Callable[[], bool] = lambda: False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._fetcher, self._clock, self._is_over, self._is_wanted = fetcher, clock, is_over, is_wanted
        self._collate = fetcher.collate_fn
        self._is_iterable = hasattr(fetcher, "dataset_iter")
        self._is_collating = bool(getattr(fetcher, "auto_collation", True))
        self._is_by_item = self._is_iterable or not getattr(fetcher.dataset, "__getitems__", None)
        self._transforms = TransformWatch(fetcher.dataset)
        fetcher.collate_fn = TimedCollate(self._collate, clock)

    def __getattr__(self, name: str) -> Any:
        if name == "_fetcher":
            raise AttributeError(name)
        return getattr(self._fetcher, name)

    def release(self) -> Any:
        """Return the fetcher as it was."""
        self._fetcher.collate_fn = self._collate
        return self._fetcher

    def fetch(self, index: Any) -> Any:
        """Return the batch of these indices, as the fetcher does."""
        if self._is_over():
            self._fetcher.collate_fn = self._collate
            return self._fetcher.fetch(index)
        if not self._is_wanted():
            return self._fetcher.fetch(index)
        watch_decoders()
        clock, outer = self._clock, getattr(inside, "clock", None)
        clock.begin()
        if type(index) is list and self._is_collating:  # else the list is a key of the data set
            clock.num_items = len(index)
            index = TimedIndices(index, clock) if self._is_by_item else index
        inside.clock = clock
        self._transforms.begin()
        clock.has_transforms = self._transforms.has_found
        try:
            batch = self._fetcher.fetch(index)
        except BaseException as error:
            # The end of an iterable data set is no batch; whatever else is raised stands in the place of one.
            if not (self._is_iterable and isinstance(error, StopIteration)):
                clock.end(None, failed=True)
            raise
        finally:
            self._transforms.end()
            inside.clock = outer
        clock.end(batch)
        return batch


def count_bytes(batch: Any) -> int:
    """Return the bytes of the tensors, arrays and texts in a batch; of a huge one, of its first values; 0: not known."""
    try:
        return _count_bytes(batch)
    except Exception:  # Types of the user's own can do anything, and a count is not worth a training.
        return 0


def _count_bytes(batch: Any) -> int:
    num_bytes, waiting, looked = 0, [batch], 0
    while waiting and looked < _MOST_VALUES:
        value = waiting.pop()
        looked += 1
        kind = type(value)
        if isinstance(value, torch.Tensor):
            num_bytes += value.nbytes if value.layout is torch.strided else 0
        elif kind.__module__ == "numpy":
            num_bytes += int(getattr(value, "nbytes", 0))
        elif isinstance(value, str | bytes | bytearray):
            num_bytes += len(value)
        elif (values := values_of(value)) is not None:
            waiting += itertools.islice(values, _MOST_VALUES)
        elif kind.__module__ != "builtins" and isinstance(getattr(value, "__dict__", None), dict):
            waiting += list(vars(value).values())[:_MOST_VALUES]  # a batch type of the user's own
    return num_bytes
