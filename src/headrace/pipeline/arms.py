"""The arms of a run with a canary: which job belongs to which, and how the jobs of each end.

How this works: a job gets an `Arm` when it is received, by a hash of its id. All jobs of the canary hold the same object, so
that one assignment to it takes the canary back: from then on they are the stable model's, wherever in the pipeline they are.
Batches hold one arm only (`bounded_queue`). A job counts where a model has answered it (`Item.has_run`); what failed before
that, such as a download, says nothing of the models.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

from headrace.base.policies.arms import Draw, Split, epoch_of
from headrace.base.policies.batching import BatchingPolicy
from headrace.base.policies.canary_watch import CanaryWatch
from headrace.base.records import Job, Outcome, OutcomeKind

#: Drawn jobs that are remembered, since an id that comes again counts once; and answered ones, for what users say of them.
_NUM_DRAWN, _NUM_ANSWERED = 20_000, 50_000


class Arm:
    """What the jobs of one arm share.

    Attributes:
        is_canary: Whether the canary's model answers them; false from the moment in which it is taken back.
        plan_id: Of the Plan that answers them.
        share: The canary's when they were drawn; what is counted is counted for it.
        counts: Whether their ends are evidence.
        batches: {stage: its largest batch of such jobs} where that is not the run's.
    """

    __slots__ = ("batches", "counts", "is_canary", "plan_id", "share")

    def __init__(
        self, plan_id: str, share: float, *, is_canary: bool, counts: bool, batches: Mapping[str, int] | None = None
    ) -> None:
        self.plan_id = plan_id
        self.share = share
        self.is_canary = is_canary
        self.counts = counts
        self.batches = batches or {}

    def adapt(self, policy: BatchingPolicy, stage: str) -> BatchingPolicy:
        """Return how a stage forms the batches of this arm: a canary's Plan may say how large they become."""
        most = self.batches.get(stage)
        return policy if most is None else dataclasses.replace(policy, max_size=most)


class Ending(Protocol):
    """An item, as far as it is asked for here."""

    arm: Arm | None
    has_run: bool

    @property
    def job(self) -> Job:
        """Its job."""
        ...


class Arms:
    """Draws the arms of jobs; thread-safe.

    Args:
        plan_id: Of the stable Plan.

    Attributes:
        watch: Sees the draws and the ends of the present canary's jobs.
        num_rescued: Items that the canary failed and the stable model answered.
        status, share: Of the present or last canary, as its folder has them; status empty: there was none.
    """

    def __init__(self, plan_id: str) -> None:
        self.watch = CanaryWatch()
        self.num_rescued = 0
        self.status, self.share = "", 0.0
        self._stable_id = plan_id
        self._rescued = Arm(plan_id, 0.0, is_canary=False, counts=False)
        self._canaries: list[Arm] = []
        self._split: Split | None = None
        self._key = ""
        self._drawn: OrderedDict[str, Draw] = OrderedDict()
        self._present: dict[tuple[bool, bool], Arm] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._answered: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(
        self, salt: str, plan_id: str, share: float, batches: Mapping[str, int] | None = None, key: str = ""
    ) -> None:
        """Send a share of the jobs that come from now on to a canary; call again for another share of the same one.

        Args:
            salt: Of the hash that draws jobs.
            plan_id: The canary's.
            share: Of the jobs.
            batches: {stage: the largest batch of its jobs} where that is not the run's.
            key: The attribute that is drawn for five minutes instead of each job's id; a job without it is drawn alone.
        """
        is_evidence = 0 < share < 1
        present = {
            (is_canary, counts): Arm(
                plan_id if is_canary else self._stable_id,
                share,
                is_canary=is_canary,
                counts=counts and is_evidence,
                batches=batches if is_canary else None,
            )
            for is_canary in (False, True)
            for counts in (False, True)
        }
        self._canaries += [arm for arm in present.values() if arm.is_canary]
        self._present = present
        self._key = key
        self._split = Split(salt=salt, share=share)

    def end(self) -> None:
        """Take the canary back: its jobs, received and to come, are the stable model's."""
        self._split = None
        with self._lock:
            self._answered.clear()
            self._drawn.clear()
        for arm in self._canaries:
            arm.counts = arm.is_canary = False
            arm.plan_id = self._stable_id
            arm.batches = {}
        self._canaries = []

    @property
    def has_canary(self) -> bool:
        """Whether some of the jobs that come now are a canary's."""
        return self._split is not None

    def draw(self, job: Job) -> Arm | None:
        """Return the arm of a job; None while there is no canary."""
        split, present = self._split, self._present
        if split is None:
            return None
        draw = self._draw(job) if self._key else None
        is_canary = split.is_canary(job.id) if draw is None else split.is_canary(draw.key, draw.epoch)
        arm = present[is_canary, job.attempt == 1 and self._is_new(job.id)]
        if arm.counts:
            self.watch.note_drawn(arm.share, canary=is_canary, draw=draw)
        return arm

    def _draw(self, job: Job) -> Draw:
        """Return what is drawn for a job; for one that comes again soon, what was drawn before."""
        with self._lock:
            draw = self._drawn.get(job.id)
            if draw is None:
                value = job.attributes.get(self._key)
                key = f"job {job.id}" if value is None else f"{self._key} {value}"
                draw = self._drawn[job.id] = Draw(key, epoch_of(time.time()))
                if len(self._drawn) > _NUM_DRAWN:
                    self._drawn.popitem(last=False)
            return draw

    def drawn_for(self, job: Job) -> Draw | None:
        """Return what was drawn for a job where keys are drawn, if it came not long ago."""
        return self._drawn.get(job.id)

    def rescue(self, item: Ending) -> None:
        """Give an item that the canary failed to the stable model; its end says nothing more."""
        self.num_rescued += 1
        item.arm = self._rescued
        item.job.plan_id = self._stable_id

    def note_end(self, item: Ending, outcome: Outcome) -> None:
        """Note how a job ended that a model has answered."""
        arm, job = item.arm, item.job
        if arm is None or not arm.counts or outcome.kind is OutcomeKind.RETURNED:
            return
        if outcome.kind is OutcomeKind.DELIVERED or outcome.undelivered:
            self.watch.note_good(arm.share, canary=arm.is_canary, draw=self.drawn_for(job))
            self._remember(job.id, arm)
        else:
            draw = self.drawn_for(job)
            self.watch.note_failed(arm.share, job.id, canary=arm.is_canary, why=outcome.reason, draw=draw)

    def note_feedback(self, job_id: str, *, bad: bool) -> bool:
        """Note what a user said of a job's answer; return whether it counts: once, and of jobs that ended not long ago."""
        with self._lock:
            arm = self._answered.pop(job_id, None)
        if arm is not None:
            share, is_canary = arm
            self.watch.note_feedback(share, canary=is_canary, bad=bad, draw=self._drawn.get(job_id))
        return arm is not None

    def _is_new(self, job_id: str) -> bool:
        """Return whether an id comes for the first time: the same one always falls to the same arm, which is no draw."""
        with self._lock:
            if job_id in self._known:
                return False
            self._known[job_id] = None
            if len(self._known) > _NUM_DRAWN:
                self._known.popitem(last=False)
            return True

    def _remember(self, job_id: str, arm: Arm) -> None:
        with self._lock:
            self._answered[job_id] = arm.share, arm.is_canary
            if len(self._answered) > _NUM_ANSWERED:
                self._answered.popitem(last=False)
