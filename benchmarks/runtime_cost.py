"""What the runtime itself costs, per item and per hop: CPU, switches, system calls, allocations; beside hand-written programs.

* `cpu_us_per_item`: CPU of the whole process per item when no stage does anything (the ladder's local bytes).
* `switches_per_item`: voluntary switches of threads per item, at 100 times the article's speed on emulated stages.
* `http_ratio_threads`, `http_ratio_asyncio`: headrace's rate over that of the peer, real HTTP, in the same rounds.
* `x100`: efficiency on the emulated device at 100 times the article's speed, median and worst run.
* `idle_core_share`: cores that a pipeline over an empty SQLite queue takes.
* `wake_us`: CPU of waking a thread that sleeps on another core, of both sides, measured in this run.
* `at_100us_wake`: `cpu_us_per_item` where each wake-up costs 100 us of CPU: at most, from the counts.

Per hop: a chain of stages that return what they get, once with a thread per stage and once fused; the difference between nine
stages and one, divided by eight, is one hop. CPU, switches and allocations are counted on the chain as it is, system calls and
wake-ups by `perf` beside it. Calls and clock readings are counted by a profile hook, which makes all code several times slower.

    python -m benchmarks.runtime_cost [--quick] [--json] [--write]
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import ladder, measure, ours
from benchmarks.peers import EmulatedBench
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.testing.memory_queue import MemoryQueue

WAKE_US = (5, 20, 100)
STAGES = 9
LOCAL_ITEMS = 20_000
#: Chains of stages: name -> number of stages and their executor.
CHAINS = {"one, fused": (1, "inline"), "nine, fused": (STAGES, "inline"), "nine, threads": (STAGES, "thread")}
PAYLOAD = b"x" * 1000
LARGE_PAYLOAD = bytes(1 << 20)
#: Fewer and more items of a counted run: the difference is free of what starting costs.
FEW, MANY = 500, 2500
RATES = (1, 10, 100)
CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
}
PERF_EVENTS = {
    "system_calls": "raw_syscalls:sys_enter",
    "futex_calls": "syscalls:sys_enter_futex",
    "wake_ups": "sched:sched_waking",
}


# --- What this machine charges ---------------------------------------------------------------------------------------


def prices(rounds: int) -> dict[str, float]:
    """Return what a wake-up, clock readings and a cheap system call cost here, in microseconds, medians.

    `wake_us` and `wake_wall_us` are CPU and wall time of one wake-up of a thread on another core; `wake_same_core_us` is the
    CPU of one on the same core. With a single core the two are the same.
    """
    cores = sorted(os.sched_getaffinity(0))
    near = [_ping_pong(cores[0], cores[0]) for _ in range(rounds)]
    far = [_ping_pong(cores[0], cores[-1]) for _ in range(rounds)]
    return {
        "wake_us": statistics.median(cpu for cpu, _ in far),
        "wake_wall_us": statistics.median(wall for _, wall in far),
        "wake_same_core_us": statistics.median(cpu for cpu, _ in near),
        "monotonic_us": _call_us(time.monotonic_ns),
        "thread_time_us": _call_us(time.thread_time_ns),
        "system_call_us": _call_us(os.getppid),
    }


def _ping_pong(core: int, other_core: int, count: int = 2000) -> tuple[float, float]:
    """Return CPU and wall time of one wake-up, in microseconds, of two threads that wake each other in turn."""
    ping, pong = threading.Lock(), threading.Lock()
    ping.acquire()
    pong.acquire()

    def answer() -> None:
        os.sched_setaffinity(0, [other_core])  # of this thread alone
        for _ in range(count):
            ping.acquire()
            pong.release()

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [core])
    thread = threading.Thread(target=answer)
    thread.start()
    began, usage = time.perf_counter(), Usage.now()
    for _ in range(count):
        ping.release()
        pong.acquire()
    spent, seconds = Usage.now() - usage, time.perf_counter() - began
    thread.join()
    os.sched_setaffinity(0, before)
    return spent.cpu_seconds / count / 2 * 1e6, seconds / count / 2 * 1e6


def _call_us(call: Callable[[], object], count: int = 20_000) -> float:
    samples = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            call()
        samples.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(samples)


# --- Counters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """CPU and switches of a process, or of the children that it has waited for."""

    cpu_seconds: float
    voluntary: int
    involuntary: int

    @classmethod
    def now(cls, who: int = resource.RUSAGE_SELF) -> Usage:
        """Read the kernel's counters."""
        usage = resource.getrusage(who)
        return cls(usage.ru_utime + usage.ru_stime, usage.ru_nvcsw, usage.ru_nivcsw)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.cpu_seconds - earlier.cpu_seconds,
            self.voluntary - earlier.voluntary,
            self.involuntary - earlier.involuntary,
        )

    def per_item(self, count: int) -> dict[str, float]:
        """Return the usage of one item; CPU in microseconds."""
        return {
            "cpu_us": self.cpu_seconds / count * 1e6,
            "voluntary_switches": self.voluntary / count,
            "involuntary_switches": self.involuntary / count,
        }


