"""Whether a change may pass, schema `headrace.gate/1`: what `headrace gate --json` prints. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.runs.formats.comparison import ComparisonDocument

SCHEMA = "headrace.gate/1"

GateVerdict = Literal["passed", "failed", "cannot_tell"]


class GateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """NEW against BASE."""

    schema: str = SCHEMA
    verdict: GateVerdict
    """`passed`: surely not slower by more than allowed; `failed`: surely slower."""
    max_slowdown: float
    """The largest loss that is allowed, as a share."""
    seconds: float
    """How long it took."""
    says: str
    comparison: ComparisonDocument
    """A is BASE, B is NEW."""
