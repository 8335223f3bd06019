"""The runtime itself (F43): stages that do next to nothing, each with threads of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from headrace.base.plan import Plan
from headrace.stages.stage import stage

_FEWEST = 3


def _return_it(value: Any) -> Any:
    return value


def _hand_around(case: Case, dose: float) -> Case:
    names = [f"step{number}" for number in range(round(_FEWEST * dose))]
    plan = Plan().with_settings([f"{name}.executor=thread" for name in names])
    return replace(case, stages=tuple(stage(name, _return_it) for name in names), plan=plan)


def _fuse(case: Case) -> Case:
    return case.with_settings(*(f"{one.name}.executor=inline" for one in case.stages[1:]))


FAULTS = (
    Fault(
        id="F43",
        title="stages that return what they get, each with threads of its own",
        dose=f"how many stages, from {_FEWEST}",
        applies_to=("python_preprocess",),
        inject=_hand_around,
        fix=_fuse,
    ),
)