def at_wake_prices(cpu_us: float, switches: float, here: Mapping[str, float]) -> dict[str, float]:
    """Return CPU per item, at most, where each wake-up costs 5, 20 and 100 us of CPU.

    Each voluntary switch ends with a wake-up. Its price here is taken as the cheapest one measured, the one on the same core,
    so the result is an upper bound.
    """
    return {str(price): cpu_us + switches * (price - here["wake_same_core_us"]) for price in WAKE_US}


def count_system_calls(run: Callable[[], object]) -> dict[str, float] | None:
    """Return how often this process entered the kernel, called `futex` and woke a thread; None without perf or strace."""
    if shutil.which("perf"):
        events = ",".join(PERF_EVENTS.values())
        text = _beside(["perf", "stat", "-x,", "-e", events, "-p", str(os.getpid())], run)
        counted = {row.split(",")[2]: row.split(",")[0] for row in text.splitlines() if row.count(",") > 2}
        if all(counted.get(event, "").isdigit() for event in PERF_EVENTS.values()):
            return {name: float(counted[event]) for name, event in PERF_EVENTS.items()}
    if shutil.which("strace"):
        text = _beside(["strace", "-f", "-c", "-p", str(os.getpid())], run)
        calls = {row.split()[-1]: float(row.split()[3]) for row in text.splitlines() if re.match(r"\s+\d", row)}
        if total := calls.pop("total", 0.0):
            return {"system_calls": total, "futex_calls": calls.get("futex", 0.0)}
    return None


def _beside(command: list[str], run: Callable[[], object]) -> str:
    """Run a counter that watches this process, and `run` meanwhile; return what the counter printed."""
    counter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.2)  # until it is attached: it does not say when
    try:
        run()
    finally:
        counter.send_signal(signal.SIGINT)
    return counter.communicate(timeout=20)[1]


def count_calls(run: Callable[[], object]) -> dict[str, float]:
    """Return how many functions were called, in Python and in C, and how many clock readings are among them."""
    calls, readings = itertools.count(), itertools.count()  # next() of these is one step for all threads

    def note(_frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            next(calls)
            if event == "c_call" and argument.__module__ == "time" and argument.__name__ in CLOCKS:
                next(readings)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {"calls": float(next(calls)), "clock_reads": float(next(readings))}


#: Counts calls of Python's allocators. Without the header of Python, which many machines lack.
_COUNTER_SOURCE = """
#include <stddef.h>
typedef struct { void *ctx; void *(*malloc)(void *, size_t); void *(*calloc)(void *, size_t, size_t);
                 void *(*realloc)(void *, void *, size_t); void (*free)(void *, void *); } Allocator;
extern void PyMem_GetAllocator(int, Allocator *); extern void PyMem_SetAllocator(int, Allocator *);
static Allocator was[3]; static long total;
#define ADD __atomic_add_fetch(&total, 1, __ATOMIC_RELAXED); Allocator *a = x
static void *m(void *x, size_t n) { ADD; return a->malloc(a->ctx, n); }
static void *c(void *x, size_t k, size_t n) { ADD; return a->calloc(a->ctx, k, n); }
static void *r(void *x, void *p, size_t n) { ADD; return a->realloc(a->ctx, p, n); }
static void f(void *x, void *p) { Allocator *a = x; a->free(a->ctx, p); }
void begin(void) { total = 0; for (int i = 0; i < 3; i++) { PyMem_GetAllocator(i, &was[i]);
                   Allocator mine = {&was[i], m, c, r, f}; PyMem_SetAllocator(i, &mine); } }
long end(void) { for (int i = 0; i < 3; i++) PyMem_SetAllocator(i, &was[i]); return total; }
"""


class Allocations:
    """Counts allocations with a few lines of C between Python and its allocators; None without a C compiler."""

    def __init__(self) -> None:
        self._library: Any = None
        if not shutil.which("cc"):
            return
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "count.c"), Path(folder, "count.so")
            source.write_text(_COUNTER_SOURCE)
            command = ["cc", "-O2", "-shared", "-fPIC", "-Wl,--unresolved-symbols=ignore-all", source, "-o", library]
            if not subprocess.run(command, capture_output=True).returncode:
                self._library = ctypes.PyDLL(str(library))  # which keeps the GIL while allocators are exchanged
                self._library.end.restype = ctypes.c_long

    def count(self, run: Callable[[], object]) -> dict[str, float] | None:
        """Return the number of allocations of all threads meanwhile."""
        if self._library is None:
            return None
        self._library.begin()
        try:
            run()
        finally:
            total = self._library.end()
        return {"allocations": float(total)}


