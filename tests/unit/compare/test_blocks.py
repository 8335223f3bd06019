"""What a block measures, from readings with known answers; and the items of a block."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.network_rules import NetworkPlan
from headrace.base.page_cache import evict_all, residency, warm
from headrace.base.plan import Plan, SourcePlan, resolve
from headrace.base.records import SourceWork
from headrace.compare.blocks import (
    FEWEST_READINGS,
    Contender,
    CpuClock,
    SameItems,
    measure_block,
    per_item,
    read_items,
)
from headrace.compare.elsewhere import _measure, _Measured
from headrace.pipeline.stage_defaults import stage_defaults
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.folder import Folder
from headrace.testing import ListSource, Receiver


class Numbered(FiniteSource):
    """So many items; counts how often it was read."""

    def __init__(self, count: int, first: int = 0) -> None:
        super().__init__()
        self.count = count
        self.first = first
        self.num_read = 0

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        for number in range(self.first, self.first + self.count):
            self.num_read += 1
            yield Entry(str(number), b"x")


def test_even_readings_give_their_step() -> None:
    """Results every 10 ms are 10 ms each, whatever the count and the order."""
    for count in (12, 13, 100):
        assert per_item([5 + 0.01 * n for n in reversed(range(count))]) == pytest.approx(0.01)


@pytest.mark.parametrize("batch", [2, 8, 32])
def test_batches_do_not_look_faster(batch: int) -> None:
    """Results that come in batches, 10 ms per item, are 10 ms each; first to last would read up to 1 / batches less."""
    readings = [batch * 0.01 * (number // batch) for number in range(16 * batch)]
    assert per_item(readings) == pytest.approx(0.01)
    first_to_last = (readings[-1] - readings[0]) / (len(readings) - 1)
    assert first_to_last < 0.98 * 0.01


@pytest.mark.parametrize("first_batch", [10, 32, 50, 64])
@pytest.mark.parametrize("count", [256, 320, 384, 448])
def test_few_batches_are_cut_between_them(first_batch: int, count: int) -> None:
    """Four to seven batches of 64, a smaller one before them, are 1 % off at most; halves that cut one, 6 %."""
    sizes = [first_batch]
    while sum(sizes) < count:
        sizes.append(min(64, count - sum(sizes)))
    ends = itertools.accumulate(sizes)
    readings = [0.01 * end + 2e-5 * place for size, end in zip(sizes, ends, strict=True) for place in range(size)]
    assert per_item(readings) == pytest.approx(0.01, rel=0.01)


def test_a_straggler_of_many_blocks_is_not_taken_for_the_pace() -> None:
    """A last result that comes after ten times the block's length changes the figure by 40 / n."""
    readings = [0.01 * number for number in range(400)]
    readings[-1] += 40.0
    assert per_item(readings) == pytest.approx(0.01 * (1 + 40 / 400), rel=1e-3)


def test_one_straggler_hardly_counts() -> None:
    """A last result that is late by as long as the whole block took changes the figure by 4 / n."""
    readings = [0.01 * number for number in range(400)]
    readings[-1] += 4.0
    assert per_item(readings) == pytest.approx(0.01 * (1 + 4 / 400), rel=1e-3)


@pytest.mark.parametrize("readings", [[0.1 * n for n in range(FEWEST_READINGS - 1)], [1.0] * 50, []])
def test_what_tells_nothing_is_none(readings: list[float]) -> None:
    """Too few results, and results all at once, have no rate."""
    assert per_item(readings) is None


def test_items_are_the_same_for_every_block_and_go_round() -> None:
    """Every block gets the same ids in the same order, more than there are with a number, and the source is read once."""
    source = Numbered(3)
    items = SameItems(source)
    items.num_items = 7
    first = [entry.id for entry in items.entries()]
    assert first == ["0", "1", "2", "0#2", "1#2", "2#2", "0#3"]
    assert [entry.id for entry in items.entries()] == first
    assert (source.num_read, items.num_distinct) == (3, 3)


def test_items_are_read_only_as_far_as_needed() -> None:
    """A block of 5 of a million reads 5, and a longer one the rest of what it needs."""
    source = Numbered(1_000_000)
    items = SameItems(source)
    items.num_items = 5
    assert len(list(items.entries())) == 5
    items.num_items = 8
    assert [entry.id for entry in itertools.islice(items.entries(), 6, 8)] == ["6", "7"]
    assert source.num_read == 8


