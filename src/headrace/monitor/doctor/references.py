"""What this machine is compared with: another machine's fingerprint, a run, a lock, a Plan's proof, the ledger's decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.base.given_files import read_given_file
from headrace.ledger.ledger import Ledger, hardware_fingerprint
from headrace.monitor.doctor.fingerprints import read_fingerprint
from headrace.monitor.doctor.machine import Machine
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.doctor import Finding, Status, Value
from headrace.runs.hardware import Hardware, find_versions, machine_in_words
from headrace.runs.plan_file import read_proof
from headrace.runs.reader import read_run

#: `name[extra]==version` of a lock file or of `pip freeze`, and the marker that says where it counts.
_PINNED = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]\n]*\])?[ \t]*==[ \t]*([^\s;\\,]+)[ \t]*(?:;([^\n#\\]*))?", re.MULTILINE
)
_MOST_BYTES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something that this machine should be like."""

    name: str
    """As people know it: `run runs/first`."""
    facts: Mapping[str, Value] = field(default_factory=dict)
    """{name of a check: what is expected}; what is not there is not compared."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """{name of a check: why the reference does not know}."""
    findings: tuple[Finding, ...] = ()
    """What no check compares, judged already."""
    packages: tuple[str, ...] = ()
    """Distributions that it names."""


def of_fingerprint(path: Path) -> Reference:
    """Return what another machine is like; raises SettingsError if the file is no fingerprint."""
    found = read_fingerprint(path)
    versions = found.facts.get("packages")
    names = tuple(versions) if isinstance(versions, dict) else ()
    return Reference(name=f"fingerprint {path}", facts=found.facts, unknown=found.unknown, packages=names)


def of_run(path: Path) -> Reference:
    """Return what a recorded run had; raises RunFolderError if it cannot be read."""
    info = read_run(path).info
    facts = {**_facts_of(info.hardware), "packages": dict(info.versions), "headrace": info.headrace_version}
    if info.handoff is not None and info.handoff.cpu_seconds:
        facts["handoff_seconds"] = info.handoff.cpu_seconds
    return Reference(name=f"run {path}", facts=facts, packages=tuple(info.versions))


def of_lock(path: Path) -> Reference:
    """Return the versions that a lock file or the output of `pip freeze` pins; SettingsError if it pins none."""
    try:
        text = read_given_file(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise SettingsError(f"--lock {path} cannot be read: {error.strerror}") from None
    found = _PINNED.findall(text)
    if not found:
        raise SettingsError(
            f"--lock {path} pins no package; expected lines such as numpy==2.1.0, of a lock file or of `pip freeze`"
        )
    pinned: dict[str, set[str]] = {}
    for name, version, marker in found:
        if _counts_here(marker.strip()):
            pinned.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    here = find_versions(pinned)
    wanted = {
        name: here[name] if here.get(name) in versions else " or ".join(sorted(versions))
        for name, versions in pinned.items()
    }
    return Reference(name=f"lock {path}", facts={"packages": wanted}, packages=tuple(wanted))


def _counts_here(marker: str) -> bool:
    """Return whether a line with a marker is about this Python and system; one that cannot be read counts."""
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName  # which onnxruntime needs

    try:
        return not marker or Marker(marker).evaluate({"extra": ""})
    except (InvalidMarker, UndefinedEnvironmentName):
        return True


def of_plan(path: Path) -> Reference | None:
    """Return where the Plan in a file was measured, by its own comments; None if they do not say."""
    return _of_plan_text(_text_of(path), f"plan {path}")


def of_ledger(ledger: Path | None, plan: Path | None, machine: Machine) -> list[Reference]:
    """Return what the decisions that stand were proved on.

    Args:
        ledger: The file; None: the default one.
        plan: Only the decision about this Plan; None: those about every Plan.
        machine: This one.

    Raises:
        LedgerError: If there is no such ledger, or it cannot be read.
    """
    with Ledger.open(ledger, must_exist=True) as opened:
        plans = [plan] if plan else [Path(name) for name in dict.fromkeys(d.plan for d in opened.attempts.decisions())]
        found = [(one, opened.attempts.find_in_force(one)) for one in plans]
        return [_of_decision(opened, where, decision, machine) for where, decision in found if decision is not None]


def _of_decision(ledger: Ledger, plan: Path, decision: Decision, machine: Machine) -> Reference:
    name = f"decision d{decision.number} of {ledger.path}"
    findings = _find_edits(plan, decision, name)
    if decision.attempt is None:
        told = _of_plan_text(decision.after or "", name)
        facts, packages = (told.facts, told.packages) if told else ({}, ())
        return Reference(name=name, facts=facts, packages=packages, findings=findings)
    attempt = ledger.attempts.attempt(f"a{decision.attempt}")
    versions = dict(attempt.asked.versions) if attempt.asked else {}
    here = hardware_fingerprint(machine.hardware)
    then = (attempt.asked.machine if attempt.asked else "") or f"a machine with the fingerprint {attempt.hardware}"
    findings += (
        Finding(
            name="machine", title="the machine that proved the variant",
            status="ok" if here == attempt.hardware else "matters" if attempt.hardware else "unknown",
            seen=machine_in_words(machine.hardware), expected=then, compared_with=name,
            why=f"attempt {attempt.id} ({attempt.name}) was measured there; elsewhere it may be slower, or round otherwise",
            do=f"headrace ledger replay {attempt.id}",
        ),
    )  # fmt: skip
    return Reference(
        name=name, facts={"packages": versions} if versions else {}, findings=findings, packages=tuple(versions)
    )


def _find_edits(plan: Path, decision: Decision, name: str) -> tuple[Finding, ...]:
    """Return whether the file still holds what was proved."""
    try:
        now = plan.read_text(encoding="utf-8", errors="replace")
    except OSError:
        now = None
    status: Status = "ok" if now == decision.after else "matters"
    return (
        Finding(
            name="plan_file", title=f"the Plan in {plan.name}", status=status,
            seen="missing" if now is None else "as decided" if status == "ok" else "changed since",
            expected="as decided", compared_with=name,
            why="what was measured was another Plan than the one in the file",
            do="prove the change with `headrace compare`, or put the Plan back that `headrace ledger list` shows",
        ),
    )  # fmt: skip


def _of_plan_text(text: str, name: str) -> Reference | None:
    proof = read_proof(text)
    if proof is None:
        return None
    facts: dict[str, Value] = {"processor": {"model": proof.cpu_model}, "num_cores": proof.num_cores}
    facts |= {"accelerators": list(proof.accelerators)} if proof.accelerators else {}
    facts |= {"python": proof.python} if proof.python else {}
    facts |= {"packages": dict(proof.versions)} if proof.versions else {}
    return Reference(name=name, facts=facts, packages=tuple(proof.versions))


def _facts_of(hardware: Hardware) -> dict[str, Value]:
    """Return a recorded machine as facts; those that an older headrace did not record are left out."""
    processor = {"model": hardware.cpu_model or "", "id": hardware.cpu_id}
    facts: dict[str, Value] = {
        "processor": {key: value for key, value in processor.items() if value},
        "num_cores": hardware.num_cores,
        "cpu_quota": hardware.cpu_quota,
        "accelerators": list(hardware.accelerators),
    }
    told: dict[str, Value] = {"kernel": hardware.kernel, "python": hardware.python}
    if hardware.cpu_id:
        told["cpu_flags"] = list(hardware.cpu_flags)
    if hardware.memory_bytes is not None:
        told["memory_bytes"] = hardware.memory_bytes
    return facts | {key: value for key, value in told.items() if value}


def _text_of(path: Path) -> str:
    try:
        return read_given_file(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise SettingsError(f"--plan {path} cannot be read: {error.strerror}") from None