class ThreadRoles:
    """Adds up CPU and switches by what threads do, for the length of a `with` block, from the kernel's files of each thread.

    What a thread does between the last look and its end is lost: at most a twentieth of a second.
    """

    def __enter__(self) -> ThreadRoles:
        self._stopping, self._before, self._seen = threading.Event(), {}, {}
        self._look(self._before)
        self._thread = threading.Thread(target=self._watch, name="benchmark")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(0.05):
            self._look(self._seen)

    def _look(self, found: dict[int, tuple[str, tuple[int, int]]]) -> None:
        for thread in threading.enumerate():
            with contextlib.suppress(OSError, IndexError):  # it has ended
                found[thread.native_id] = thread.name, _task_usage(Path(f"/proc/self/task/{thread.native_id}"))

    def per_item(self, count: int) -> dict[str, dict[str, float]]:
        """Return {role: CPU in microseconds and voluntary switches of one item}, dearest first."""
        roles: dict[str, dict[str, float]] = {}
        for number, (name, after) in self._seen.items():
            before = self._before.get(number, ("", (0, 0)))[1]
            row = roles.setdefault(re.sub(r"-\d+(?=-|$)", "", name), {"cpu_us": 0.0, "voluntary_switches": 0.0})
            row["cpu_us"] += (after[0] - before[0]) / 1e3 / count
            row["voluntary_switches"] += (after[1] - before[1]) / count
        roles.pop("benchmark")
        return dict(sorted(roles.items(), key=lambda role: -role[1]["cpu_us"]))


# --- Chains ----------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def run_chain(name: str, count: int, payload: bytes = PAYLOAD) -> None:
    """Run items through one of CHAINS."""
    number, executor = CHAINS[name]
    stages = [hr.stage(f"stage{place}", _same) for place in range(number)]
    settings = [f"stages.stage{place}.executor={executor}" for place in range(number)]
    source = ours.Listed([(str(place), payload) for place in range(count)])
    plan = hr.Plan().with_settings([*settings, "source.receive_batch=64", "run.warm_up=false"])
    _check(hr.run(hr.Pipeline(source, stages=stages), plan), count)


def _check(result: Any, count: int) -> None:
    if result.counters.delivered != count:
        raise RuntimeError(f"{result.counters.delivered} of {count} items were delivered")


