"""What a recording does not hold is found by simulating the run until it comes out as it was: how it shares what it shares.

In this order: what handing on costs; how many threads of others wanted a core; how long the GIL is held, and how often it is
taken back; how much slower the cores or the GIL are than their times say. Each changes the machine or the shares of the GIL of
the simulations that it is given, and nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from headrace.diagnose.gil_holders import find_gil_holders
from headrace.diagnose.replay.machine import HOP_SECONDS, PASSAGE_SHARE, find_other_threads
from headrace.diagnose.replay.simulations import Simulations
from headrace.diagnose.replay.structure import (
    GIL_MATTERS,
    GilAcquisitions,
    HandoffShare,
    count_visits,
    group_stages,
)
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument

#: Jobs of a simulation that looks for one figure.
_JOBS = 400
#: Steps in which the number of others is narrowed down: to 3 % of what they used.
_HALVINGS = 5
#: Shares of the CPU time with the GIL that calibration tries.
_GIL_SHARES = (1.0, 0.75, 0.5, 0.3, 0.15, 0.05)
_GIL_ROUNDS, _ACQUISITION_ROUNDS = 2, 3
#: Share from which on a stage keeps the GIL and need not have it back; of a stage that ran alone the share itself is uncertain.
_KEEPS_GIL = 0.75
#: Times that the price of waking and what is simulated with it are brought into line; and the largest share of what workers
#: spend outside stages that waking others may be.
_HANDOFF_ROUNDS, _MOST_WAKING = 2, 0.9
#: How far the waiting that was seen may be off: what a hundred samples tell of a share of a half.
_GIL_SLACK = 0.15
#: A stage that waits less for the GIL than this is not held up by it, seconds.
_LEAST_GIL_WAIT = 100e-6
#: Most times that a unit takes the GIL back, and the least CPU time between two of them: shorter calls do not let go of it.
_MOST_ACQUISITIONS, _LEAST_BETWEEN_ACQUISITIONS = 60, 50e-6
#: Most that waking up to take the GIL takes, and how far the slowdown of the cores may be from 1; and in how many steps they
#: are narrowed down.
_MOST_WAKE_SECONDS, _MOST_SLOWDOWN, _SPEED_ROUNDS = 200e-6, 1.25, 5
#: How many times as long the wait for the GIL may be where it changes hands less often.
_KEPT_TIMES = 5
#: How many times as long as they did threads may wait for the GIL, as simulated, for it to have made the run slow.
_TOO_MUCH_GIL = 1.5
#: As near to the measured throughput as makes no difference; and how much of what was missing one of these may leave.
_SPEED_FOUND, _MOST_LEFT = 0.005, 0.5
#: Simulated too fast by so much with few others, a run is tried with more.
_TOO_FAST = 0.15
#: Simulated too slow by so much a run is tried with less of the GIL: of less than that other shares explain little.
_TOO_SLOW = 0.05
#: Samples of blocked threads below which nothing is said about the GIL.
_FEWEST_SAMPLES = 20


def calibrate(replay: Simulations) -> None:
    """Make the simulation of a run come out as the run was, as far as the machine and the GIL decide that."""
    _Calibration(replay).run()


def simulate_delay(replay: Simulations) -> float:
    """Return seconds per job that simulated workers wait for a core."""
    simulated = replay.simulate(num_jobs=replay.affordable(_JOBS))
    return simulated.trace.delay_seconds / len(simulated.latencies)


def read_run_delay(document: ProfileDocument) -> float | None:
    """Return seconds per job that workers waited for a core within stages; None where it was not measured."""
    jobs = max(1, int(document.counters.get("delivered", 0)))
    total, known = 0.0, False
    for stage in document.stages:
        if stage.run_delay is not None:
            size = stage.batches.mean_size if stage.batches else 1.0
            total += stage.run_delay * stage.items / size
            known = True
    return total / jobs if known else None


class _Calibration:
    def __init__(self, replay: Simulations) -> None:
        self.replay = replay

    def run(self) -> None:
        """Find one after the other."""
        self._calibrate_handoff()
        self._calibrate_shared()
        self._calibrate_handoff()  # who keeps the GIL decides who sleeps
        self.replay.bound_jobs(self.replay.simulate())
        self._calibrate_speed()
        self.replay.forget()  # of no use any more: all but the last were of other machines

    def _calibrate_handoff(self) -> None:
        """Part what workers spent outside stages into waking others, passing stations, and the rest.

        How often somebody is woken depends on the Plan and on the rate, so each simulation counts it; what that costs is the
        machine's price. Where fewer threads really went to sleep than simulated ones do, a simulated one costs less.
        """
        price, total = self.replay.evidence.info.handoff, self.replay.machine.overhead
        if price is None or not price.cpu_seconds or total <= 0:
            return
        visits, passages = count_visits(self.replay.scenario(Change()))
        weighed = visits + PASSAGE_SHARE * passages
        runtime = self.replay.document.runtime
        slept = None if runtime is None else runtime.voluntary_switches_per_item
        others = find_other_threads(self.replay.document, passages)
        share = self.replay.machine.handoff or HandoffShare(price.cpu_seconds, total / visits, 0.0, others)
        for _ in range(_HANDOFF_ROUNDS):
            self.replay.machine = dataclasses.replace(self.replay.machine, handoff=share)
            simulated = self.replay.simulate(num_jobs=self.replay.affordable(_JOBS))
            wakes = max(1e-9, simulated.trace.num_wakes / len(simulated.latencies))
            wake = min(
                price.cpu_seconds * (1.0 if slept is None else min(1.0, slept / wakes)), _MOST_WAKING * total / wakes
            )
            rest = total - wakes * wake
            visit = min(HOP_SECONDS / (1 + PASSAGE_SHARE), rest / weighed)
            share = HandoffShare(wake, visit, PASSAGE_SHARE * visit, rest - visit * weighed + others)
        self.replay.machine = dataclasses.replace(self.replay.machine, handoff=share)

    def _calibrate_shared(self) -> None:
        """Find how many threads of others the run had to share the cores with, and how it shares the GIL.

        How long workers waited for a core tells of the others. But where a thread that holds the GIL, or is given it, waits for
        a core, all who want it wait for the GIL: if the run is still simulated too fast, and both waits together tell of more
        others that make it as fast as it was, these held it up, and not the GIL.
        """
        found, holds, delay = self.replay.machine, self.replay.holds_gil, read_run_delay(self.replay.document)
        self._calibrate_others(lambda: simulate_delay(self.replay), delay)
        self._calibrate_gil()
        too_fast = self.replay.misfit
        if delay is None or not self.replay.machine.others or too_fast <= _TOO_FAST or not self._gil_was_sampled():
            return
        kept = self.replay.machine, self.replay.holds_gil, self.replay.gil_acquisitions
        self.replay.machine, self.replay.holds_gil, self.replay.gil_acquisitions = found, holds, {}
        both = delay + sum(self._read_gil_wait(stage.name) for stage in self.replay.demands.stages)
        self._calibrate_others(lambda: simulate_delay(self.replay) + sum(self._simulate_gil_wait().values()), both)
        if self.replay.machine.others <= kept[0].others or abs(self.replay.misfit) > _MOST_LEFT * too_fast:
            self.replay.machine, self.replay.holds_gil, self.replay.gil_acquisitions = kept

    def _calibrate_others(self, simulate: Callable[[], float], measured: float | None) -> None:
        """Find how many threads of others make the run, simulated, wait as long as was measured.

        What others used says little: a program that runs now and then takes nothing from threads that mostly sleep, and one
        that wants a core all the time takes more than it is given.
        """
        if measured is None or self.replay.machine.others <= 0:
            return
        found = self.replay.machine
        low, high = 0.0, found.others
        for _ in range(_HALVINGS):
            others = (low + high) / 2
            # Who does not compete for a core has only what is left over.
            self.replay.machine = dataclasses.replace(found, others=others, taken=min(others, found.taken))
            if simulate() < measured:
                low = others
            else:
                high = others

    def _calibrate_gil(self) -> None:
        """Find how much of their CPU time stages hold the GIL, and how often others have to take it, from how long all waited.

        A stage's `releases_gil` says only that threads of it gain something: NumPy and OpenCV let go of the GIL within a stage
        that does not promise to. And a call of C code that lets go of it has to have it back, each time it returns to Python,
        and may wait for a whole switch interval then.
        """
        may_hold = [
            stage.name
            for stage in self.replay.demands.stages
            if stage.holds_gil > 0 and stage.name not in self.replay.measured_gil_shares
        ]
        held = (
            sum(
                float(stage.cpu_demand.sum()) * self.replay.holds_gil[stage.name]
                for stage in self.replay.demands.stages
            )
            / self.replay.demands.num_jobs
        )
        if held * self.replay.throughput < GIL_MATTERS or not self._gil_was_sampled():
            return
        measured = [name for name, share in self.replay.measured_gil_shares.items() if share >= _KEEPS_GIL]
        letting_go = self._find_letting_go(may_hold)
        self.replay.holds_gil = self.replay.holds_gil | dict.fromkeys(letting_go, 0.0)
        holding = [name for name in may_hold if name not in letting_go]
        for _ in range(_GIL_ROUNDS):
            if holding:
                self._fit_holding(holding)
            self._fit_gil_acquisitions([*holding, *measured])

    def _find_letting_go(self, may_hold: list[str]) -> tuple[str, ...]:
        """Return which stages that did not promise to let go of the GIL do so, by who was seen with it while others waited."""
        evidence, stages = self.replay.evidence, self.replay.document.stages
        holders = find_gil_holders(evidence.spans, evidence.states, self.replay.document.window)
        cpu_seconds = {one.name: (one.cpu_demand or 0.0) * one.items for one in stages if one.name in may_hold}
        return () if holders is None else holders.find_letting_go(cpu_seconds)

    def _fit_holding(self, holding: list[str]) -> None:
        measured = sum(self._read_gil_wait(name) for name in holding)
        base = {name: share for name, share in self.replay.holds_gil.items() if name not in holding}
        found = []
        for share in _GIL_SHARES:
            self.replay.holds_gil = base | dict.fromkeys(holding, share)
            waits = self._try_gil_wait()
            found.append((abs(sum(waits[name] for name in holding) - measured), -share))
            if sum(waits[name] for name in holding) < measured:
                break  # it only gets less from here on
        # Where several shares explain what was seen about as well, the stage's own word counts: it did not promise to let go.
        least = min(miss for miss, _ in found)
        slack = _GIL_SLACK * measured + _LEAST_GIL_WAIT
        best = max(-share for miss, share in found if miss <= least + slack)
        self.replay.holds_gil = base | dict.fromkeys(holding, best)

    def _fit_gil_acquisitions(self, holding: list[str]) -> None:
        """Make stages that let go of the GIL take it back as often as it takes for them to wait as long as they did."""
        for _ in range(_ACQUISITION_ROUNDS):
            waits = self._try_gil_wait()
            for stage in self.replay.demands.stages:
                name, measured = stage.name, stage.gil_wait
                if name in holding or name not in self.replay.holds_gil or measured < _LEAST_GIL_WAIT:
                    continue
                known = self.replay.gil_acquisitions.get(name, GilAcquisitions(1.0, stage.gil_wait_grows))
                size = stage.batch_size.mean() if stage.info.kind == "device" else 1.0
                seen = max(waits[name] * size, 0.1 * measured)
                most = min(_MOST_ACQUISITIONS, float(stage.cpu.mean()) / _LEAST_BETWEEN_ACQUISITIONS)
                times = max(1.0, min(most, known.times * measured / seen))
                self.replay.gil_acquisitions[name] = GilAcquisitions(times, known.grows)

    def _try_gil_wait(self) -> dict[str, float]:
        """Return what `_simulate_gil_wait` does, and let later simulations take no more events than one may."""
        waits = self._simulate_gil_wait()
        self.replay.bound_jobs(self.replay.simulate(num_jobs=self.replay.affordable(_JOBS)))
        return waits

    def _simulate_gil_wait(self) -> dict[str, float]:
        """Return {stage: seconds per unit}; what a station waits is shared among its stages by what was measured of them."""
        waits = self.replay.simulate(num_jobs=self.replay.affordable(_JOBS)).gil_wait
        found = {}
        for group in group_stages(self.replay.demands.stages, self.replay.plan):
            total = sum(self._read_gil_wait(stage.name) for stage in group)
            for stage in group:
                share = self._read_gil_wait(stage.name) / total if total > 0 else 1.0 / len(group)
                found[stage.name] = waits.get(group[0].name, 0.0) * share
        return found

    def _read_gil_wait(self, name: str) -> float:
        stage = next(one for one in self.replay.demands.stages if one.name == name)
        return stage.gil_wait / (float(stage.batch_size.mean()) if stage.info.kind == "device" else 1.0)

    def _calibrate_speed(self) -> None:
        """Make the run, simulated, as fast as it was: taking the GIL, switches between threads and cold caches cost time too.

        Without it a change that takes them out of play (fewer downloads at a time, fewer arrivals, processes) would be compared
        with a run that never was. What the throughput does not depend on stays as it is.
        """
        if self.replay.is_open:
            return
        self._free_gil()
        busy = self.replay.simulate().utilization
        if busy["gil"] > busy["cores"]:
            most, rounds = _MOST_WAKE_SECONDS, _SPEED_ROUNDS
            machine = self.replay.machine
            # Kept from unit to unit the GIL changes hands less often. But where threads take turns on the cores, what they wait
            # for a core is simulated, and the GIL is free while one wakes up: more would stand for what is not there.
            if machine.handoff is not None and not machine.slice_on(machine.cores):
                most, rounds = _KEPT_TIMES * most, rounds + 2
            self._fit_speed(self._set_wake, 0.0, 0.0, most, rounds)
            if self._waits_too_long_for_gil():
                self._set_wake(0.0)
        else:
            self._fit_speed(self._set_slowdown, 1 / _MOST_SLOWDOWN, 1.0, _MOST_SLOWDOWN)

    def _free_gil(self) -> None:
        """Let stages hold less of the GIL where the run is simulated too slow.

        Their shares were made to give the waits that were seen. Part of these came while the holder waited for a core, which
        the shares then stand for as well: they can be too large. A second of CPU time takes no less than one of a core.
        """
        shares = {
            stage.name: self.replay.holds_gil[stage.name]
            for stage in self.replay.demands.stages
            if stage.holds_gil > 0 and stage.name not in self.replay.measured_gil_shares
        }

        def hold(part: float) -> None:
            self.replay.holds_gil = self.replay.holds_gil | {name: part * share for name, share in shares.items()}

        if any(share > 0 for share in shares.values()) and self.replay.misfit < -_TOO_SLOW:
            self._fit_speed(hold, 0.0, 1.0, 1.0)

    def _waits_too_long_for_gil(self) -> bool:
        """Return whether threads, as simulated, wait far longer for the GIL than they did: it is not what made the run slow."""
        if not self._gil_was_sampled():
            return False
        measured = sum(self._read_gil_wait(stage.name) for stage in self.replay.demands.stages)
        return sum(self._simulate_gil_wait().values()) > _TOO_MUCH_GIL * measured + _LEAST_GIL_WAIT

    def _set_wake(self, seconds: float) -> None:
        self.replay.machine = dataclasses.replace(self.replay.machine, wake_seconds=seconds)

    def _set_slowdown(self, slowdown: float) -> None:
        self.replay.machine = dataclasses.replace(self.replay.machine, slowdown=slowdown)

    def _fit_speed(
        self, slow: Callable[[float], None], least: float, usual: float, most: float, rounds: int = _SPEED_ROUNDS
    ) -> None:
        """Find how much of something that slows the run makes it as fast as it was; the usual where it has no part in that."""

        def miss(value: float) -> float:
            slow(value)
            return math.log(self._simulate_throughput() / self.replay.throughput)

        missing = miss(usual)
        low, high = (usual, most) if missing > 0 else (least, usual)
        tried = {usual: missing}
        for _ in range(rounds if abs(missing) > _SPEED_FOUND else 0):
            middle = (low + high) / 2
            tried[middle] = miss(middle)
            low, high = (middle, high) if tried[middle] > 0 else (low, middle)
        best = min(tried, key=lambda value: abs(tried[value]))
        slow(best if abs(tried[best]) <= _MOST_LEFT * abs(missing) else usual)

    def _simulate_throughput(self) -> float:
        return self.replay.simulate().throughput

    def _gil_was_sampled(self) -> bool:
        """Return whether enough was sampled to tell, and there was somebody to wait for."""
        splits = [stage.blocked_split for stage in self.replay.document.stages if stage.blocked_split is not None]
        threads = sum(
            (self.replay.plan.stages[group[0].name].workers or 1)
            for group in group_stages(self.replay.demands.stages, self.replay.plan)
            if self.replay.plan.stages[group[0].name].executor == "thread" and group[0].info.role != "deliver"
        )
        return sum(split.num_samples for split in splits) >= _FEWEST_SAMPLES and threads >= 2