def test_cold_items_are_cold_in_every_turn_or_refused(tmp_path: Path) -> None:
    """No turn finds in memory what the one before read; where the kernel does not let go of files, nothing is measured."""
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(os.urandom(50_000))
    files = sorted(tmp_path.iterdir())
    evict_all(files)
    can_be_cold = residency(files).share == 0.0
    items = SameItems(Folder(tmp_path), cold=True)
    items.num_items = 6
    if not can_be_cold:
        with pytest.raises(SettingsError, match="could not be made to leave the page cache"):
            items.prepare()
        return
    warm(files)
    assert items.prepare() == 0.0
    shares = []
    for entry in items.entries():
        shares.append(residency([entry.payload]).share)
        entry.payload.read_bytes()
    assert shares == [0.0] * 6
    assert SameItems(Folder(tmp_path)).prepare() is None  # nothing was read of it yet


def test_items_that_are_no_files_cannot_be_cold() -> None:
    """It is said before a block is measured."""
    items = SameItems(Numbered(3), cold=True)
    items.num_items = 3
    with pytest.raises(SettingsError, match="no files of this machine"):
        items.prepare()


def test_a_block_says_what_was_in_memory(tmp_path: Path) -> None:
    """From the second one on: the first one reads the list of files itself."""
    (tmp_path / "a.jpg").write_bytes(b"x" * 5000)
    stages = [hr.stage("read", lambda path: path.stat().st_size, kind="cpu")]
    contender = Contender(name="a", pipeline=hr.Pipeline(source=Folder(tmp_path), stages=stages), plan=Plan())
    items = SameItems(Folder(tmp_path))
    assert [measure_block(contender, items, 12).in_memory for _ in range(2)] == [None, 1.0]


class Working(Numbered):
    """Works for each of its items."""

    work = SourceWork(does="counts")


def test_a_source_that_works_is_read_again_by_every_block() -> None:
    """Each side takes the items of its own, and its work counts: nothing is kept. Other items are refused."""
    sources = [Working(40), Working(40)]
    sides = [
        Contender(name=name, pipeline=hr.Pipeline(source, stages=[hr.stage("see", len, kind="cpu")]), plan=Plan())
        for name, source in zip("AB", sources, strict=True)
    ]
    items = SameItems(sources[0], own=True)
    blocks = [measure_block(side, items, 30) for side in (*sides, *reversed(sides))]
    assert [block.delivered + block.failed for block in blocks] == [30] * 4
    assert [source.num_read >= 60 for source in sources] == [True, True]
    assert (items.num_distinct, items.ids[:2], items.read) == (30, ["0", "1"], [])
    given = SameItems(sources[0])
    measure_block(sides[1], given, 30)
    assert sources[0].num_read >= 90
    sides[1].pipeline.source = Working(40, first=10)
    with pytest.raises(SettingsError, match="B: its source gives other items than the other side's"):
        measure_block(sides[1], items, 30)


def refuse_even(payload: bytes) -> int:
    """Fail for a part of the items."""
    if len(payload) % 2 == 0:
        raise RuntimeError("even")
    return len(payload)


class Growing(Working):
    """Its items are of different lengths."""

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(entry.id, b"x" * int(entry.id)) for entry in super().entries())


def working_side(source: FiniteSource) -> Contender:
    """Return a side over a source, whose stage fails for half of the items."""
    stages = [hr.stage("see", refuse_even, kind="cpu")]
    return Contender(name="A", pipeline=hr.Pipeline(source, stages=stages), plan=Plan())


def test_a_block_tries_the_items_of_a_source_that_works_once() -> None:
    """A second try would come seconds later, and in the place of an item; the source's own runs go on trying as they did."""
    source = Growing(40)
    items = SameItems(source)
    block = measure_block(working_side(source), items, 30)
    assert (block.delivered, block.failed, items.num_distinct) == (15, 15, 30)
    assert (block.passages["see"], source.max_receives) == (30, 3)


def test_items_that_a_plan_tries_again_are_noted_once() -> None:
    """Else a long list would be taken for that of more items."""
    items = SameItems(Working(9))
    items.note(["0", "1", "0", "1", "0", "1"])
    items.note(["0", "1", "2", "3"])
    assert items.ids == ["0", "1", "2", "3"]


def test_a_source_that_works_and_has_too_few_items_says_so() -> None:
    """It is not read around again, so blocks are shorter; none at all is a misuse."""
    few = working_side(Growing(20))
    block = measure_block(few, SameItems(Growing(20)), 30)
    assert "the source has 20 items, and a block was to have 30" in " ".join(block.warnings)
    assert not any("a block was to have" in text for text in measure_block(few, SameItems(Growing(20)), 20).warnings)
    with pytest.raises(SettingsError, match="no items"):
        measure_block(few, SameItems(Growing(0)), 30)


