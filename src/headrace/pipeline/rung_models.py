"""Cheaper variants of a model as rungs of a budget's ladder: opened when a rung is reached, and closed when it is left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.base.plan import Plan
from headrace.base.protocols import Model
from headrace.engines.model_files import model_files
from headrace.pipeline.following import in_place, open_next
from headrace.pipeline.model_slots import ModelSlot, ModelSlots

logger = logging.getLogger("headrace.run")


class RungModels:
    """Puts the models of a rung's Plan into the slots of a run; used by one thread.

    Args:
        slots: Of the run.
        plan: The run's own.
    """

    def __init__(self, slots: ModelSlots, plan: Plan) -> None:
        self._slots = slots
        self._in_force = plan

    def hold_to(self, plan: Plan) -> None:
        """Switch to the models of a Plan, all or none; one that cannot be opened or called is told, and nothing changes."""
        opened: dict[str, Model] = {}
        ready: list[tuple[ModelSlot, Model]] = []
        try:
            for slot in self._slots.all():
                wanted, before = plan.model_of(slot.task), self._in_force.model_of(slot.task)
                if wanted != before:
                    model = open_next(slot, in_place(wanted, before), opened)
                    for batch in slot.samples()[-1:]:
                        model(batch)  # what is set up at the first call is no item's to wait for
                    ready.append((slot, model))
        except Exception as error:  # engines raise their own types
            logger.warning("[budget] the model stays, because that of the rung cannot be used: %s", error)
            return
        for slot, model in ready:
            slot.switch(model)
        if self._slots.all():
            self._in_force = plan


def changes_models(plans: Sequence[Plan]) -> bool:
    """Return whether a ladder's Plans have other models than its first."""
    return any((plan.model, plan.models) != (plans[0].model, plans[0].models) for plan in plans)


def check_models(plans: Sequence[Plan]) -> None:
    """Look whether the model files of the rungs are there.

    Raises:
        EngineError: If one is not, or is refused.
    """
    for plan in plans[1:]:
        for model in (plan.model, *plan.models.values()):
            if model.artifact is not None:
                model_files(Path(model.artifact))
