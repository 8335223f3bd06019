"""Cheaper variants of a model as rungs of a budget's ladder: opened when a rung is reached, and closed when it is left."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.base.protocols import Model
from headrace.engines import why_not
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

    def hold_to(self, plan: Plan) -> Plan:
        """Switch to the models of a Plan, all or none, and return the Plan that is in force then.

        One that cannot be opened or called is told, and the models stay.
        """
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
            ready = []
        else:
            self._in_force = plan if self._slots.all() else self._in_force
        for slot, model in ready:
            slot.switch(model)
        return dataclasses.replace(plan, model=self._in_force.model, models=self._in_force.models)


def changes_models(plans: Sequence[Plan]) -> bool:
    """Return whether a ladder's Plans have other models than its first."""
    return any((plan.model, plan.models) != (plans[0].model, plans[0].models) for plan in plans)


def check_models(plans: Sequence[Plan]) -> None:
    """Look whether the model files of the rungs are there, and whether their engines are, with these options.

    Raises:
        EngineError: If one is not, or is refused.
        MissingExtra: If the library of an engine is not installed.
        SettingsError: If an option is unknown or impossible.
    """
    known = {_setting_of(model) for model in _models_of(plans[0])}
    for model in (model for plan in plans[1:] for model in _models_of(plan)):
        if model.artifact is not None:
            model_files(Path(model.artifact))
        if _setting_of(model) in known:
            continue
        known.add(_setting_of(model))
        try:
            why = why_not(model.engine, model.options)
        except SettingsError as error:
            raise SettingsError(f"budget.ladder, with engine {model.engine}: {error}") from None
        if why:
            raise EngineError(f"budget.ladder, with engine {model.engine}: {why}")


def _models_of(plan: Plan) -> tuple[ModelPlan, ...]:
    return (plan.model, *plan.models.values())


def _setting_of(model: ModelPlan) -> tuple[str, str]:
    return model.engine, repr(sorted(model.options.items()))
