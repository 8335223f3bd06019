"""A machine and what was found on it, schemas `headrace.fingerprint/1` and `headrace.doctor/1`. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "headrace.doctor/1"
FINGERPRINT_SCHEMA = "headrace.fingerprint/1"

Value = str | int | float | bool | list[str] | dict[str, str] | None
"""A fact about a machine. Bytes and seconds are numbers; None: there is no limit, or no such thing."""

Status = Literal["matters", "note", "unknown", "ok"]
"""It decides whether runs succeed or whether what was proved still holds; worth knowing; not known; as it should be."""


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is like, without names of hosts, users or files."""

    schema: str = FINGERPRINT_SCHEMA
    headrace_version: str
    made_unix_seconds: float
    facts: dict[str, Value]
    """{name of a check: what was seen}."""
    unknown: dict[str, str] = {}
    """{name of a check: why nobody knows}."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check and what it found."""

    name: str
    """Of the check: `open_files`."""
    title: str
    """The same for people."""
    status: Status
    seen: str
    """Of this machine; where it is not known, why."""
    expected: str = ""
    """Empty where nothing is expected."""
    compared_with: str = ""
    """What expects it: `run runs/first`, `plan.toml`; empty: any machine that runs headrace."""
    why: str = ""
    """Why it matters."""
    do: str = ""
    """What to do about it."""


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace doctor` found."""

    schema: str = SCHEMA
    compared_with: tuple[str, ...]
    """What the machine was compared with; empty: with nothing, it was looked at alone."""
    is_fit: bool
    """Whether nothing that matters is otherwise than it should be."""
    says: str
    findings: tuple[Finding, ...]
    """What matters first."""
    fingerprint: Fingerprint
