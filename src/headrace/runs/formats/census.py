"""What an engine made of a model, schema `headrace.census/1`: what `headrace optimize --explain --json` prints.

Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.runs.formats.variants import LayerError

SCHEMA = "headrace.census/1"

#: `product`: convolutions and products of matrices, where the arithmetic is; `conversion`: of types and layouts, which a
#: graph computed in one precision would not have; `other`: the rest.
LayerKind = Literal["product", "conversion", "other"]


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one kind that compute in one precision."""

    kind: LayerKind
    precision: str
    """As NumPy names it; empty where the engine does not tell."""
    num_layers: int
    share: float
    """Of the model's time, 0 to 1."""
    flops_share: float | None
    """Of the operations of all layers of its kind; None where they were not counted."""


class CensusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant really runs."""

    schema: str = SCHEMA
    engine: str
    artifact: str
    batch_size: int
    threads: int
    latency_seconds: float
    is_quantized: bool
    """Whether the file holds a quantized model."""
    groups: tuple[LayerGroup, ...]
    """Those that take longest first."""
    int8_share: float | None
    """Of the convolutions and products that the file has quantized (of all, where that cannot be read), those that run in int8;
    None: there are none."""
    conversion_share: float
    """Of the time."""
    says: str
    layers: tuple[LayerError, ...] = ()
    """How far each tensor is from that of the model it is held against (`--against`), in the order of computation."""
    diverges_at: str = ""
    """The first of them that is further off than the precision explains."""
    advice: tuple[str, ...] = ()
    """What keeps a quantized model from being faster, and what to do; or, for another, what quantizing could touch."""
    warnings: tuple[str, ...] = ()
