"""A better Plan as TOML, with what was changed, why, and how it was proved, as comments."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.runs.hardware import Hardware
from headrace.runs.run_folder import headrace_version

#: Every table of a Plan as it is when nothing is written.
_TABLES: Mapping[str, Any] = {
    name: getattr(Plan(), name) for name in ("decode", "model", "source", "network", "run", "serve")
}


def plan_text(
    plan: Plan,
    reasons: Mapping[str, str],
    proof: Sequence[str],
    *,
    made_by: str,
    subject: str,
    hardware: Hardware,
    today: datetime.date,
) -> str:
    """Return the Plan as TOML with comments; `Plan.load` reads the same Plan back.

    Args:
        plan: As written, with the changes; what is left at its default is left out.
        reasons: {path of a setting: why it was changed}.
        proof: What was predicted and measured, one sentence each.
        made_by: The command.
        subject: What the Plan is for: a pipeline's name, a model.
        hardware: Where it was measured.
        today: The date of the measurement.
    """
    machine = f"{hardware.cpu_model or 'a machine'}, {hardware.num_cores} cores" + "".join(
        f", {name}" for name in hardware.accelerators
    )
    header = [
        f"Made by headrace {made_by} {headrace_version()} for {subject} on {today.isoformat()}.",
        f"Measured on {machine}; on another machine another Plan may be better.",
        *proof,
    ]
    lines = [f"# {part}" for line in header for part in line.splitlines()]
    return "\n".join([*lines, "", *_plan_lines(plan, reasons)]) + "\n"


def check_writable(path: Path, *, force: bool) -> None:
    """Raise SettingsError if a Plan could not be written there, before minutes are spent on it."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SettingsError(f"-o {path} cannot be written: expected a file in a folder that exists")
    if path.exists() and not force:
        raise SettingsError(f"-o {path} exists; name another, or replace it with --force")


def _plan_lines(plan: Plan, says: Mapping[str, str]) -> list[str]:
    """Return the Plan's own lines without those at their defaults, changed ones with their reasons."""
    kept: list[str] = []
    section, header = "", ""
    for line in plan.as_toml().splitlines():
        if line.startswith("["):
            section, header = line.strip("[]").replace('"', ""), line
            continue
        key, equals, _ = line.partition(" = ")
        path = f"{section}.{key}" if section else key
        if not equals or (_is_default(section, key, plan) and path not in says):
            continue
        if header:
            kept += ["", header] if kept else [header]
            header = ""
        kept.append(f"{line}  # {says[path]}" if path in says else line)
    return kept


def _is_default(section: str, key: str, plan: Plan) -> bool:
    """Return whether a setting has the value that it would have if it were left out."""
    if section in _TABLES:
        return key != "options" and _same(_TABLES[section], getattr(plan, section), key)
    head, _, name = section.partition(".")
    several: Mapping[str, Any] = {"stages": plan.stages, "models": plan.models}.get(head, {})
    if name not in several:
        return False  # options and the like
    default = StagePlan() if head == "stages" else ModelPlan()
    return _same(default, several[name], key)


def _same(default: Any, record: Any, key: str) -> bool:
    known = any(field.name == key for field in dataclasses.fields(record))
    return known and bool(getattr(default, key) == getattr(record, key))
