"""Every fault, by id; each theme's file adds its own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.testing.faults import cpu_faults
from headrace.testing.faults.fault import Fault

_THEMES: tuple[tuple[Fault, ...], ...] = (cpu_faults.FAULTS,)

#: By id, in the catalogue's order.
FAULTS: Mapping[str, Fault] = {
    fault.id: fault for fault in sorted((one for theme in _THEMES for one in theme), key=lambda one: int(one.id[1:]))
}
