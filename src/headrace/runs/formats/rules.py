"""What `headrace monitor rules`, `dashboard` and `check` print with `--json`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.rules/1"


class RulesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, or what promtool said of it."""

    schema: str = SCHEMA
    folder: str
    files: list[str]
    """Names in the folder, as written or looked at."""
    alerts: list[str] = []
    """Names, as in the rules; empty where no rules were written."""
    is_good: bool | None = None
    """Whether promtool found nothing wrong; None if it was not asked."""
    promtool: str = ""
    """Its version; empty if it was not asked."""
    says: str = ""
    """What it said."""
