"""Whether the service lives, and whether it can answer: `/livez` and `/readyz`.

Ready cannot lie: it says so only if a real item went through the whole pipeline a moment ago, in time. Where no requests do
that, a probe does: an item of the user's own, or a photograph of ours. The first item is always a probe; while requests are
answered none is sent, as it would take their place, and be refused where too much comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.pipeline.watching import RunInProgress
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.front_door import FrontDoor, State
from headrace.serve.http.request import Answer, Request, json_answer
from headrace.serve.http.routes import Routes

logger = logging.getLogger("headrace")

#: How often an idle service tries itself, how long a success proves something, and how soon it tries again without one: after
#: each failure in a row twice as long, up to the first of these, as each is one more item in the log and the totals.
_PROBE_SECONDS, _PROOF_SECONDS, _AGAIN_SECONDS = 5.0, 15.0, 0.5
_FIRST_SECONDS = 0.05
#: A call hangs that takes longer than the slowest of warm-up by more than this, and by more than so many times that: what hangs
#: is seen within 3 s where no call takes more than one. Less would take a call for hung that shares its cores with others.
_HUNG_SECONDS, _HUNG_TIMES = 2.0, 2.0
#: So much more is given to calls that may wait on the outside, or for a process that is started again.
_LATE_SECONDS = 60.0
#: For so long a call hangs until it is given up, where somebody does that: as long as orchestrators wait that ask `/livez`.
_GIVE_UP_SECONDS = 20.0
#: How long the answer to a probe may take: whoever asks for it gave up long before.
_PROBE_LIMIT_SECONDS = 5.0


@dataclass(slots=True)
class _Proof:
    """What was last seen of one task."""

    succeeded_at: float | None = None
    failure: str = "no item has gone through the pipeline yet"
    num_failed: int = 0
    """In a row."""
    again_at: float = 0.0
    """When it may be tried again."""


@dataclass
class Health:
    """Of one service; thread-safe.

    Args:
        door: Where probes go in.
        probes: {task: payload} to try the pipeline with; tasks without one count as ready once the door is open.
    """

    door: FrontDoor
    probes: Mapping[str, Any]
    on_ready: Callable[[], object] = lambda: None
    """Called once, by the thread that probes, when the service can answer for the first time."""
    on_proof: Callable[[str, Any], object] = lambda task, result: None
    """Called with the result of each probe; must not block."""
    on_hung: Callable[[str], object] = lambda why: None
    """Called with what hangs, by the thread that probes, while that has hung for long."""
    answered_at: Callable[[str], float | None] = lambda task: None
    """Returns when a request of a task was last answered with a result, seconds of the host's monotonic clock."""
    _run: RunInProgress | None = None
    _proofs: dict[str, _Proof] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Begin with nothing proved."""
        self._proofs = {task: _Proof() for task in self.probes}

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("GET", "/livez", self._answer_live)
        routes.add("GET", "/readyz", self._answer_ready)

    def watch(self, run: RunInProgress) -> Health:
        """Look at a run that is about to begin; the context manager that the run enters."""
        self._run = run
        return self

    def __enter__(self) -> Health:
        threading.Thread(target=self._keep_probing, name="prober", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()

    def why_not_live(self) -> str:
        """Return what hangs; empty: nothing does."""
        run = self._run
        if run is None:
            return ""
        slowest = max((max(seconds) for curve in run.warm_ups for seconds in curve.seconds.values()), default=0.0)
        if not run.warm_ups and not any(proof.succeeded_at for proof in self._proofs.values()):
            return ""
        soon = slowest + max(_HUNG_SECONDS, _HUNG_TIMES * slowest)
        for lasts, limit in zip(run.longest_calls(), (soon, soon + _LATE_SECONDS), strict=True):
            if lasts > limit:
                return (
                    f"a call of a stage lasts {lasts:.1f} s by now; more than {limit:.1f} s is taken for hung, as the slowest "
                    f"call of warm-up took {slowest:.2g} s"
                )
        return ""

    def why_not_ready(self) -> str:
        """Return what is missing; empty: it can answer."""
        if self.door.state is not State.OPEN:
            return str(self.door.state)
        for task, proof in self._proofs.items():
            if not self._is_proved(task, _PROOF_SECONDS):
                return f"{f'task {task}: ' if task else ''}{proof.failure}"
        return self.why_not_live()

    def note(self, task: str, ended: Ended) -> None:
        """Note how a probe ended."""
        proof = self._proofs[task]
        now = time.monotonic()
        if ended.code:
            proof.failure = f"the probe failed: {ended.reason}"
            proof.again_at = now + min(_AGAIN_SECONDS * 2**proof.num_failed, _PROBE_SECONDS)
            proof.num_failed = min(proof.num_failed + 1, 10)
        else:
            proof.succeeded_at, proof.failure = now, "nothing has gone through the pipeline of late"
            proof.num_failed = 0
            try:
                self.on_proof(task, ended.result)
            except Exception:  # what is learned from it is no part of being ready
                logger.exception("nothing is learned from what came of a probe")

    def _answer_live(self, request: Request) -> Answer:
        return _say(self.why_not_live(), "live")

    def _answer_ready(self, request: Request) -> Answer:
        return _say(self.why_not_ready(), "ready")

    def _keep_probing(self) -> None:
        pause, was_ready, lived_at = _FIRST_SECONDS, False, time.monotonic()
        while not self._is_over.wait(pause):
            if not (why := self.why_not_live()):
                lived_at = time.monotonic()
            elif time.monotonic() - lived_at > _GIVE_UP_SECONDS:
                self.on_hung(why)
            if not was_ready and not self.why_not_ready():
                was_ready = True
                self.on_ready()
            pause = _PROBE_SECONDS if was_ready else _FIRST_SECONDS
            for task, proof in self._proofs.items():
                if self._is_proved(task, _PROBE_SECONDS):
                    continue
                if time.monotonic() < proof.again_at or not self._probe(task):
                    pause = min(pause, _AGAIN_SECONDS)

    def _is_proved(self, task: str, seconds: float) -> bool:
        """Return whether an item of a task came out within the last seconds, after a probe had."""
        first = self._proofs[task].succeeded_at
        if first is None:
            return False
        return time.monotonic() - max(first, self.answered_at(task) or first) < seconds

    def _probe(self, task: str) -> bool:
        """Send an item through the pipeline and return whether it came out in time."""
        done = threading.Event()

        def note(ended: Ended) -> None:
            self.note(task, ended)
            done.set()

        ticket = self.door.submit(Work(payload=self.probes[task], on_end=note, task=task, priority=0, is_own=True))
        if isinstance(ticket, Refused):
            return False
        # The first one opens and warms the model, and no limit fits every model.
        is_first = self._proofs[task].succeeded_at is None
        while not done.wait(_AGAIN_SECONDS if is_first else _PROBE_LIMIT_SECONDS):
            if self._is_over.is_set() or not is_first:
                ticket.cancel()
                self._proofs[task].failure = f"a probe was not answered within {_PROBE_LIMIT_SECONDS:.0f} s"
                return False
        return self._is_proved(task, _PROBE_SECONDS)


def _say(why_not: str, state: str) -> Answer:
    return (
        json_answer(503, {"status": "not " + state, "reason": why_not})
        if why_not
        else json_answer(200, {"status": state})
    )
