"""Makes the records of checks."""

from __future__ import annotations

from headrace.runs.formats.profile import Check, CheckStatus


def check(
    name: str, status: CheckStatus, value: float | None, limit: float | None, says: str, source: str = ""
) -> Check:
    """Return a check that was made."""
    return Check(name=name, status=status, value=value, limit=limit, says=says, source=source)


def not_measured(name: str, why: str, source: str = "") -> Check:
    """Return a check that could not be made, and why."""
    return check(name, "not_measured", None, None, why, source)
