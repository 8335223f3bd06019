"""When the garbage collector runs during a run."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys

import pytest

from headrace.pipeline.garbage import GrowthWatch, calm_garbage_collector, resident_bytes
from headrace.testing import FakeClock

MB = 2**20


class Process:
    """A process whose memory grows, and in which a collection gives some of it back."""

    def __init__(self, *, cyclic: bool) -> None:
        self.clock = FakeClock()
        self.bytes = 1000 * MB
        self.num_collections = 0
        self.most = 0
        self._cyclic = cyclic
        self._watch = GrowthWatch(lambda: self.bytes, self.collect, lambda: self.clock.now_ns() / 1e9)

    def collect(self) -> None:
        """Give the growth back, where it is one of cycles."""
        self.num_collections += 1
        if self._cyclic:
            self.bytes = 1000 * MB

    def live(self, seconds: float, bytes_per_second: float) -> None:
        """Look every 30 ms while memory grows."""
        for _ in range(round(seconds / 0.03)):
            self.clock.advance(0.03)
            self.bytes += round(bytes_per_second * 0.03)
            self.most = max(self.most, self.bytes)
            self._watch.look()


def test_cycles_with_large_arrays_are_collected() -> None:
    """Memory that only cycles hold stays bounded, however few objects there are."""
    process = Process(cyclic=True)
    process.live(60.0, 500 * MB)
    assert process.most < 1400 * MB


def test_a_steady_process_is_left_alone() -> None:
    """Where memory does not grow, nothing is collected."""
    process = Process(cyclic=True)
    process.live(600.0, 0.0)
    assert process.num_collections == 0


def test_growth_of_another_kind_is_not_walked_again_and_again() -> None:
    """What a collection does not give back, such as a queue that fills, costs one a second at most."""
    process = Process(cyclic=False)
    process.live(10.0, 1000 * MB)
    assert 1 <= process.num_collections <= 10


def test_a_look_without_a_file_handle_is_left_out() -> None:
    """Memory cannot be read where the process may open no more files: no reason to end what looks."""
    clock, looks = FakeClock(), list[int]()

    def read() -> int:
        looks.append(len(looks))
        raise OSError(errno.EMFILE, "Too many open files")

    watch = GrowthWatch(read, lambda: None, lambda: clock.now_ns() / 1e9)
    for _ in range(3):
        watch.look()
        clock.advance(60)
    assert looks == [0, 1, 2]


def test_resident_memory_is_read() -> None:
    """It is that of this process, in bytes."""
    assert 10 * MB < resident_bytes() < 100_000 * MB


def test_what_the_program_froze_stays_frozen() -> None:
    """A server that froze its own objects finds them so after a run, and no others: what a run leaves can be collected."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    made = [[] for _ in range(10_000)]
    with calm_garbage_collector():
        assert frozen / 2 < gc.get_freeze_count() < frozen + len(made)
    assert gc.get_freeze_count() > frozen / 2


def test_the_last_of_several_runs_brings_the_settings_back() -> None:
    """Two that overlap share the collector: the first to end takes nothing from the other, and the last restores it."""
    gc.unfreeze()
    before = gc.get_threshold()
    first, second = calm_garbage_collector(), calm_garbage_collector()
    with first:
        calm, frozen = gc.get_threshold(), gc.get_freeze_count()
        assert calm != before
        second.__enter__()
    assert gc.get_threshold() == calm
    assert gc.get_freeze_count() > 0.9 * frozen
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() < 1000  # Python's own


PROGRAM = """
import resource, threading, time
import numpy as np, headrace as hr
from headrace.testing import ListSource
class Node: pass
def work(value):
    node = Node(); node.me = node; node.pixels = np.ones(4_000_000, np.uint8)
    time.sleep(0.002)
    return 1
pipeline = hr.Pipeline(ListSource(range(800)), stages=[hr.stage("work", work)], delivery=hr.collect())
if __name__ == "__main__":
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hr.run(pipeline, hr.Plan().with_settings(["work.workers=1"]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.full
def test_a_run_over_cycles_stays_small() -> None:
    """Cycles of 4 MB arrays, 3.2 GB in all: the run keeps some hundred megabytes of them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 1_000_000
