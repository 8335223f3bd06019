"""Where a model file can run, schema `headrace.portability/1`: what `headrace optimize --portability --json` prints.

Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "headrace.portability/1"

#: `runs`: it opened here and took batches of several sizes; `opens`: it opened here, and nothing was known to call it with;
#: `poorly`: it runs, at a price that is told; `fails`: it does not, or ends the process that calls it;
#: `not here`: what runs it is missing on this machine, and what is told could be seen from the file alone; `needs a recipe`: it
#: runs networks of the user's code, and no file.
Outcome = Literal["runs", "opens", "poorly", "fails", "not here", "needs a recipe"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One engine with the settings that decide whether a file runs on it."""

    engine: str
    options: dict[str, str] = {}
    outcome: Outcome
    findings: tuple[str, ...] = ()
    """What fails or is missing, each with what to do."""


class PortabilityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A model file on every engine."""

    schema: str = SCHEMA
    artifact: str
    sha256: str
    opset: int
    """Of the standard operators; 0 where the file uses none."""
    precision: str
    """That is typed in the file: `f32`, `f16`, or `int8` for QDQ and quantized operators."""
    places: tuple[Place, ...]
