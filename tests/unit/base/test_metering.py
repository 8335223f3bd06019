"""Reading what a thread cost, and choosing the jobs that are recorded."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from headrace.base.metering import GAP_NS, Metering, ThreadMeter


def spin(seconds: float) -> None:
    """Compute for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def run_delay_of_this_thread() -> int:
    """Return what the kernel tells, in ns."""
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])


def test_cpu_time_is_that_of_the_thread() -> None:
    """Between two readings CPU time grows by what the thread computed, and wall time by at least as much."""
    meter = ThreadMeter(time.monotonic_ns)
    wall, cpu, _ = meter.read()
    spin(0.02)
    later_wall, later_cpu, _ = meter.read()
    assert cpu is not None
    assert later_cpu is not None
    assert 0.02e9 <= later_cpu - cpu <= later_wall - wall + GAP_NS


def test_sleep_costs_no_cpu_time() -> None:
    """A sleeping thread has neither CPU time nor, beyond its waking up, a run delay."""
    meter = ThreadMeter(time.monotonic_ns)
    wall, cpu, _ = meter.read()
    time.sleep(0.02)
    later_wall, later_cpu, _ = meter.read()
    assert later_wall - wall >= 0.02e9
    assert cpu is not None
    assert later_cpu is not None
    assert later_cpu - cpu < 0.01e9


def test_run_delay_is_what_the_kernel_tells() -> None:
    """After a gap the reading has the kernel's figure, taken between two looks at it."""
    meter = ThreadMeter(time.monotonic_ns)
    time.sleep(0.001)
    before = run_delay_of_this_thread()
    _, _, run_delay = meter.read()
    assert run_delay is not None
    assert before <= run_delay <= run_delay_of_this_thread()


def test_run_delay_is_read_only_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as CPU time keeps up with wall time the kernel is not asked again."""
    now = 10 * GAP_NS
    cpu = 0
    monkeypatch.setattr(time, "thread_time_ns", lambda: cpu)
    looks = []
    meter = ThreadMeter(lambda: now)
    look = meter.read_run_delay
    monkeypatch.setattr(meter, "read_run_delay", lambda: (looks.append(now), look()))
    meter.read()
    assert len(looks) == 1
    now, cpu = now + 1_000_000 + GAP_NS, cpu + 1_000_000
    meter.read()
    assert len(looks) == 1
    now, cpu = now + 1_020_000, cpu + 1_000_000
    meter.read()
    assert len(looks) == 2


def test_a_delay_that_a_long_phase_left_out_is_not_told_of_the_short_one_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPU time and delay of a phase are no more than the phase."""
    now, cpu, delay = 10**15, 0, 1_000_000
    monkeypatch.setattr(time, "thread_time_ns", lambda: cpu)
    meter = ThreadMeter(lambda: now)

    def look() -> None:
        meter._counted = delay

    monkeypatch.setattr(meter, "read_run_delay", look)
    first = meter.read()
    now, cpu, delay = now + 7_000_000, cpu + 6_950_000, delay + 50_000  # below a 128th
    long = meter.read()
    now, cpu, delay = now + 100_000, cpu + 97_000, delay + 2_000
    short = meter.read()
    now, cpu, delay = now + 1_000_000, cpu + 100_000, delay + 800_000
    last = meter.read()
    delays = [each[2] or 0 for each in (first, long, short, last)]
    assert [later - before for before, later in itertools.pairwise(delays)] == [0, 3_000, 800_000]


def test_a_meter_that_changes_threads_reads_the_new_one() -> None:
    """A meter made in one thread and used in another tells of the other."""
    meter = ThreadMeter(time.monotonic_ns)
    meter.read()
    found: list[tuple[int, int | None, int]] = []

    def read() -> None:
        time.sleep(0.01)
        before = run_delay_of_this_thread()
        found.append((before, meter.read()[2], run_delay_of_this_thread()))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    before, run_delay, after = found[0]
    assert run_delay is not None
    assert before <= run_delay <= after


