"""All checks, in no order that counts: each has its weight."""

from __future__ import annotations

from headrace.monitor.doctor import limits, processor, software, surroundings
from headrace.monitor.doctor.check import Check

#: {name: check}.
CHECKS: dict[str, Check] = {
    check.name: check for part in (processor, limits, software, surroundings) for check in part.CHECKS
}
