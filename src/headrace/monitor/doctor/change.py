"""Whether the environment changed since a Plan was proved: one answer, for metrics and alerts."""

from __future__ import annotations

from pathlib import Path

from headrace.base.plan import Plan
from headrace.monitor.doctor.examination import find_differences
from headrace.monitor.doctor.machine import Machine
from headrace.monitor.doctor.plan_needs import list_needs
from headrace.monitor.doctor.references import of_plan
from headrace.runs.formats.doctor import Finding


def list_changes(plan: str | Path, machine: Machine | None = None) -> list[Finding] | None:
    """Return what matters and is otherwise than where a Plan was proved; None if its file does not say where that was.

    Takes a tenth of a second; once at the start of a run is enough, since what it compares does not change under a process.

    Args:
        plan: The Plan's file.
        machine: For tests; None: this one.

    Raises:
        SettingsError: If the Plan cannot be read.
    """
    path, machine = Path(plan), machine or Machine()
    written, proved = Plan.load(path), of_plan(path)
    if proved is None:
        return None
    return [*find_differences(machine, list_needs(written, path.name, machine)), *find_differences(machine, proved)]


def is_environment_changed(plan: str | Path, machine: Machine | None = None) -> bool | None:
    """Return whether anything that matters changed since a Plan was proved; None: nobody knows. Arguments as `list_changes`."""
    changes = list_changes(plan, machine)
    return None if changes is None else bool(changes)