def test_without_schedstat_the_delay_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel tells no run delay it is None, not 0."""
    monkeypatch.setattr(threading, "get_native_id", lambda: 2**30)
    meter = ThreadMeter(time.monotonic_ns)
    wall, cpu, run_delay = meter.read()
    assert wall > 0
    assert cpu is not None
    assert run_delay is None


def test_a_kernel_that_does_not_count_tells_no_delay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the kernel's accounting is off the file says 0 three times: the delay is None, not 0."""
    schedstat = tmp_path / "schedstat"
    schedstat.write_text("0 0 0\n")
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: open_file(schedstat, flags))
    meter = ThreadMeter(time.monotonic_ns)
    assert meter.read()[2] is None


def test_a_closed_meter_opens_again() -> None:
    """Closing gives the file back, and the next reading after a gap opens it anew."""
    meter = ThreadMeter(time.monotonic_ns)
    meter.read()
    assert meter._file >= 0
    meter.close()
    assert meter._file == -1
    time.sleep(0.001)
    assert meter.read()[2] is not None
    assert meter._file >= 0


def test_a_file_that_has_the_number_of_ours_is_neither_read_nor_closed(tmp_path: Path) -> None:
    """A program may close all files that it does not know; the next one that it opens is given the number of ours."""
    meter = ThreadMeter(time.monotonic_ns)
    meter.read_run_delay()
    (tmp_path / "own").write_text("of the program")
    number = meter._file
    os.close(number)
    own = os.open(tmp_path / "own", os.O_RDONLY)
    try:
        assert own == number
        meter.read_run_delay()
        assert meter._counted is None
        meter.read_run_delay()
        assert meter._counted is not None
        assert os.pread(own, 2, 0) == b"of"
    finally:
        os.close(own)


def test_a_meter_whose_file_the_program_closed_ends_quietly(tmp_path: Path) -> None:
    """Its number may be another file's by then, which stays open."""
    meter = ThreadMeter(time.monotonic_ns)
    meter.read_run_delay()
    os.close(meter._file)
    meter.close()
    meter.read_run_delay()
    number = meter._file
    os.close(number)
    own = os.open(tmp_path, os.O_RDONLY)
    try:
        assert own == number
        meter.close()
        assert os.fstat(own)
    finally:
        os.close(own)


def test_every_job_is_recorded_by_default() -> None:
    """Without sampling each job stands for itself."""
    assert {Metering().weight(f"job-{number}") for number in range(100)} == {1}


def test_one_job_in_so_many_is_recorded() -> None:
    """With every = 8 about an eighth is recorded, each with weight 8, always the same ones."""
    metering = Metering(every=8)
    weights = [metering.weight(f"job-{number}") for number in range(8_000)]
    assert set(weights) == {0, 8}
    assert 900 < weights.count(8) < 1_100
    assert weights == [metering.weight(f"job-{number}") for number in range(8_000)]


def test_what_is_recorded_at_a_lower_rate_is_recorded_at_a_higher() -> None:
    """The jobs of every = 16 are among those of every = 4, so a job's fate seldom changes when the rate does."""
    few, many = Metering(every=16), Metering(every=4)
    assert all(many.weight(str(number)) for number in range(2_000) if few.weight(str(number)))


def test_an_id_that_is_not_unicode_has_a_weight() -> None:
    """Names of files may hold bytes that are no UTF-8."""
    assert Metering(every=2).weight("caf\udce9.jpg") in (0, 2)


def test_a_reading_that_was_disturbed_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that loses the core between two clocks reads all of them once more, so that they belong together."""
    now = 10**15  # beyond what this thread has computed
    meter = ThreadMeter(lambda: now)
    looks = []

    def look() -> None:
        nonlocal now
        looks.append(now)
        now += 10_000_000 if len(looks) == 1 else 1_000
        meter._counted = len(looks)

    monkeypatch.setattr(meter, "read_run_delay", look)
    wall, _, run_delay = meter.read()
    assert (wall, run_delay) == (10**15 + 10_000_000, 2)


def test_a_machine_that_disturbs_every_reading_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries the last reading is taken as it is."""
    now = 10**15  # beyond what this thread has computed

    def later() -> int:
        nonlocal now
        now += 10_000_000
        return now

    meter = ThreadMeter(later)
    looks: list[int] = []
    monkeypatch.setattr(meter, "read_run_delay", lambda: looks.append(now))
    meter.read()
    assert 1 < len(looks) < 10