def chain_costs(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Return what one item of each chain costs: CPU and switches, calls and clock readings, allocations, system calls."""
    used: dict[str, list[dict[str, float]]] = {name: [] for name in CHAINS}
    for number in range(rounds):
        for name in list(CHAINS) if number % 2 == 0 else reversed(CHAINS):
            before = Usage.now()
            run_chain(name, count)
            used[name].append((Usage.now() - before).per_item(count))
    allocations = Allocations()
    return {
        name: {
            **_medians(used[name]),
            **_counts_per_item(name, count_calls),
            **_counts_per_item(name, allocations.count),
            **_counts_per_item(name, count_system_calls),
        }
        for name in CHAINS
    }


def _counts_per_item(
    chain: str, counter: Callable[[Callable[[], object]], Mapping[str, float] | None]
) -> dict[str, float]:
    few, many = (counter(partial(run_chain, chain, count)) for count in (FEW, MANY))
    if few is None or many is None:
        return {}
    return {name: (many[name] - few[name]) / (MANY - FEW) for name in many}


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def hops(chains: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return what a job costs without its stages, a fused stage, and a stage with a thread of its own."""
    one, fused, threads = (chains[name] for name in CHAINS)
    per_fused = {name: (fused[name] - one[name]) / (STAGES - 1) for name in one}
    return {
        "job (receive, deliver, settle)": {name: one[name] - per_fused[name] for name in one},
        "stage, fused": per_fused,
        "stage, own thread": {name: (threads[name] - one[name]) / (STAGES - 1) for name in one},
    }


def copies_per_item(count: int) -> float:
    """Return how often a payload is copied on its way through nine stages: its CPU over that of copying it once."""
    samples, buffer = [], bytearray(len(LARGE_PAYLOAD))
    for _ in range(20):
        began = time.thread_time()
        buffer[:] = LARGE_PAYLOAD
        samples.append(time.thread_time() - began)
    cpu = []
    for payload in (PAYLOAD, LARGE_PAYLOAD):
        before = Usage.now()
        run_chain("nine, threads", count, payload)
        cpu.append((Usage.now() - before).cpu_seconds / count)
    return max(0.0, (cpu[1] - cpu[0]) / statistics.median(samples))


# --- Whole pipelines -------------------------------------------------------------------------------------------------


def local(rounds: int) -> dict[str, float]:
    """Return what one item of the ladder's local bytes costs, median of the rounds."""
    rows = []
    for _ in range(rounds):
        before = Usage.now()
        ladder.runtime_cpu_seconds_per_item(LOCAL_ITEMS)
        rows.append((Usage.now() - before).per_item(LOCAL_ITEMS))
    return _medians(rows)


def emulated(rounds: int, count: int) -> tuple[list[float], dict[str, float]]:
    """Return the efficiency of each run at 100 times the article's speed, and what one item cost, median."""
    efficiencies, rows = [], []
    for number in range(rounds):
        before = Usage.now()
        efficiencies.append(ladder.run_emulated("best", 100, count)[1])
        rows.append((Usage.now() - before).per_item(count))
        _say(f"100 times, run {number + 1}: {efficiencies[-1]:.1%} of the device, {rows[-1]['cpu_us']:.0f} us of CPU")
    return efficiencies, _medians(rows)


def over_http(rounds: int, count: int, *, tuned: bool) -> dict[str, Any]:
    """Return rates and CPU over real HTTP at 100 times the article's speed, round by round, headrace and peers in turn.

    Args:
        rounds: Runs of each.
        count: Items of a run.
        tuned: Tune the peers first, which takes minutes once; else their first settings, the most promising ones.
    """
    switches: list[float] = []
    with EmulatedBench() as bench:
        settings = {name: _settings(bench, name, tuned) for name in ladder.PEERS}
        runners = {"headrace": partial(_counting_switches, bench, count, switches)}
        runners |= {name: partial(bench.run, name, chosen, count) for name, chosen in settings.items()}
        outcomes = measure.interleave(runners, rounds, on_result=_show)
    for name, some in outcomes.items():
        if errors := [outcome.error for outcome in some if outcome.error]:
            raise RuntimeError(f"{name}: {errors[0]}")
    return {
        "rates": {name: [outcome.rate for outcome in some] for name, some in outcomes.items()},
        "cpu_us": {name: [outcome.cpu_seconds_per_item * 1e6 for outcome in some] for name, some in outcomes.items()},
        "switches_per_item": statistics.median(switches),
        "settings": {name: str(chosen) for name, chosen in settings.items()},
        "tuned": tuned,
    }


def _settings(bench: EmulatedBench, name: str, tuned: bool) -> Any:
    return (tuned and bench.tune(name).settings) or bench.grid(name)[0]


def _counting_switches(bench: EmulatedBench, count: int, switches: list[float]) -> Any:
    before = Usage.now(resource.RUSAGE_CHILDREN)
    outcome = ours.run(bench, "ladder.toml", count)
    switches.append((Usage.now(resource.RUSAGE_CHILDREN) - before).voluntary / count)
    return outcome


def _show(name: str, number: int, outcome: Any) -> None:
    cpu = outcome.cpu_seconds_per_item * 1e6
    _say(f"over HTTP, round {number + 1}, {name}: {outcome.error or f'{outcome.rate:.0f}/s, {cpu:.0f} us of CPU'}")


# --- Latency ---------------------------------------------------------------------------------------------------------


class _Arrivals:
    """A delivery that notes when each result came."""

    flush_items, flush_seconds, default_workers = 1, 0.0, 1

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def open(self, context: Any) -> None:
        pass

    def deliver(self, job: hr.Job, result: Any) -> bool:
        self.times[job.id] = time.perf_counter()
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Told(_Arrivals):
    """Also says so."""

    def deliver(self, job: hr.Job, result: Any) -> bool:
        print(job.id, flush=True)
        return super().deliver(job, result)


def latency(address: str, seconds: Mapping[int, float]) -> dict[str, dict[str, float]]:
    """Return p50 and p99 from sending a job to its delivery, in milliseconds, by rate: an open loop.

    Three stages and a device stage that return what they get, so the runtime's own times and the queue's are left.

    Args:
        address: `memory` or `sqlite`: a queue that wakes its receiver, or one that is polled.
        seconds: {items per second: how long}.
    """
    arrivals, stop, sent = _Arrivals(), threading.Event(), {}
    stages = [*(hr.stage(f"stage{place}", _same) for place in range(3)), hr.stage("device", list, kind="device")]
    settings = [f"stages.stage{place}.executor=thread" for place in range(3)]
    with _queue(address) as (source, queue):
        pipeline = hr.Pipeline(source, stages=stages, delivery=arrivals)
        plan = hr.Plan().with_settings(settings)
        thread = threading.Thread(target=lambda: hr.run(pipeline, plan, stop=stop))
        thread.start()
        _send("start", queue, 10, 1.0)
        for rate, duration in seconds.items():
            sent[rate] = _send(str(rate), queue, rate, duration)
        time.sleep(0.5)
        stop.set()
        thread.join()
    return {str(rate): _percentiles([arrivals.times[id_] - at for id_, at in times]) for rate, times in sent.items()}


def latencies(quick: bool) -> dict[str, dict[str, dict[str, float]]]:
    """Return the latencies by queue and rate."""
    seconds = dict(zip(RATES, (2.0, 3.0, 2.0) if quick else (40.0, 30.0, 20.0), strict=True))
    return {kind: latency(kind, seconds) for kind in (("memory",) if quick else ("memory", "sqlite"))}


@contextlib.contextmanager
def _queue(kind: str) -> Iterator[tuple[Any, Any]]:
    """Yield a source over an empty queue, and the queue to send to."""
    if kind == "memory":
        queue = MemoryQueue()
        yield hr.queue(queue), queue
        return
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{folder}/jobs.db"
        with contextlib.closing(open_queue(address)) as opened:
            yield hr.queue(address), opened


def _send(name: str, queue: Any, rate: int, seconds: float) -> list[tuple[str, float]]:
    """Send jobs at even intervals, however fast they are done, and return id and time of each."""
    began, sent = time.perf_counter(), []
    for number in range(max(1, round(rate * seconds))):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        id_ = f"{name}-{number}"
        sent.append((id_, time.perf_counter()))
        queue.send([encode_job("x", id=id_)])
    return sent


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50_ms": statistics.median(ordered) * 1e3, "p99_ms": p99 * 1e3, "items": len(ordered)}


# --- Idle ------------------------------------------------------------------------------------------------------------


def idle(seconds: float) -> dict[str, float]:
    """Return cores used, and voluntary switches per second, by a pipeline that waits for jobs."""
    command = [sys.executable, "-m", "benchmarks.runtime_cost", "--wait-for-jobs"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        child.stdout.readline()  # its first job is done
        time.sleep(0.5)
        before, began = _tasks_usage(child.pid), time.perf_counter()
        time.sleep(seconds)
        after, elapsed = _tasks_usage(child.pid), time.perf_counter() - began
    finally:
        child.terminate()
        child.communicate(timeout=30)
    cpu, switches = (late - early for late, early in zip(after, before, strict=True))
    return {"core_share": cpu / 1e9 / elapsed, "switches_per_second": switches / elapsed}


def _wait_for_jobs() -> None:
    with _queue("sqlite") as (source, queue):
        queue.send([encode_job("x", id="first")])
        stages = [hr.stage("prepare", _same), hr.stage("device", list, kind="device")]
        hr.run(hr.Pipeline(source, stages=stages, delivery=_Told()))


def _tasks_usage(pid: int) -> tuple[int, int]:
    """Return nanoseconds of CPU and voluntary switches of the threads that live: ticks of CPU are too coarse here."""
    found = [_task_usage(task) for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(cpu for cpu, _ in found), sum(switches for _, switches in found)


def _task_usage(task: Path) -> tuple[int, int]:
    """Return nanoseconds of CPU and voluntary switches of one thread."""
    cpu = int((task / "schedstat").read_text().split()[0])
    switches = (task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2]
    return cpu, int(switches.split()[0])


# --- All of it -------------------------------------------------------------------------------------------------------


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    here = prices(3 if quick else 9)
    _say(f"a wake-up costs {here['wake_us']:.1f} us of CPU, on the same core {here['wake_same_core_us']:.1f}")
    plain = local(2 if quick else 5)
    _say(f"local bytes: {plain['cpu_us']:.1f} us of CPU, {plain['voluntary_switches']:.2f} voluntary switches per item")
    chains = chain_costs(1 if quick else 5, 3000 if quick else 10_000)
    efficiencies, item = emulated(3 if quick else 10, 6000 if quick else 12_000)
    http = over_http(1 if quick else 6, 3000 if quick else 10_000, tuned=not quick)
    waiting = idle(3.0 if quick else 30.0)
    delays = latencies(quick)
    http_cpu = {name: statistics.median(values) for name, values in http["cpu_us"].items()}
    rows = {
        "local bytes": plain,
        "emulated, 100 times": item,
        "over HTTP, 100 times": {"cpu_us": http_cpu["headrace"], "voluntary_switches": http["switches_per_item"]},
    }
    threads = look_closer(rows)
    at_prices = {name: at_wake_prices(row["cpu_us"], row["voluntary_switches"], here) for name, row in rows.items()}
    return {
        "cpu_us_per_item": plain["cpu_us"],
        "switches_per_item": item["voluntary_switches"],
        **{f"http_ratio_{name}": _ratio(http["rates"], name) for name in ladder.PEERS},
        "x100": {"median": statistics.median(efficiencies), "worst": min(efficiencies)},
        "idle_core_share": waiting["core_share"],
        "wake_us": here["wake_us"],
        "at_100us_wake": at_prices["local bytes"]["100"],
        **{f"http_cpu_ratio_{name}": _ratio(http["cpu_us"], name) for name in ladder.PEERS},
        "pipelines": {name: {**row, "at_wake_us": at_prices[name]} for name, row in rows.items()},
        "threads": threads,
        "hops": hops(chains),
        "chains": chains,
        "copies_per_item": copies_per_item(300 if quick else 2000),
        "latency": delays,
        "idle": waiting,
        "http": http,
        "x100_runs": efficiencies,
        "machine": {**here, "cpu": measure.cpu_model(), "cores": measure.usable_cores()},
        "quick": quick,
    }


def look_closer(rows: Mapping[str, dict[str, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Add system calls and wake-ups per item to the rows of the pipelines that run here, and return their threads' usage."""
    runs = {
        "local bytes": (partial(ladder.runtime_cpu_seconds_per_item, LOCAL_ITEMS), LOCAL_ITEMS),
        "emulated, 100 times": (partial(ladder.run_emulated, "best", 100, 3000), 3000),
    }
    threads = {}
    for name, (run, count) in runs.items():
        rows[name].update((what, number / count) for what, number in (count_system_calls(run) or {}).items())
        with ThreadRoles() as roles:
            run()
        threads[name] = roles.per_item(count)
    return threads


def _ratio(values: Mapping[str, list[float]], peer: str) -> float:
    return measure.paired_ratios(values["headrace"], values[peer]).median


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    return "\n".join(
        [
            "# What the runtime itself costs",
            "",
            *_goal_lines(result),
            "",
            "Per item, whole pipelines; on the right CPU, at most, where a wake-up costs so much CPU:",
            "",
            "| pipeline | CPU, us | voluntary switches | system calls | at 5 us | at 20 us | at 100 us |",
            "|---|---|---|---|---|---|---|",
            *(_pipeline_line(name, row) for name, row in result["pipelines"].items()),
            "",
            "Per item and hop (stages that return what they get):",
            "",
            *_hop_lines(result["hops"]),
            "",
            "By thread, CPU in us and voluntary switches per item:",
            "",
            *(f"- {name}: {_roles(roles)}" for name, roles in result["threads"].items()),
            "",
            f"A payload is copied {result['copies_per_item']:.2f} times on its way through {STAGES} stages.",
            "",
            "From sending a job to its delivery, open loop:",
            "",
            "| queue | items/s | p50, ms | p99, ms | items |",
            "|---|---|---|---|---|",
            *(
                f"| {kind} | {rate} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['items']} |"
                for kind, rows in result["latency"].items()
                for rate, row in rows.items()
            ),
            "",
            *_http_lines(result["http"]),
        ]
    )


def _goal_lines(result: Mapping[str, Any]) -> list[str]:
    here, x100 = result["machine"], result["x100"]
    rates = [f"{result[f'http_ratio_{name}']:.2f}x {name}" for name in ladder.PEERS]
    cpu = [f"{result[f'http_cpu_ratio_{name}']:.2f}x {name}" for name in ladder.PEERS]
    waking = f"{here['wake_us']:.1f} us of CPU ({here['wake_wall_us']:.1f} us of time)"
    near = f"on the same core {here['wake_same_core_us']:.1f}"
    clocks = f"a monotonic clock {here['monotonic_us']:.2f}, a thread's CPU clock {here['thread_time_us']:.2f}"
    idling = f"{result['idle_core_share']:.2%} of a core, {result['idle']['switches_per_second']:.0f} switches/s"
    return [
        f"- CPU per item, local bytes: {result['cpu_us_per_item']:.1f} us",
        f"- voluntary switches per item at 100 times the speed, emulated: {result['switches_per_item']:.2f}",
        f"- over HTTP at 100 times: {', '.join(rates)}; CPU per item {', '.join(cpu)}",
        f"- 100 times, emulated: {x100['median']:.1%} of the device, worst of {len(result['x100_runs'])} {x100['worst']:.1%}",
        f"- waiting for jobs: {idling}",
        f"- a wake-up costs {waking}, {near}; {clocks}, a system call {here['system_call_us']:.2f}",
    ]


def _pipeline_line(name: str, row: Mapping[str, Any]) -> str:
    prices_there = " | ".join(f"{value:.0f}" for value in row["at_wake_us"].values())
    calls = f"{row['system_calls']:.2f}" if "system_calls" in row else ""
    return f"| {name} | {row['cpu_us']:.1f} | {row['voluntary_switches']:.2f} | {calls} | {prices_there} |"


def _roles(roles: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{role} {row['cpu_us']:.1f} ({row['voluntary_switches']:.2f})" for role, row in roles.items())


def _hop_lines(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(next(iter(rows.values())))
    return [
        f"| | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (len(names) + 1) + "|",
        *(f"| {name} | {' | '.join(f'{row[column]:.2f}' for column in names)} |" for name, row in rows.items()),
    ]


def _http_lines(http: Mapping[str, Any]) -> list[str]:
    lines = ["Over HTTP:", "", "| design | items/s | CPU per item, us | settings |", "|---|---|---|---|"]
    for name, rates in http["rates"].items():
        cpu, settings = measure.spread(http["cpu_us"][name]), http["settings"].get(name, "ladder.toml")
        lines.append(f"| {name} | {measure.spread(rates):.0f} | {cpu:.0f} | {settings} |")
    return [
        *lines,
        "",
        f"The peers' settings are {'tuned' if http['tuned'] else 'the first of their grids, not tuned'}.",
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line."""
    if sys.argv[1:2] == ["--wait-for-jobs"]:
        _wait_for_jobs()
    else:
        measure.run_benchmark("runtime_cost", __doc__.splitlines()[0], measure_all, as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
