"""Runs a canary beside a running pipeline: another model for a share of the jobs, which grows or goes by what is seen of it.

How this works: a thread of its own looks at the canary's folder. Where a canary was started there, it opens the models of that
canary's Plan beside the present ones, tries them on copies of recent batches, and then lets `Arms` draw jobs. Every second it
hears what users said of this worker's answers to another one and writes down what this worker saw, and one of the workers adds
up what all saw and decides (`base.policies.canary`); each takes up the new state when it next looks. What trips a wire does not
wait for that: the thread that saw it takes the canary back at once, by one assignment, and the state follows. Both models stay
open meanwhile, so nothing is loaded on the way back.

A promoted canary goes on as a canary with all jobs: the way back stays as short until the run is started again with its Plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.log_events import EventText
from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.canary import Decision, judge
from headrace.base.policies.canary_watch import CanaryWatch
from headrace.base.policies.keyed_watch import KeyedWatch
from headrace.base.protocols import Model
from headrace.base.settings import build
from headrace.pipeline.arms import Arms
from headrace.pipeline.canary_calls import CanaryCalls, Judges
from headrace.pipeline.following import in_place, open_next
from headrace.pipeline.model_slots import ModelSlot, ModelSlots
from headrace.runs.canary_folder import CallMark, CanaryFolder
from headrace.runs.formats.canary import CanaryAct, CanaryState

logger = logging.getLogger("headrace.run")

#: How often the folder is looked at (a rollback by hand is to be taken up within 50 ms), and how often what was seen is written
#: down and judged.
LOOK_SECONDS, JUDGE_SECONDS = 0.03, 1.0

_ACTS: dict[str, CanaryAct] = {"step": "step", "promote": "promoted", "roll back": "rolled back"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPlace:
    """Where canaries are started for a run, and who judges their answers."""

    folder: Path
    judges: Judges
    record: Callable[[CanaryState], object] = lambda state: None
    """Called by the worker that decided, after each step, promotion or rollback."""
    say: Callable[[str], object] = lambda text: None


class CanaryRunner:
    """The thread; enter it while the pipeline runs.

    Args:
        place: Where canaries are started.
        slots: Of the run.
        arms: Of the run.
        plan: The run's, resolved.
        note_plan: Called with the Plan of each canary before its first job.
    """

    def __init__(
        self, place: CanaryPlace, slots: ModelSlots, arms: Arms, plan: Plan, note_plan: Callable[[Plan], object]
    ) -> None:
        self._place = place
        self._folder = CanaryFolder(place.folder)
        self._slots = slots
        self._arms = arms
        self._plan = plan
        self._note_plan = note_plan
        self._mark = CallMark(self._folder)
        self._state: CanaryState | None = None
        self._twins = contextlib.ExitStack()
        self._written = 0.0
        self._trouble = ""
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)

    def __enter__(self) -> CanaryRunner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join()
        self._twins.close()
        if self._state is not None:
            self._folder.write_seen(self._state.id, self._arms.watch.seen())
        self._mark.close()

    def _run(self) -> None:
        while not self._ended:
            try:
                self.look()
            except Exception as error:  # a canary must not end the run beside which it lives
                if str(error) != self._trouble:  # once: it is looked at many times a second
                    logger.exception("the canary of %s cannot be looked after", self._folder.path)
                self._trouble = str(error)
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def look(self) -> None:
        """Take up the state of the folder, and judge where it is time to."""
        try:
            state = self._folder.read()
        except HeadraceError:
            self._lose("cannot be read")
            raise
        if state is None:
            self._lose("is gone")
            return
        self._arms.status, self._arms.share = state.status, state.share
        for worker in self._folder.find_dead():
            state = self._roll_back(state, f"death: a worker ({worker}) died within a call of the canary's model")
        self._take_up(state)
        if self._state is None or self._state.status == "rolled back":
            return
        trips, now = self._arms.watch.seen().trips, time.time()
        if trips:
            self._take_up(self._roll_back(state, trips[0]))
        elif state.status == "running" and now - self._written >= JUDGE_SECONDS:
            self._written = now
            self._folder.write_seen(state.id, self._arms.watch.seen())
            self._decide(now)
            self._hear()

    def _hear(self) -> None:
        """Count what users said of this worker's answers to another one."""
        for said in self._folder.hear():
            self._arms.note_feedback(said.id, bad=not said.good)

    def take_back(self) -> None:
        """Take the canary back in this worker, at once; any thread. The state follows."""
        self._arms.end()
        self._wake.set()

    def _lose(self, what: str) -> None:
        """Take the canary back: nobody can say any more what is wanted of it."""
        state = self._state
        self._close(None)
        if state is not None and state.status != "rolled back":
            self._place.say(f"canary {state.id}: its state {what}; the stable model answers all jobs")

    # --- what a state means for this worker

    def _take_up(self, state: CanaryState) -> None:
        mine = self._state
        if mine is not None and (mine.id, mine.status, mine.step) == (state.id, state.status, state.step):
            return
        if state.status == "rolled back":
            self._close(state)
        elif mine is None or mine.id != state.id:
            self._open(state)
        else:
            self._begin(state, self._plan_of(state))
            self._state = state

    def _open(self, state: CanaryState) -> None:
        """Open a canary's models beside the present ones, once there are batches on which to try them."""
        if not self._slots.all() or not all(slot.samples() for slot in self._slots.all()):
            return
        self._close(None)
        plan = self._plan_of(state)
        try:
            self._check(state)
            opened = self._open_models(plan)
        except HeadraceError as error:
            self._take_up(self._roll_back(state, f"open: {error}"))
            return
        self._arms.watch = KeyedWatch() if state.policy.key else CanaryWatch()
        self._note_plan(plan)
        for slot, model in opened:
            calls = CanaryCalls(
                *(model, self._arms, self._place.judges),
                mark=self._mark, tripped=self.take_back, max_slowdown=state.policy.max_slowdown,
            )  # fmt: skip
            slot.variants.append(dict(model.variant))
            if state.status == "running":
                self._twins.enter_context(calls.start_twins(slot.model))
            slot.canary = calls
        self._begin(state, plan)
        self._state = self._name_plans(state, plan)
        self._place.say(
            EventText(
                f"canary {state.id} ({plan.plan_id}) is open: {_share_of(state)}", "canary_step", plan=plan.plan_id
            )
        )

    def _begin(self, state: CanaryState, plan: Plan) -> None:
        self._arms.begin(state.id, plan.plan_id, state.share, state.batches, state.policy.key)

    def _close(self, state: CanaryState | None) -> None:
        """Take the canary back, and let go of its models when their last calls have ended."""
        if self._state is not None and self._state.status != "rolled back":
            self._arms.end()
            for slot in self._slots.all():
                slot.canary = None
            self._twins.close()
            with contextlib.suppress(OSError):  # the folder may be gone
                self._folder.write_seen(self._state.id, self._arms.watch.seen())
            if state is not None and state.steps[-1].by == "user":
                self._place.say(_describe(state))
        self._state = state

    def _check(self, state: CanaryState) -> None:
        """Raise HeadraceError if this run cannot do what a canary wants."""
        others = self._folder.find_others()
        if state.policy.key and others:
            raise HeadraceError(
                f"its key {state.policy.key} is drawn in runs of one process, and {len(others) + 1} share {self._folder.path}: "
                "start it without --key, or the run without --supervise"
            )
        takers = [name for name, stage in self._plan.stages.items() if stage.batch is not None]
        for name in state.batches:
            if name not in takers:
                raise HeadraceError(
                    f"its Plan says stages.{name}.batch, and no stage of this run has that name and takes batches; "
                    f"expected one of {', '.join(takers) or 'none'}"
                )

    def _open_models(self, plan: Plan) -> list[tuple[ModelSlot, Model]]:
        found = []
        opened: dict[str, Model] = {}
        for slot in self._slots.all():
            settings, present = plan.model_of(slot.task), self._plan.model_of(slot.task)
            if settings.input_side != present.input_side:
                raise HeadraceError(
                    f"its model takes images of another size (input_side {settings.input_side or 'as the module says'}, now "
                    f"{present.input_side or 'as the module says'}); all jobs are resized alike, so start another run for it"
                )
            model = open_next(slot, settings, opened)
            _try_out(model, slot)
            found.append((slot, model))
        return found

    def _plan_of(self, state: CanaryState) -> Plan:
        model = build(ModelPlan, state.model, "[model]")
        models = {key: build(ModelPlan, one, f"[models.{key}]") for key, one in state.models.items()}
        settled = {key: in_place(one, self._plan.model_of(key)) for key, one in models.items()}
        batches = {name: size for name, size in state.batches.items() if name in self._plan.stages}
        stages = {
            name: dataclasses.replace(stage, batch=batches.get(name, stage.batch))
            for name, stage in self._plan.stages.items()
        }
        model = in_place(model, self._plan.model)
        return dataclasses.replace(self._plan, model=model, models=settled, stages=stages)

    # --- what is decided

    def _decide(self, now: float) -> None:
        """Judge for all workers, unless another one has just done so."""
        with self._folder.locked():
            state = self._folder.read()
            mine = self._state
            if state is None or mine is None or state.id != mine.id or state.status != "running":
                return
            # On many machines; one whose clock is ahead keeps nobody from judging.
            if abs(now - state.judged_unix_seconds) < JUDGE_SECONDS / 2:
                return
            seen = self._folder.sum_seen(state.id)
            decision = judge(state.policy, seen, state.step, max(0.0, now - state.since_unix_seconds))
            after = self._decided(state, decision, now)
            self._folder.write(after)
        if after.steps != state.steps:
            self._tell(after)
        self._take_up(after)

    def _decided(self, state: CanaryState, decision: Decision, now: float) -> CanaryState:
        judged = msgspec.structs.replace(
            state, findings=decision.findings, judged_unix_seconds=now, reason=decision.reason
        )
        act = _ACTS.get(decision.action)
        return judged if act is None else judged.done(act, now, decision.reason, "headrace")

    def _name_plans(self, state: CanaryState, plan: Plan) -> CanaryState:
        with self._folder.locked():
            present = self._folder.read() or state
            if present.id != state.id:
                return state
            named = msgspec.structs.replace(present, plan_id=plan.plan_id, stable_plan_id=self._plan.plan_id)
            self._folder.write(named)
            return named

    def _roll_back(self, state: CanaryState, reason: str) -> CanaryState:
        """Write down that a canary is rolled back, and return the state, which another worker may have changed before."""
        with self._folder.locked():
            present = self._folder.read() or state
            if present.id != state.id or present.status == "rolled back":
                return present
            after = present.done("rolled back", time.time(), reason, "headrace")
            self._folder.write(after)
        self._tell(after)
        return after

    def _tell(self, state: CanaryState) -> None:
        self._place.record(state)
        self._place.say(_describe(state))


def _try_out(model: Model, slot: ModelSlot) -> None:
    """Warm a model up on copies of recent batches; raise HeadraceError if it refuses one that the present model takes."""
    for batch in slot.samples():
        try:
            model(batch)
        except Exception as error:  # engines raise their own types
            if _takes(slot.model, batch):
                raise HeadraceError(f"its model refuses a batch of this run: {error}") from error


def _takes(model: Model, batch: Any) -> bool:
    try:
        model(batch)
    except Exception:
        return False
    return True


def _describe(state: CanaryState) -> EventText:
    act = state.steps[-1].act
    level = logging.WARNING if act == "rolled back" else logging.INFO
    text = f"canary {state.id}: {act}, {_share_of(state)}: {state.reason}"
    return EventText(text, "canary_step", level, plan=state.plan_id, code=act)


def _share_of(state: CanaryState) -> str:
    is_shadow = state.status == "running" and not state.share
    return "as a shadow" if is_shadow else f"{state.share:.0%} of the jobs"
