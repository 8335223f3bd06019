"""Examines a machine: each check alone and against what the references expect, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.monitor.doctor.check import Check
from headrace.monitor.doctor.fingerprints import make_fingerprint
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.monitor.doctor.references import Reference
from headrace.monitor.doctor.table import CHECKS
from headrace.runs.formats.doctor import DoctorDocument, Finding, Fingerprint, Status, Value

_ORDER: tuple[Status, ...] = ("matters", "note", "unknown", "ok")
#: Place of what no check of the table finds: what a Plan cannot run without.
_FIRST = 110


def examine(machine: Machine, references: Sequence[Reference] = ()) -> DoctorDocument:
    """Return what was found on a machine.

    Args:
        machine: This one.
        references: What it should be like; none: it is judged alone.

    Raises:
        SettingsError: If a reference expects something that cannot be compared: text where a number is known.
    """
    fingerprint = make_fingerprint(machine)
    findings = [finding for check in CHECKS.values() for finding in _find(check, fingerprint, references)]
    findings += [finding for reference in references for finding in reference.findings]
    findings += [finding for reference in references for finding in _list_strange(reference)]
    findings.sort(key=lambda one: (_ORDER.index(one.status), -_weight(one)))
    is_fit = not any(one.status == "matters" for one in findings)
    return DoctorDocument(
        compared_with=tuple(dict.fromkeys(reference.name for reference in references)), is_fit=is_fit,
        says=_say(findings, references), findings=tuple(findings), fingerprint=fingerprint,
    )  # fmt: skip


def find_differences(machine: Machine, reference: Reference) -> list[Finding]:
    """Return what matters of a reference and is otherwise on this machine; reads nothing else of the machine."""
    found = [one for one in reference.findings if one.status == "matters"]
    for name, expected in reference.facts.items():
        check = CHECKS.get(name)
        if check is None or check.compare is None:
            continue
        try:
            seen = check.read(machine)
        except (CannotTell, OSError, ValueError):
            continue  # not known is no difference
        found.append(_judge(check, seen, expected, reference))
    return [one for one in found if one.status == "matters"]


def _find(check: Check, fingerprint: Fingerprint, references: Sequence[Reference]) -> Iterator[Finding]:
    """Yield what a check found: what differs, or is not good by itself; one line if all is well."""
    concerned = [one for one in references if check.compare and check.name in one.facts]
    if check.name in fingerprint.unknown:
        why = fingerprint.unknown[check.name]
        for expected, name in [(check.show(one.facts[check.name]), one.name) for one in concerned] or [("", "")]:
            yield Finding(
                name=check.name, title=check.title, status="unknown", seen=why, expected=expected, compared_with=name,
                why=check.why, do=check.do if expected else "",
            )  # fmt: skip
        return
    value = fingerprint.facts[check.name]
    found = [_judge(check, value, one.facts[check.name], one) for one in concerned]
    bad = [one for one in found if one.status != "ok"]
    alone = check.judge_alone(value)
    yield from bad
    if alone.status != "ok" and not bad:
        yield alone
    elif not bad:
        yield found[0] if found else alone
    for one in references:
        if check.compare and check.name in one.unknown:
            yield Finding(
                name=check.name, title=check.title, status="unknown", seen=check.show(value),
                expected=f"not known there: {one.unknown[check.name]}", compared_with=one.name, why=check.why,
            )  # fmt: skip


def _judge(check: Check, value: Value, expected: Value, reference: Reference) -> Finding:
    damaged = SettingsError(
        f"{reference.name} is damaged: {check.name} is {str(expected)[:60]!r}, expected {_kind(value)}; write it again"
    )
    if _kind(value) != _kind(expected):
        raise damaged
    try:
        return check.judge_against(value, expected, reference.name)
    except (ValueError, OverflowError):  # a number without end, a version that is none
        raise damaged from None


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "true or false"
    if value is None or isinstance(value, int | float):
        return "a number or null"
    return {str: "text", list: "a list", dict: "a table"}[type(value)]


def _list_strange(reference: Reference) -> Iterator[Finding]:
    """Yield what a reference knows and this headrace does not check."""
    for name in sorted({*reference.facts, *reference.unknown} - CHECKS.keys()):
        yield Finding(
            name=name, title=name, status="unknown", seen="this headrace has no such check", compared_with=reference.name,
            expected=str(reference.facts.get(name))[:60], why="the reference was written by a newer headrace",
            do="install the same headrace on both machines",
        )  # fmt: skip


def _weight(finding: Finding) -> int:
    check = CHECKS.get(finding.name)
    return check.weight if check else _FIRST


def _say(findings: Sequence[Finding], references: Sequence[Reference]) -> str:
    counts = {status: sum(one.status == status for one in findings) for status in _ORDER}
    rest = [f"{counts['note']} worth a note"] if counts["note"] else []
    rest += [f"{counts['unknown']} not known"] if counts["unknown"] else []
    tail = f"; {', '.join(rest)}" if rest else ""
    names = ", ".join(dict.fromkeys(reference.name for reference in references))
    bad = counts["matters"]
    if names:
        says = f"{pluralize(bad, 'thing')} that matter" if bad > 1 else "one thing that matters"
        head = f"this machine differs from {names} in {says}" if bad else f"nothing that matters differs from {names}"
    else:
        head = f"{pluralize(bad, 'check')} failed" if bad else "this machine is fit for headrace"
    return f"{head}; {counts['ok']} of {len(findings)} checks are as they should be{tail}"
