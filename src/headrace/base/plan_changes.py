"""What makes one Plan of another, as people type it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from headrace.base.plan import Plan


def list_changed_settings(before: Plan, after: Plan) -> tuple[str, ...]:
    """Return the settings that make one resolved Plan into another, each `KEY=VALUE` as `Plan.with_settings` takes them.

    What the second leaves open (None) cannot be written so, and is left out.
    """
    old, new = _flat(before.as_table()), _flat(after.as_table())
    changed = [(path, value) for path, value in new.items() if old.get(path) != value]
    return tuple(f"{_short(path)}={_format_value(value)}" for path, value in changed)


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, (*path, key))
        else:
            found[(*path, key)] = value
    return found


def _short(path: tuple[str, ...]) -> str:
    """Return `fetch.workers` for `stages.fetch.workers`, unless the stage bears the name of one of the Plan's tables."""
    is_clear = path[0] == "stages" and path[1] not in {field.name for field in dataclasses.fields(Plan)}
    return ".".join(path[1:] if is_clear else path)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
