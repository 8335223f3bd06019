"""A better Plan as TOML, with what was changed, why, and how it was proved, as comments."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.runs.hardware import Hardware, find_versions
from headrace.runs.run_folder import headrace_version

_MEASURED_ON = re.compile(r"^# Measured on (.+?), ([0-9]{1,9}) cores(?:, )?(.*); on another machine", re.MULTILINE)
_MEASURED_WITH = re.compile(r"^# Measured with (.+)\.$", re.MULTILINE)
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
    versions = {"Python": hardware.python, **find_versions()}
    header = [
        f"Made by headrace {made_by} {headrace_version()} for {subject} on {today.isoformat()}.",
        f"Measured on {machine}; on another machine another Plan may be better.",
        f"Measured with {', '.join(f'{name} {version}' for name, version in versions.items() if version)}.",
        *proof,
    ]
    lines = [f"# {part}" for line in header for part in line.splitlines()]
    return "\n".join([*lines, "", *_plan_lines(plan, reasons)]) + "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Where a Plan was measured, as the comments say that `plan_text` writes above it."""

    cpu_model: str
    num_cores: int
    accelerators: tuple[str, ...] = ()
    python: str = ""
    """Empty in Plans of before 2026-11-24; so are the versions."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{distribution: version}."""


def read_proof(text: str) -> Proof | None:
    """Return where the Plan in a text was measured; None if it does not say: somebody wrote it by hand."""
    machine = _MEASURED_ON.search(text)
    if machine is None:
        return None
    with_ = _MEASURED_WITH.search(text)
    pairs = (part.rpartition(" ") for part in with_[1].split(", ")) if with_ else ()
    versions = {name: version for name, _, version in pairs if name}
    return Proof(
        cpu_model=machine[1], num_cores=int(machine[2]),
        accelerators=tuple(name for name in machine[3].split(", ") if name),
        python=versions.pop("Python", ""), versions=versions,
    )  # fmt: skip


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
