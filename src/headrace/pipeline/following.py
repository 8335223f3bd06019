"""Takes up another model while a pipeline runs: whenever the Plan's file changes, be it by `optimize -o` or a rollback.

How this works: a thread of its own looks at the file once a second. If its `[model]` tables name another variant, the new
model is opened, warmed up on copies of recent batches, and held against the old one on them, on this machine: what was
validated elsewhere may run in another precision here. Only then do the slots (`model_slots`) switch, all of them or none. A
model that cannot be opened, or that a judge turns down, changes nothing; it is said, and not tried again until the file
changes.

What was in production needs no judge, so that the way back is open from a model that is wrong: a variant that ran here before,
by its hash and settings, and the module's own as a start without a Plan would take it, if its file is what it was when the run
began.

An empty file is no Plan, and one that is gone counts once it was gone for some seconds: both happen while a file is written.

Nothing else of a Plan can change under a running pipeline; that is said too.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import EngineError, HeadraceError
from headrace.base.log_events import EventText
from headrace.base.meaning import Declared
from headrace.base.plan import ModelPlan, Plan
from headrace.base.protocols import Model
from headrace.base.toml import parse_toml
from headrace.engines import open_model
from headrace.engines.model_files import model_files
from headrace.pipeline.model_slots import ModelSlot, ModelSlots

logger = logging.getLogger("headrace.run")

#: How often the file is looked at.
LOOK_SECONDS = 1.0
#: Looks in a row, after the first, at which a deleted file is still gone before that counts: editors and tools that replace a
#: file may delete it for a moment.
LOOKS_GONE = 3

#: Given the answers of the model in use and of the new one to the same batches, the new one's `[model]` table, and what is
#: known of the answers: why it may not take over, or None.
Judge = Callable[[Sequence[Any], Sequence[Any], ModelPlan, Declared], str | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What is followed, and who decides."""

    file: Path
    judge: Judge
    text: str | None = None
    """What stood in it when the run's Plan was read; None: as it is when the run begins."""
    settings: Sequence[str] = ()
    """`KEY=VALUE` of the command line, which replace what stands in the file, now and whenever it changes."""
    say: Callable[[str], object] = lambda text: None
    """Told of each switch and each refusal."""


