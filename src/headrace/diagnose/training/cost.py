"""What a cost of a training is: seconds that something takes besides forward and backward, and what could be done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headrace.base.units import format_duration
from headrace.diagnose.training.own_recording import Recording, read_recording
from headrace.diagnose.training.selection import Selection, select
from headrace.diagnose.training.steps import Array, RankSteps, Stretches
from headrace.runs.formats.diagnosis import Confidence, EvidenceLine, Finding, Remedy, VerdictClass
from headrace.runs.formats.training_profile import PhaseTime, RankProfile, TrainingDocument
from headrace.runs.formats.training_trace import DeviceTime
from headrace.runs.training_phases import WORKERS, Phase

#: What costs less of the training's time than this is not worth work.
WORTH_WORK = 0.05
#: So much of a run that did go to something is named, whether or not another run would have it, too.
_PLAIN_SHARE = 0.2
#: Blocks of steps whose means are compared, and Student's t of them: 95 %, one side, 9 degrees of freedom.
_BLOCKS, _ONE_SIDED = 10, 1.833


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Something that takes time, or spoils the training."""

    verdict: VerdictClass
    stage: str | None
    """A phase of the step, or a kind of loading work."""
    cause: str = ""
    says: str
    rule: str
    share: float
    """Of the training's time, 0 to 1, that would be saved without it: at most, for something else may limit then."""
    most: float | None = None
    """The share that would be saved with all that goes with it, such as the first batches of epochs; None: the same."""
    least: float | None = None
    """The share that it has at least, in 19 of 20 such runs; None: the same."""
    worth: float = WORTH_WORK
    """From this share on it is worth work."""
    evidence: tuple[EvidenceLine, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    is_bounded: bool = True
    """False: without it other parts would be faster too, by nobody knows how much."""

    @property
    def is_sure(self) -> bool:
        """Whether other such runs have it, too; False: it came in a few steps, or its size varies."""
        return self.least is None or self.least >= self.worth

    @property
    def varies(self) -> bool:
        """Whether it is not sure because it came in a few steps; False: it is sure, or just as much as is worth work."""
        return self.least is not None and self.least < self.share / 2

    @property
    def gain(self) -> float | None:
        """Throughput without it over that of the run, at most; None: not known."""
        share = max(self.share, self.most or 0.0)
        return 1.0 / (1.0 - min(share, 0.99)) if self.share and self.is_bounded else None

    def as_finding(self, confidence: Confidence, more: str = "") -> Finding:
        """Return it as a finding.

        Args:
            confidence: How sure it is.
            more: A further sentence.
        """
        seldom = "" if self.is_sure else "it came in a few bursts, so record a longer run to see how often they come"
        return Finding(
            verdict=self.verdict,
            stage=self.stage,
            cause=self.cause,
            says="; ".join(filter(None, (self.says, seldom, more))),
            rule=self.rule,
            confidence=confidence,
            gain=self.gain,
            evidence=(self._without(), *self.evidence) if self.share else self.evidence,
            remedies=self.remedies,
        )

    def _without(self) -> EvidenceLine:
        gain = self.gain
        if gain is None:
            says = f"{self.share:.0%} of the time goes to it; what more would be won without it is not known, and may be much"
            return fact("share", says, self.share, WORTH_WORK)
        says = f"without it: x{gain:.2f} of the steps per second at most"
        return fact("gain", says, gain, 1.0 / (1.0 - WORTH_WORK))


def fact(name: str, says: str, value: float | None, threshold: float | None = None) -> EvidenceLine:
    """Return a line of evidence: for the finding from its threshold on, against it below, neither without a threshold."""
    supports = None if threshold is None or value is None else value >= threshold
    return EvidenceLine(name=name, says=says, value=value, threshold=threshold, supports=supports)


@dataclass(frozen=True)
class View:
    """One rank as the rules see it. Times of a rule are sums over what lasts: not the first step, not the warm-up."""

    document: TrainingDocument
    rank: RankSteps
    profile: RankProfile
    folder: Path

    @cached_property
    def selection(self) -> Selection:
        """What each step is."""
        return select(self.rank.steps)

    @cached_property
    def seconds(self) -> float:
        """Of the training that lasts: what happens once at its beginning is no share of a long one."""
        stretches = (self.rank.steps, self.rank.validation, self.rank.between)
        return float(sum(one.wall[self._lasts(one)].sum() for one in stretches))

    @property
    def validation_seconds(self) -> float:
        """That validation took of it."""
        return float(self.rank.validation.wall[self._lasts(self.rank.validation)].sum())

    @cached_property
    def validations(self) -> tuple[int, int]:
        """How many times it validated, and after how many of these steps went on."""
        followed = np.searchsorted(self.rank.steps.started, self.rank.validation.started)
        different = np.unique(followed[self._lasts(self.rank.validation)])
        return len(different), int((different < len(self.rank.steps)).sum())

    @cached_property
    def plain(self) -> Array:
        """bool: the steps that are averaged."""
        return self.selection.plain

    @property
    def device(self) -> DeviceTime | None:
        """The device that its trace has most work of; None where it has none, or it is no trace."""
        devices = () if self.profile.trace is None else self.profile.trace.devices
        return max(devices, key=lambda one: one.compute_seconds, default=None)

    @property
    def num_plain(self) -> int:
        """Steps that are averaged."""
        return int(self.plain.sum())

    @property
    def batches(self) -> int:
        """That a plain step accumulates; 1 where there are none."""
        counts = self.rank.steps.microbatches[self.plain]
        return max(1, round(float(np.median(counts)))) if len(counts) else 1

    @property
    def step_seconds(self) -> float:
        """Mean plain step."""
        return self.profile.step.mean or 0.0

    def phase(self, phase: Phase) -> PhaseTime | None:
        """Return a phase of the plain steps; None where they have none."""
        return next((one for one in self.profile.phases if one.phase == phase), None)

    def mean_seconds(self, phase: Phase) -> float:
        """Return the mean of a phase in a plain step; 0 where there is none."""
        found = self.phase(phase)
        return 0.0 if found is None else found.seconds

    def share_of(self, step_seconds: float) -> float:
        """Return the share of the training that so many seconds of each plain step are."""
        return self.num_plain * step_seconds / self.seconds if self.seconds else 0.0

    def least_share(self, phase: Phase, less: float = 0.0) -> float:
        """Return the share of the training that a phase has at least, in 19 of 20 such runs.

        Steps that follow each other are alike, so means of blocks of them are compared and not steps.

        Args:
            phase: Of the plain steps.
            less: Seconds of each step that do not count.
        """
        blocks = np.array_split(self.rank.steps.phases[phase].wall[self.plain] - less, min(_BLOCKS, self.num_plain))
        means = np.array([block.mean() for block in blocks])
        error = float(means.std(ddof=1)) / np.sqrt(len(means)) if len(means) > 1 else 0.0
        return self.share_of(max(float(means.mean()) - _ONE_SIDED * error, 0.0))

    @cached_property
    def recording(self) -> Recording:
        """What recording itself took."""
        return read_recording(self.profile)

    def lasting_seconds(self, phase: Phase) -> float:
        """Return the sum of a phase over all that lasts, steps and what is between them."""
        total = 0.0
        for one in (self.rank.steps, self.rank.validation, self.rank.between):
            times = one.phases.get(phase)
            total += 0.0 if times is None else float(times.wall[self._lasts(one)].sum())
        return total

    @cached_property
    def between_epochs(self) -> tuple[float, int]:
        """The seconds of the loop's own code between steps, and how many times steps went on after it."""
        times, steps = self.rank.between.phases.get(Phase.OUTSIDE), self.rank.steps
        if times is None:
            return 0.0, 0
        followed = np.searchsorted(steps.started, self.rank.between.started)
        counts = self._lasts(self.rank.between) & (times.wall > 0) & (followed < len(steps))
        return float(times.wall[counts].sum()), len(np.unique(followed[counts]))

    def lines(self, phase: Phase) -> str:
        """Return the user's line that was seen most in a phase, in words; empty where nothing was sampled."""
        found = self.profile.lines.get(phase, ())
        return f"; {found[0][1]:.0%} of it in {found[0][0]}" if found else ""

    @property
    def worker_lines(self) -> str:
        """The user's line in which workers of the loader were seen most, in words; empty where nothing was sampled."""
        found = self.profile.lines.get(WORKERS, ())
        return f"; {found[0][1]:.0%} of what they do in {found[0][0]}" if found else ""

    def parts(self, phase: Phase) -> str:
        """Return how a phase splits: `CPU 3.1 ms, run delay 0, blocked 1.2 ms`."""
        found = self.phase(phase)
        if found is None or found.cpu_seconds is None:
            return "its CPU time was not measured"
        return (
            f"of it {format_duration(found.cpu_seconds)} computing, {format_duration(found.run_delay_seconds)} waiting for a "
            f"core, {format_duration(found.blocked_seconds)} blocked"
        )

    def _lasts(self, stretches: Stretches) -> Array:
        """Return which stretches a long training has, too: not those of the beginning, nor profiled steps. bool."""
        steps, is_window = (
            self.rank.steps,
            bool(self.document.window),
        )  # the first step of a window is not that of the training
        if stretches is steps:
            apart = self.selection  # steps in which headrace looked closer are no part of a long training either
            once = apart.warm_up | apart.failed | apart.recompiled | apart.profiled
            return np.asarray(~once & ((np.arange(len(steps)) > 0) | is_window))
        if is_window:
            return np.ones(len(stretches), bool)
        return np.asarray(stretches.started > float(steps.started[0]))


def costs_worth(costs: Sequence[Cost | None]) -> list[Cost]:
    """Return those that are worth work, the largest first: surely, or because so much of this run went to them."""
    worth = [one for one in costs_possible(costs) if one.is_sure or one.share >= _PLAIN_SHARE]
    return sorted(worth, key=lambda one: -one.share)


def costs_possible(costs: Sequence[Cost | None]) -> list[Cost]:
    """Return those that were worth work in this run."""
    return [one for one in costs if one is not None and one.share >= one.worth]
