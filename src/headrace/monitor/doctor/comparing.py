"""How what is seen is compared with what is expected; each returns `ok`, `note` or `matters`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headrace.runs.formats.doctor import Status

Compare = Callable[[Any, Any], Status]
"""Takes what is seen and what is expected."""


def exactly(otherwise: Status = "matters") -> Compare:
    """Both are the same."""
    return lambda seen, expected: "ok" if seen == expected else otherwise


def at_least(share: float = 1.0, otherwise: Status = "matters", *, more: Status = "ok") -> Compare:
    """There is as much as expected, or nearly: a share of it. None is no limit. More than expected may be worth a note."""

    def compare(seen: Any, expected: Any) -> Status:
        has, wants = (math.inf if value is None else float(value) for value in (seen, expected))
        if has < wants and (math.isinf(wants) or has < share * wants):
            return otherwise
        return more if has > wants else "ok"

    return compare


def at_most(times: float, otherwise: Status = "note") -> Compare:
    """There is not more than so many times what is expected."""
    return lambda seen, expected: "ok" if seen <= times * expected else otherwise


def has_all(otherwise: Status = "matters", *, more: Status = "ok") -> Compare:
    """Every one that is expected is there."""

    def compare(seen: Any, expected: Any) -> Status:
        if set(expected) - set(seen):
            return otherwise
        return more if set(seen) - set(expected) else "ok"

    return compare


def has_versions(seen: Any, expected: Any) -> Status:
    """Every package that is expected is installed in its version; others do not count."""
    return "ok" if all(seen.get(name) == version for name, version in expected.items()) else "matters"


def is_same_python(seen: Any, expected: Any) -> Status:
    """Python's feature version is the same; its bug-fix version is worth a note."""
    if seen == expected:
        return "ok"
    return "note" if seen.split(".")[:2] == expected.split(".")[:2] else "matters"


def is_same_table(seen: Any, expected: Any) -> Status:
    """Both say the same of what both name."""
    return "ok" if all(seen[key] == expected[key] for key in expected if key in seen) else "matters"