class PlanFollower:
    """The thread that follows a Plan's file.

    Args:
        following: The file, and who decides.
        slots: Of the run.
        plan: The run's, resolved.
        switched: Called after a switch with the Plan that is in force now.
    """

    def __init__(self, following: Following, slots: ModelSlots, plan: Plan, switched: Callable[[Plan], object]) -> None:
        self._following = following
        self._file = following.file.absolute()  # as it is meant now: code of the run may go to another folder
        self._complaint = ""
        self._slots = slots
        self._plan = plan
        self._switched = switched
        self._seen = following.text if following.text is not None else self._text()
        self._half_seen = self._seen
        self._num_same = 0
        self._written = self._parse(self._seen) or plan
        self._own: dict[str, str | None] = {}
        """{a module's model file: its hash when the run began}."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="plan-follower", daemon=True)

    def __enter__(self) -> PlanFollower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # a follower must not end the run that it follows
                logger.exception("%s cannot be followed", self._following.file)

    def look(self) -> bool:
        """Look at the file; return whether models were switched."""
        for default in {slot.default for slot in self._slots.all() if slot.default is not None} - self._own.keys():
            self._own[default] = _hash_of(default)
        text = self._text()
        if text != self._half_seen:
            self._half_seen = text  # it may be half written: a text counts once it was read twice
            self._num_same = 0
            return False
        if text == self._seen:
            return False
        self._num_same += 1
        if not self._counts(text):
            return False
        self._seen = text
        wanted = self._parse(text)
        if wanted is None:
            return False
        in_force = (self._written.model, self._written.models)
        if _fixed(wanted) != _fixed(self._written):
            self._say("only the model of a Plan can change while it runs; for the rest, start again")
            self._written = dataclasses.replace(wanted, model=in_force[0], models=in_force[1])
        if (wanted.model, wanted.models) == in_force or not self._switch(wanted):
            return False
        self._written = wanted  # after a refusal the next change of the file is another try
        return True

    def _counts(self, text: str | None) -> bool:
        """Return whether what was read is a Plan: an empty file is none, and a deleted one only once it stays away."""
        if text is None:
            if self._num_same == 1:
                self._say(
                    f"the Plan in use stays: the file is gone; if it is not back within {LOOKS_GONE * LOOK_SECONDS:g} s, the "
                    "defaults are taken"
                )
            return self._num_same >= LOOKS_GONE
        if text.strip():
            return True
        if self._num_same == 1:
            self._say("the Plan in use stays: the file is empty, which is no Plan; delete it to take the defaults")
        return False

    def _switch(self, wanted: Plan) -> bool:
        """Open, warm up and judge a model for each slot; switch all or none."""
        ready: list[tuple[ModelSlot, Model]] = []
        opened: dict[str, Model] = {}
        if not self._slots.all():
            self._say("the model stays: none is open yet; write the file again later")
            return False
        for slot in self._slots.all():
            settings, before = wanted.model_of(slot.task), self._plan.model_of(slot.task)
            if settings.input_side != before.input_side:
                sides = [one.input_side or "as the module's" for one in (settings, before)]
                self._say(
                    f"the model stays: the new one takes images of another size (input_side {sides[0]}, was {sides[1]}), and "
                    "some are under way; start the run again to use it"
                )
                return False
            try:
                model = open_next(slot, in_place(settings, before), opened)
                refusal = self._refusal(slot, model, settings)
            except HeadraceError as error:
                refusal = str(error)
            if refusal is not None:
                self._say(f"the model stays: {refusal}")
                return False
            ready.append((slot, model))
        for slot, model in ready:
            slot.switch(model)
        in_use = self._plan
        models = {key: in_place(one, in_use.model_of(key)) for key, one in wanted.models.items()}
        self._plan = dataclasses.replace(in_use, model=in_place(wanted.model, in_use.model), models=models)
        self._switched(self._plan)
        names = ", ".join(
            f"{model.variant.get('artifact', '?')} on {model.variant.get('engine')}" for _, model in ready
        )
        said = f"{self._following.file}: switched to {names} (plan {self._plan.plan_id})"
        self._following.say(EventText(said, "plan_changed", plan=self._plan.plan_id))
        return True

    def _refusal(self, slot: ModelSlot, model: Model, settings: ModelPlan) -> str | None:
        samples = slot.samples()
        if not samples:
            return "no batch has been through yet on which the new one could be tried; write the file again later"
        try:
            after = [model(batch) for batch in samples]
        except Exception as error:  # engines raise their own types
            return f"{model.variant.get('artifact')} on {settings.engine} refuses a batch of this run: {error}"
        if dict(model.variant) in slot.variants or self._is_own(slot, settings):
            return None
        before = [slot.model(batch) for batch in samples]
        refusal = self._following.judge(before, after, settings, slot.declared)
        return refusal and f"{refusal}; whoever wants it all the same starts the run again"

    def _is_own(self, slot: ModelSlot, settings: ModelPlan) -> bool:
        """Return whether a model is what a new start without a Plan would open, and its file what it was."""
        bare = Plan().with_settings(self._following.settings).model_of(slot.task)
        if settings != dataclasses.replace(bare, threads=settings.threads, sha256=settings.sha256):
            return False
        return slot.default is None or _hash_of(slot.default) == self._own.get(slot.default, "")

    def _text(self) -> str | None:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            text = None  # taken back to none, perhaps: see _counts
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._say(f"the Plan in use stays: the file cannot be read: {error}")
            return getattr(self, "_seen", None)
        self._complaint = ""
        return text

    def _parse(self, text: str | None) -> Plan | None:
        try:
            return Plan.from_table(parse_toml(text or "")).with_settings(self._following.settings)
        except (HeadraceError, ValueError) as error:
            self._say(f"the model stays: {error}")
            return None

    def _say(self, text: str) -> None:
        self._following.say(f"{self._following.file}: {text}")


def _fixed(plan: Plan) -> Plan:
    """Return what cannot change while a Plan runs: all but its models, and of these what workers were started for."""
    models = {key: in_place(ModelPlan(), one) for key, one in plan.models.items()}
    return dataclasses.replace(plan, model=in_place(ModelPlan(), plan.model), models=models)


def in_place(model: ModelPlan, before: ModelPlan) -> ModelPlan:
    """Return the settings of another model with what workers were started for, which cannot change."""
    return dataclasses.replace(model, instances=before.instances, devices=before.devices, uses=before.uses)


def _hash_of(file: str) -> str | None:
    try:
        return model_files(Path(file)).sha256()
    except EngineError:
        return None


def open_next(slot: ModelSlot, settings: ModelPlan, opened: dict[str, Model]) -> Model:
    """Return a slot's new model: slots that shared one, as stages of one file do, share the next one too."""
    settings = settings.on_device(slot.device)
    key = repr((settings, settings.artifact or slot.default, slot.threads, slot.calls))
    if key not in opened:
        opened[key] = open_model(settings, slot.default, slot.threads, slot.calls)
    return opened[key]
