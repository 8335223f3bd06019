"""Autoscaling of up to a hundred workers, simulated: headrace's signal and manifest beside somebody who knows what will come.

    python -m benchmarks.scale_autoscaling [--json] [--write] [--seeds N]

How this works. Jobs come by a square wave (20 and 60 busy workers' worth, half an hour each), by a day (8 to 76), by waves of a
quarter of an hour (15 and 45) or by a day with two peaks (10 to 60), with the noise of independent arrivals. Every 15 s
Kubernetes' autoscaler asks for the wanted workers: `wanted_workers` itself, from what the metrics said one scrape ago, with
a capacity that is wrong by up to 3 %. It moves as the ScaledObject of `headrace deploy`
lets it, and as Kubernetes does by default: up to twice as many or four more in 15 s, nothing within 10 %. A new worker takes
90 s and is paid for from the beginning. One that is taken away finishes the eight jobs in it, or is killed at the end of the
manifest's grace period.

The oracle knows the load, starts each worker so that it is there in time, takes it away when it is not needed, and keeps the
same share of each worker free as the signal does, `WANTED_UTILIZATION`, which is there for latency. What that share itself
costs is the second ratio: beside an oracle whose workers are always busy.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import yaml

from benchmarks import measure
from headrace.deploy.manifests import make_manifests
from headrace.deploy.target import Target
from headrace.monitor.metrics.exporter import DRAIN_SECONDS, WANTED_UTILIZATION, wanted_workers

#: Of one worker: jobs a second, jobs in it, and how long it takes to come.
RATE, IN_FLIGHT, START_SECONDS = 2.0, 8, 90
MOST = 100
#: Between two scrapes, and between two looks of the autoscaler; its tolerance; and by how much a capacity is wrong at most.
SCRAPE_SECONDS, LOOK_SECONDS, TOLERANCE, CAPACITY_ERROR = 15, 15, 0.1, 0.03

Load = Callable[[int], float]


def square_wave(second: int) -> float:
    """Return the jobs that come in a second."""
    return RATE * (60 if second // 1800 % 2 else 20)


def day(second: int) -> float:
    """Return the jobs that come in a second."""
    return RATE * (42 - 34 * math.cos(2 * math.pi * second / 86_400))


def short_wave(second: int) -> float:
    """Return the jobs that come in a second."""
    return RATE * (45 if second // 900 % 2 else 15)


def two_peaks(second: int) -> float:
    """Return the jobs that come in a second."""
    return RATE * (35 - 25 * math.cos(4 * math.pi * second / 86_400))


#: {name: load, seconds}. On the first two the manifest's two minutes of stabilization were chosen, on the others nothing.
LOADS: dict[str, tuple[Load, int]] = {
    "square wave": (square_wave, 6 * 3600),
    "day": (day, 86_400),
    "short waves": (short_wave, 6 * 3600),
    "two peaks": (two_peaks, 86_400),
}


class Scaler:
    """The autoscaler of a ScaledObject: from the wanted to the next number of workers."""

    def __init__(self) -> None:
        target = Target(pipeline="jobs:pipeline", name="jobs", least=1, most=MOST)
        documents = {one["kind"]: one for one in yaml.safe_load_all(make_manifests(target))}
        spec = documents["ScaledObject"]["spec"]
        down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        (self._policy,) = down["policies"]
        self._least, self._most = spec["minReplicaCount"], spec["maxReplicaCount"]
        self._threshold = float(spec["triggers"][0]["metadata"]["threshold"])
        self._wanted: deque[int] = deque(maxlen=down["stabilizationWindowSeconds"] // LOOK_SECONDS)
        self._removed: deque[tuple[int, int]] = deque()
        self.grace_seconds = documents["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    def next(self, now: int, wanted: int, present: int) -> int:
        """Return how many there are to be."""
        desired = math.ceil(wanted / self._threshold)
        if abs(wanted / (self._threshold * present) - 1) <= TOLERANCE:
            desired = present
        desired = min(self._most, max(self._least, desired))
        self._wanted.append(desired)
        if desired > present:
            return min(desired, max(2 * present, present + 4))
        while self._removed and self._removed[0][0] <= now - self._policy["periodSeconds"]:
            self._removed.popleft()
        began = present + sum(number for _, number in self._removed)
        allowed = math.floor(began * (1 - self._policy["value"] / 100))
        lower = min(present, max(*self._wanted, allowed))
        if lower < present:
            self._removed.append((now, present - lower))
        return lower


def simulate(load: Load, seconds: int, seed: int) -> dict[str, float]:
    """Return worker seconds, the longest that a job waited, and jobs that were cut off."""
    chance, scaler = random.Random(seed), Scaler()
    ready, starting = oracle_workers(load, 0), deque[int]()
    waiting = come = done = cost = 0.0
    longest, cut_off = 0, 0
    came: deque[tuple[int, float]] = deque([(0, 0.0)])
    scrapes: deque[tuple[float, float]] = deque(maxlen=2)
    lately: deque[float] = deque(maxlen=SCRAPE_SECONDS)
    for now in range(seconds):
        while starting and starting[0] <= now:
            starting.popleft()
            ready += 1
        jobs = max(0.0, chance.gauss(load(now), math.sqrt(load(now))))
        come += jobs
        now_done = min(waiting + jobs, ready * RATE)
        waiting, done = waiting + jobs - now_done, done + now_done
        lately.append(now_done)
        cost += ready + len(starting)
        came.append((now, come))
        while came[0][1] <= done and len(came) > 1:
            came.popleft()
        longest = max(longest, now - came[0][0] if waiting > 1e-6 else 0)
        if now % SCRAPE_SECONDS == 0 and now:
            scrapes.append((sum(lately) / len(lately), waiting))
        if now % LOOK_SECONDS == 0 and len(scrapes) == 2:
            present = ready + len(starting)
            wanted = _wanted(*scrapes[0], ready, chance)
            following = scaler.next(now, wanted, present)
            starting.extend([now + START_SECONDS] * (following - present))
            for _ in range(present - following):
                if starting:
                    starting.pop()
                    continue
                ready -= 1
                cost += IN_FLIGHT / RATE
                cut_off += IN_FLIGHT if scaler.grace_seconds < IN_FLIGHT / RATE else 0
    return {"worker_seconds": cost, "longest_wait_seconds": longest, "cut_off": cut_off, "left": waiting}


def _wanted(throughput: float, waiting: float, workers: int, chance: random.Random) -> int:
    capacity = workers * RATE * chance.uniform(1 - CAPACITY_ERROR, 1 + CAPACITY_ERROR)
    found = wanted_workers(
        {
            "headrace_throughput_jobs_per_second": {(): throughput},
            "headrace_capacity_jobs_per_second": {(): capacity},
            "headrace_source_jobs": {("visible",): waiting},
        },
        workers,
    )
    return found.workers if found else workers


def oracle_workers(load: Load, now: int, utilization: float = WANTED_UTILIZATION) -> int:
    """Return how many workers somebody has who knows what comes."""
    return max(1, math.ceil(load(now) / (utilization * RATE) - 1e-9))


def oracle_seconds(load: Load, seconds: int, utilization: float = WANTED_UTILIZATION) -> float:
    """Return what they cost, with the time that each takes to come."""
    cost, before = 0.0, oracle_workers(load, 0, utilization)
    for now in range(seconds):
        workers = oracle_workers(load, now, utilization)
        cost += workers + START_SECONDS * max(0, workers - before)
        before = workers
    return cost


def measure_all(num_seeds: int) -> dict[str, Any]:
    """Return the result of each load: the worst of the seeds."""
    found = {}
    for name, (load, seconds) in LOADS.items():
        runs = [simulate(load, seconds, seed) for seed in range(num_seeds)]
        cost = max(run["worker_seconds"] for run in runs)
        found[name] = {
            "hours": seconds / 3600,
            "seeds": num_seeds,
            "over_oracle": cost / oracle_seconds(load, seconds) - 1,
            "over_busy_oracle": cost / oracle_seconds(load, seconds, 1.0) - 1,
            "longest_wait_seconds": max(run["longest_wait_seconds"] for run in runs),
            "goal_seconds": DRAIN_SECONDS,
            "cut_off": sum(run["cut_off"] for run in runs),
        }
    return found


def describe(found: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        "# Autoscaling, simulated",
        "",
        f"`python -m benchmarks.scale_autoscaling`: up to {MOST} workers that take {START_SECONDS} s to come, by headrace's",
        "signal and the ScaledObject of `headrace deploy`. The worst of the seeds. Nothing was run on a cluster. How long the",
        "ScaledObject waits before it scales in was chosen on the first two loads; the others were not looked at before.",
        "",
        "| load | hours | over an oracle with as much free (goal) | with none free | longest wait (goal) | cut off (goal) |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        lines.append(
            f"| {name} | {one['hours']:g}, {one['seeds']} seeds | {one['over_oracle']:+.1%} (+10 %) "
            f"| {one['over_busy_oracle']:+.1%} | {one['longest_wait_seconds']} s ({one['goal_seconds']:g} s) "
            f"| {one['cut_off']} (0) |"
        )
    return "\n".join(lines)


def main() -> int:
    """Simulate, and print the document."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale_autoscaling", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--write", action="store_true", help="write the dated result")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="runs of each load")
    args = parser.parse_args()
    found = measure_all(args.seeds)
    sys.stdout.write((json.dumps(found) if args.json else describe(found)) + "\n")
    if args.write:
        measure.write_result("scale_autoscaling", describe(found), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
