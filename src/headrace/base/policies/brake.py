"""When a run in which nothing succeeds stops receiving, and when it tries again: one brake for all that is not one job's fault.

A typo in the model's code, messages of another system, a receiver that the rules refuse, a full disk: each fails every job, and
without a brake every job uses up its tries within seconds. The rules:

- Jobs that fail in a row, none between them having succeeded, put the brake on: `jobs` of them where none ever succeeded,
  `jobs_later` afterwards. Two shortages of the machine in a row do too. Each job counts once: that one which failed fails again
  is no news. What a job is rejected for is its own fault as soon as one has succeeded.
- While it is on nothing is received but one job, then two, then four at growing intervals, and what fails is given back without
  its counting against the job. Any success lets the brake go. So bad messages before good ones delay a queue by seconds.
- A source that ends is not waited for without end: after some tries in vain the run is hopeless.

A shortage does not count against a job, unless that job alone met several: then it needs more than there is. A full disk is
nobody's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

#: Jobs known to fail that are remembered.
_NUM_REMEMBERED = 10_000
#: Shortages that one job may meet while no other does, before they count against it.
_MOST_SHORTAGES = 3


class Fault(StrEnum):
    """Whose fault a failure may be."""

    JOB = "job"
    """It was rejected: the job's own, unless every job is."""
    WORK = "work"
    """The code, the model, the network or the job: nobody can tell by one."""
    SHORTAGE = "shortage"
    """Something is missing on this machine."""
    DISK = "disk"
    """Room on a disk is, which others may make at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakePolicy:
    """The settings of a `Brake`."""

    jobs: int = 5
    """Jobs that fail in a row from the start before the brake is put on; 0: it never is."""
    jobs_later: int = 20
    """The same once a job has succeeded."""
    shortages: int = 2
    """Shortages in a row that do it at any time."""
    first_seconds: float = 0.5
    """Pause before the first try; doubles with each in vain."""
    max_seconds: float = 15.0
    """Longest pause between two tries."""
    most_tried: int = 16
    """Jobs that are tried at once at most, twice as many with each try in vain: behind many bad ones a good one is found."""
    tries: int | None = None
    """Failed tries after which the run is given up; None: never."""
    disk_seconds: float = 600.0
    """Time after which a run with a full disk is given up, if `tries` is given."""


class Brake:
    """Counts how jobs end, and says what may be received. Not thread-safe but for `note_success` and the attributes.

    Args:
        policy: The settings.

    Attributes:
        is_on: Whether the brake is on.
        is_hopeless: Whether there is no sense in trying on.
        num_engaged: How often it was put on.
        num_tries: Tries in vain since it was put on.
        num_failed: Failures since the last success.
    """

    def __init__(self, policy: BrakePolicy | None = None) -> None:
        self.is_on = False
        self.is_hopeless = False
        self.num_engaged = 0
        self.num_tries = 0
        self.num_failed = 0
        self._policy = policy or BrakePolicy()
        self._num_succeeded = 0
        self._row: set[str] = set()
        self._num_shortages = 0
        self._last_short: str | None = None
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._fault = Fault.WORK
        self._since = 0.0
        self._try_at = 0.0

    def note_success(self) -> bool:
        """Note that the work on a job succeeded, and return whether that lets the brake go; cheap while all is well."""
        self._num_succeeded += 1
        if not self.num_failed:
            return False
        was_on, self.is_on, self.is_hopeless = self.is_on, False, False
        self._row = set()
        self.num_failed = self._num_shortages = self.num_tries = 0
        return was_on

    def note_failure(self, job_id: str, fault: Fault, now: float) -> float | None:
        """Note that a job failed.

        Args:
            job_id: Of the source.
            fault: Whose it may be.
            now: Seconds of any clock that does not jump.

        Returns:
            None if the failure counts as usual; else the seconds after which to give the job back, without counting the
            failure.
        """
        if not self._policy.jobs:
            return None
        is_shortage = fault in (Fault.SHORTAGE, Fault.DISK)
        is_known, is_excused = self._remember(job_id, fault)
        if fault is Fault.JOB and self._num_succeeded:
            return None
        self.num_failed += 1
        if is_shortage and (fault is Fault.DISK or job_id != self._last_short):
            self._num_shortages += 1
        self._last_short = job_id if is_shortage else None
        if not is_known:
            self._row.add(job_id)
        if self.is_on:
            self._note_vain_try(fault, now)
        elif self._is_too_much():
            self._put_on(fault, now)
        if self.is_on:
            return 4 * self._pause()
        return 1.0 if is_shortage and is_excused else None

    def find_limit(self, now: float) -> int | None:
        """Return how many jobs may be in flight; None: any number."""
        if not self.is_on:
            return None
        if now < self._try_at or self.is_hopeless:
            return 0
        if self._fault in (Fault.SHORTAGE, Fault.DISK):
            return 1
        return min(self._policy.most_tried, 1 << min(self.num_tries, 60))

    def seconds_to_try(self, now: float) -> float | None:
        """Return after which time to call `find_limit` again; None: when a job has ended."""
        return self._try_at - now if self.is_on and now < self._try_at else None

    def _is_too_much(self) -> bool:
        policy = self._policy
        most = policy.jobs_later if self._num_succeeded else policy.jobs
        return len(self._row) >= most or self._num_shortages >= policy.shortages

    def _put_on(self, fault: Fault, now: float) -> None:
        self.is_on, self.num_tries, self._fault, self._since = True, 0, fault, now
        self.num_engaged += 1
        self._try_at = now + self._pause()

    def _note_vain_try(self, fault: Fault, now: float) -> None:
        if now < self._try_at:
            return  # it was inside already
        self._fault = fault
        self.num_tries += 1
        self._try_at = now + self._pause()
        tries = self._policy.tries
        if tries is not None:
            is_disk = fault is Fault.DISK
            self.is_hopeless = now - self._since >= self._policy.disk_seconds if is_disk else self.num_tries >= tries

    def _pause(self) -> float:
        doublings = min(self.num_tries, 60)  # by then any pause has met its limit
        return min(self._policy.max_seconds, self._policy.first_seconds * 2.0**doublings)

    def _remember(self, job_id: str, fault: Fault) -> tuple[bool, bool]:
        """Return whether a job failed before, and whether a shortage does not count against it."""
        known = self._known.get(job_id)
        num_alone, succeeded = known or (0, self._num_succeeded)
        if fault is Fault.SHORTAGE and (succeeded != self._num_succeeded or self._last_short == job_id):
            num_alone += 1
        self._known[job_id] = num_alone, self._num_succeeded
        self._known.move_to_end(job_id)
        if len(self._known) > _NUM_REMEMBERED:
            self._known.popitem(last=False)
        return known is not None, num_alone < _MOST_SHORTAGES
