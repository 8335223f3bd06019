"""Whether a canary's rules roll back what is worse, soon, and leave alone what is not: simulated days of real traffic.

Each run feeds the very objects of `base/policies` (Split, CanaryWatch, judge) with 20 jobs/s: traffic by key is heavy-tailed,
failures are clustered by key, now and then everything fails for a while, or one camera sends nothing but rubbish, or traffic
is five times as much. Failures pass the split one by one; what lies between them is drawn as counts.

    python -m benchmarks.canary --json     # 200 identical canaries of 6 hours; minutes of CPU
    python -m benchmarks.canary --quick    # fewer and shorter ones
    python -m benchmarks.canary --write    # with a dated result file
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import measure
from headrace.base.policies.arms import EPOCH_SECONDS, Split
from headrace.base.policies.canary import CanaryPolicy, Seen, judge
from headrace.base.policies.canary_watch import CanaryWatch
from headrace.base.policies.keyed_outcomes import KeyedOutcomes

#: More than most machines have cores, so that they have work to the end though canaries end at different times.
_PROCESSES = 4
LOOK_SECONDS = 10.0
NUM_KEYS = 200
#: Noise of one call's time: standard deviation of its logarithm.
CALL_NOISE = 0.2
#: Step of the way at which 10 % of the jobs fall to the canary.
AT_TENTH = 2


@dataclass(frozen=True, kw_only=True)
class World:
    """Traffic, and what is wrong with the canary."""

    hours: float = 6.0
    rate: float = 20.0
    errors: float = 0.01
    """Share of jobs that fail anyway."""
    times: float = 1.0
    """How many times as often they fail in the canary."""
    clustering: float = 0.05
    """Correlation of the failures of one key."""
    bursts: bool = True
    slowdown: float = 0.0
    changed: float = 0.001
    """Share of answers that the canary changes."""


@dataclass(frozen=True)
class Look:
    """What happened between two looks: jobs by key, and the probability that one of a key fails."""

    jobs: np.ndarray
    failing: np.ndarray


def simulate_traffic(world: World, random: np.random.Generator) -> Iterator[Look]:
    """Give what happens between two looks, one after the other."""
    weights = random.pareto(1.2, NUM_KEYS) + 0.1
    weights /= weights.sum()
    spread = (1 - world.clustering) / world.clustering
    errors = random.beta(world.errors * spread, (1 - world.errors) * spread, NUM_KEYS)
    errors = np.minimum(errors * world.errors / max(float(errors @ weights), 1e-9), 1.0)
    all_until, all_fail, key_until, key, busy_until = 0.0, 0.0, 0.0, 0, 0.0
    for number in range(round(world.hours * 3600 / LOOK_SECONDS)):
        now, chance = number * LOOK_SECONDS, random.random(3) * 3600 / LOOK_SECONDS
        if world.bursts and chance[0] < 2:  # twice an hour nearly everything fails
            all_until, all_fail = now + random.exponential(30), random.uniform(0.3, 1.0)
        if world.bursts and chance[1] < 4:
            key_until, key = now + random.exponential(120), int(random.choice(NUM_KEYS, p=weights))
        if world.bursts and chance[2] < 4:
            busy_until = now + random.exponential(60)
        failing = np.maximum(errors, all_fail if now < all_until else 0.0)
        if now < key_until:
            failing[key] = 1.0
        rate = world.rate * (5 if now < busy_until else 1)
        yield Look(random.poisson(rate * LOOK_SECONDS * weights), failing)


class Canary:
    """One canary, fed by the simulation.

    Args:
        world: What it meets.
        seed: Of the traffic, and of the split.
        step: Where it begins.
    """

    def __init__(self, world: World, seed: int, step: int) -> None:
        self.policy = CanaryPolicy()
        self.step = step
        self.since = 0.0
        self._world = world
        self._seed = seed
        self._random = np.random.default_rng([seed, 1])
        self._watch = CanaryWatch()
        self._num_jobs = 0

    def live(self, *, steps: bool) -> tuple[str, float, str]:
        """Return how it ends, after how many seconds, and why.

        Args:
            steps: Whether it goes from step to step; else it stays where it began.
        """
        now = 0.0
        for look in simulate_traffic(self._world, np.random.default_rng([self._seed, 0])):
            now += LOOK_SECONDS
            if share := self.policy.shares[self.step]:
                self._serve(look, share)
            self._compare()
            decision = judge(self.policy, self._watch.seen(), self.step, now - self.since)
            if decision.action == "roll back":
                return "rolled back", now, decision.reason
            if steps and decision.action == "promote":
                return "promoted", now, decision.reason
            if steps and decision.action == "step":
                self.step, self.since = self.step + 1, now
        return "held", now, decision.reason

    def _serve(self, look: Look, share: float) -> None:
        """Let jobs come in an order by chance; those that may fail pass the split one by one."""
        random, split = self._random, Split(salt=f"s{self._seed}", share=share)
        worst = np.minimum(look.failing * max(self._world.times, 1.0), 1.0)
        suspects = random.binomial(look.jobs, worst)
        num, num_good = int(suspects.sum()), int(look.jobs.sum() - suspects.sum())
        gaps = random.multinomial(num_good, [1 / (num + 1)] * (num + 1))
        chosen = random.permutation(np.repeat(np.arange(NUM_KEYS), suspects))
        for gap, key in zip(gaps, [*chosen, None], strict=True):
            self._note_good(share, int(gap))
            if key is not None:
                self._num_jobs += 1
                name = f"{self._seed}-{self._num_jobs}"
                canary = split.is_canary(name)
                self._watch.note_drawn(share, canary=canary)
                fails = min(1.0, look.failing[key] * (self._world.times if canary else 1.0))
                if random.random() * worst[key] < fails:
                    self._watch.note_failed(share, name, canary=canary, why="simulated")
                else:
                    self._watch.note_good(share, canary=canary)

    def _note_good(self, share: float, num: int) -> None:
        canary = int(self._random.binomial(num, share)) if num else 0
        stable = num - canary
        after = min(stable, int(self._random.geometric(share)) - 1) if canary else stable  # since the canary's last one
        for is_canary, count in ((False, stable - after), (True, canary), (False, after)):
            if count:
                self._watch.note_drawn(share, canary=is_canary, num=count)
                self._watch.note_good(share, canary=is_canary, num=count)

    def _compare(self) -> None:
        """Let both models answer one batch of eight."""
        noise = self._random.normal(0, CALL_NOISE, 2)
        slower = np.log1p(self._world.slowdown) + noise[0] - noise[1] > np.log1p(self.policy.max_slowdown)
        changed = int(self._random.binomial(8, self._world.changed))
        self._watch.note_twin(num_items=8, num_changed=changed, slower=bool(slower))


def simulate_keyed(world: World, seed: int) -> float | None:
    """Return when a canary with a tenth of the keys is rolled back, for failures; None: it is not."""
    policy, outcomes, seen = CanaryPolicy(), KeyedOutcomes(), Seen()
    share = policy.shares[AT_TENTH]
    split = Split(salt=f"k{seed}", share=share)
    random = np.random.default_rng([seed, 2])
    for number, look in enumerate(simulate_traffic(world, np.random.default_rng([seed, 0]))):
        now = number * LOOK_SECONDS
        epoch = int(now // EPOCH_SECONDS)
        arms = np.array([split.is_canary(str(key), epoch) for key in range(NUM_KEYS)])
        fails = np.minimum(look.failing * np.where(arms, world.times, 1.0), 1.0)
        failed = random.binomial(look.jobs, fails)
        for key in np.flatnonzero(look.jobs):
            ended = outcomes.note(
                str(key), epoch, canary=bool(arms[key]), failed=int(failed[key]), num=int(look.jobs[key])
            )
            if ended is not None:
                seen = seen.plus(Seen(jobs={share: ended}))
                if judge(policy, seen, AT_TENTH, now).action == "roll back":
                    return now
    return None


def measure_split(num_jobs: int) -> float:
    """Return by how many points the realised share differs from 10 % at most, over ten salts."""
    splits = [Split(salt=str(salt), share=0.1) for salt in range(10)]
    counts = [sum(split.is_canary(f"job-{number}") for number in range(num_jobs)) for split in splits]
    return max(abs(count / num_jobs - 0.1) for count in counts) * 100


def live_out(world: World, seed: int, step: int, steps: bool) -> tuple[str, float, str]:
    """Return what becomes of one canary; see `Canary.live`."""
    return Canary(world, seed, step).live(steps=steps)


class Crowd:
    """Simulates canaries in several processes; each of them depends on its seed alone.

    Args:
        pool: Of the processes.
    """

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def live(self, world: World, runs: int, seed: int, step: int, *, steps: bool) -> list[tuple[str, float, str]]:
        """Return what becomes of so many canaries."""
        return list(self._pool.map(live_out, [world] * runs, range(seed, seed + runs), [step] * runs, [steps] * runs))

    def times(self, world: World, runs: int, seed: int) -> dict[str, Any]:
        """Return how many with a tenth of the jobs are rolled back, and when."""
        ends = self.live(world, runs, seed, AT_TENTH, steps=False)
        found = sorted(seconds for kind, seconds, _ in ends if kind == "rolled back")
        return {
            "runs": runs,
            "rolled_back": len(found),
            "median_seconds": float(np.median(found)) if found else None,
            "p90_seconds": float(np.quantile(found, 0.9)) if found else None,
            "example": next((why for kind, _, why in ends if kind == "rolled back"), ""),
        }

    def keyed(self, world: World, runs: int, seed: int) -> list[float | None]:
        """Return when those with a tenth of the keys are rolled back."""
        return list(self._pool.map(simulate_keyed, [world] * runs, range(seed, seed + runs)))


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    with ProcessPoolExecutor(_PROCESSES) as pool:
        return _measure(Crowd(pool), quick)


def _measure(crowd: Crowd, quick: bool) -> dict[str, Any]:
    runs, few, hours = (10, 10, 1.0) if quick else (200, 50, 6.0)
    same, calm = World(hours=hours), World(hours=3.0, bursts=False, clustering=0.05)
    _say(f"{runs} identical canaries of {hours:g} h")
    identical = crowd.times(same, runs, 1000)
    _say(f"{identical['rolled_back']} rolled back; canaries that are worse")
    worse = {
        "x2": crowd.times(replace(calm, times=2.0), few, 2000),
        "x5": crowd.times(replace(calm, times=5.0), few, 3000),
        "x5_bursts": crowd.times(replace(same, times=5.0, hours=1.0), few, 3500),
        "slow": crowd.times(replace(calm, slowdown=1.0), few // 5, 4000),
        "wrong": crowd.times(replace(calm, changed=0.1), few // 5, 5000),
    }
    _say("whole ways")
    ways = crowd.live(same, few, 6000, 0, steps=True)
    promoted = [seconds for kind, seconds, _ in ways if kind == "promoted"]
    _say("keys instead of jobs")
    keyed = {times: crowd.keyed(replace(same, times=times), few, 7000) for times in (1.0, 5.0)}
    found = [seconds for seconds in keyed[5.0] if seconds is not None]
    return {
        "canary": {"false_rollbacks": identical["rolled_back"], "runs": runs},
        "hours": hours,
        "identical": identical,
        **worse,
        "split_points": measure_split(20_000 if quick else 100_000),
        "ways": {
            "runs": few,
            "promoted": len(promoted),
            "rolled_back": sum(kind == "rolled back" for kind, _, _ in ways),
            "median_seconds": float(np.median(promoted)) if promoted else None,
        },
        "keyed": {
            "runs": few,
            "false_rollbacks": sum(one is not None for one in keyed[1.0]),
            "x5_rolled_back": len(found),
            "x5_median_seconds": float(np.median(found)) if found else None,
        },
        "quick": quick,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# What becomes of canaries, simulated",
        "",
        (
            f"{result['canary']['false_rollbacks']} of {result['canary']['runs']} identical canaries with 10 % of 20 jobs/s "
            f"were rolled back within {result['hours']:g} hours of clustered failures, outages and bursts."
        ),
        "",
        "| canary | rolled back | median | nine in ten within |",
        "|---|---|---|---|",
    ]
    names = {
        "x2": "fails twice as often", "x5": "fails five times as often", "x5_bursts": "the same, with outages and bursts",
        "slow": "takes twice as long", "wrong": "changes 10 % of the answers",
    }  # fmt: skip
    for key, name in names.items():
        one = result[key]
        lines.append(
            f"| {name} | {one['rolled_back']} of {one['runs']} | {_minutes(one['median_seconds'])} | "
            f"{_minutes(one['p90_seconds'])} |"
        )
    ways, keyed = result["ways"], result["keyed"]
    lines += [
        "",
        (
            f"Of {ways['runs']} identical canaries that went the whole way, {ways['promoted']} were promoted (median after "
            f"{_minutes(ways['median_seconds'])}), {ways['rolled_back']} rolled back, the others held. Realised share: within "
            f"{result['split_points']:.2f} points of 10 %. With keys drawn every five minutes instead of jobs: "
            f"{keyed['false_rollbacks']} of {keyed['runs']} identical ones rolled back; {keyed['x5_rolled_back']} of "
            f"those that fail five times as often, median after {_minutes(keyed['x5_median_seconds'])}."
        ),
    ]
    return "\n".join(lines)


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 60:.1f} min"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line; status 1 when more than 5 % of the identical canaries are rolled back."""
    result = measure.run_benchmark("canary", __doc__.splitlines()[0], measure_all, as_text)
    return int(result["canary"]["false_rollbacks"] > 0.05 * result["canary"]["runs"])


if __name__ == "__main__":
    sys.exit(main())