def test_processes_tell_the_items_of_sources_that_work_apart() -> None:
    """What a source works for is not kept, so the ids tell whether two processes ran over the same items."""

    def digest(first: int) -> str:
        source = Working(40, first)
        found = _measure(working_side(source), SameItems(source), 20, deliver=False)
        assert isinstance(found, _Measured)
        return found.digest

    assert digest(0) == digest(0)
    assert digest(0) != digest(10)


def test_a_source_without_items_says_so() -> None:
    """Nothing to compare on is a misuse, told before anything is measured."""
    items = SameItems(Numbered(0))
    items.num_items = 5
    items.open(SourcePlan())
    with pytest.raises(SettingsError, match="no items"):
        items.receive(1, 0)


def test_a_queue_cannot_be_read_twice(tmp_path: object) -> None:
    """A queue as source is refused, with the option that helps."""
    pipeline = hr.Pipeline(hr.queue(f"sqlite:///{tmp_path}/jobs.db"), stages=[hr.stage("one", str)])
    with pytest.raises(SettingsError, match="--source"):
        read_items(pipeline)


def test_a_block_runs_the_pipeline_without_its_source_and_delivery() -> None:
    """The pipeline's own source and delivery are not touched, and its stages see every item once."""
    seen: list[bytes] = []
    delivery = hr.collect()
    own = ListSource([b"never"])
    pipeline = hr.Pipeline(own, stages=[hr.stage("see", seen.append)], delivery=delivery)
    block = measure_block(Contender(name="a", pipeline=pipeline, plan=Plan()), SameItems(Numbered(5)), 40)
    assert (block.delivered, block.failed, len(seen)) == (40, 0, 40)
    assert (delivery.results, own.num_opened) == ([], 0)
    assert block.passages["see"] == 40
    assert block.latency_p50 is not None
    assert not block.interrupted


def test_a_block_delivers_when_asked() -> None:
    """With `deliver` the pipeline's own delivery gets every result."""
    delivery = hr.collect()
    pipeline = hr.Pipeline(Numbered(1), stages=[hr.stage("same", bytes)], delivery=delivery)
    contender = Contender(name="a", pipeline=pipeline, plan=Plan())
    measure_block(contender, SameItems(Numbered(20)), 20, deliver=True)
    assert sorted(int(id_) for id_, _ in delivery.results) == list(range(20))


def test_failed_jobs_are_counted_and_not_tried_again() -> None:
    """A job that fails ends as failed at once: a block would wait seconds for its retry."""

    def refuse_odd(value: bytes) -> bytes:
        numbers.append(1)
        if len(numbers) % 2:
            raise ValueError("odd")
        return value

    numbers: list[int] = []
    pipeline = hr.Pipeline(Numbered(1), stages=[hr.stage("refuse", refuse_odd)])
    plan = Plan().with_settings(["refuse.workers=1"])
    block = measure_block(Contender(name="a", pipeline=pipeline, plan=plan), SameItems(Numbered(30)), 30)
    assert (block.delivered, block.failed, len(numbers)) == (15, 15, 30)


def test_an_error_names_the_side() -> None:
    """A Plan that does not fit says whose it is."""
    pipeline = hr.Pipeline(Numbered(1), stages=[hr.stage("one", str)])
    contender = Contender(name="after.toml", pipeline=pipeline, plan=Plan().with_settings(["two.workers=1"]))
    with pytest.raises(SettingsError, match=r"after\.toml: \[stages\]: unknown key 'two'"):
        measure_block(contender, SameItems(Numbered(20)), 20)


@pytest.mark.measures
def test_the_cpu_clock_counts_this_process() -> None:
    """Between two readings lies what the kernel's account of this process says, to a hundredth of a second."""

    def account() -> float:
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime

    clock, before = CpuClock(), account()
    start = clock.seconds()
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        os.getpid()
    assert clock.seconds() - start == pytest.approx(account() - before, abs=0.01)


@pytest.mark.parametrize("deliver", [False, True])
def test_a_resolved_plan_whose_deliveries_one_thread_carries_is_measured(deliver: bool) -> None:
    """As `tune` does with a pipeline that calls back: deliveries that are dropped are carried like the others."""
    with Receiver() as receiver:
        delivery = hr.callback(receiver.url)
        pipeline = hr.Pipeline(Numbered(20), stages=[hr.stage("size", len)], delivery=delivery)
        plan = Plan(network=NetworkPlan(allow=["127.0.0.1"]))
        resolved = resolve(plan, stage_defaults(pipeline, plan), 2)
        assert resolved.stages["deliver"].executor == "events"
        contender = Contender(name="a", pipeline=pipeline, plan=resolved)
        block = measure_block(contender, SameItems(Numbered(20)), 20, deliver=deliver)
        assert (block.delivered, block.failed, block.first_failure) == (20, 0, None)
        assert len(receiver.calls) == (20 if deliver else 0)
