"""One variant of a model against another, schema `headrace.validate/1`: what `headrace validate --json` prints.

Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.runs.formats.outcomes import Acceptance, Decided, Outcome
from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.validate/1"

#: In the order in which they are asked, cheapest first.
GateName = Literal[
    "static", "census", "parity", "batches", "extremes", "speed", "accuracy", "robustness", "pipeline", "shadow"
]


class VariantSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    name: str
    """As it was asked for: `scenes.onnx@openvino,precision=bf16`."""
    variant: dict[str, Any]
    """What really ran: file by its hash, engine with its version, precision, threads."""
    open_seconds: float
    """Reading, compiling, and the first call."""
    call_seconds: float | None = None
    """Median of a call with the batch that was timed."""
    memory_bytes: int | None = None
    """Resident memory that opening and calling it takes in a process of its own, engine included, at its peak; None: not
    measured."""

    @property
    def cells(self) -> tuple[str | None, ...]:
        """Its row of a table: variant, engine with version, precision, threads."""
        ran = self.variant
        version = str(ran.get("engine_version", "")).partition("-")[0]
        engine = f"{ran.get('engine', '')} {version}".strip()
        return (
            self.name,
            engine or None,
            str(ran.get("precision", "as in the file")),
            str(ran.get("threads", "")) or None,
        )


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One question and its answer."""

    name: GateName
    outcome: Outcome
    says: str
    """The answer in one sentence with its numbers."""
    values: dict[str, float | None] = {}
    """What was measured."""
    limits: dict[str, float] = {}
    """What it was held against."""


class BoxShown(msgspec.Struct, frozen=True, kw_only=True):
    """A box to draw, in pixels of the model's input."""

    x1: float
    y1: float
    x2: float
    y2: float
    name: str
    """Of its class."""
    score: float
    """Of what is true 1."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The outline of a region of a mask, to draw."""

    name: str
    """Of its class."""
    points: tuple[tuple[float, float], ...]
    """x and y as shares of the mask's width and height; the last one is joined to the first."""


class WorstItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item for which the candidate did worse than the incumbent."""

    item: int
    """Its place in the golden set, from 0."""
    file: str = ""
    """Of a folder's image; empty for arrays."""
    label: str
    """What is right: the class's name, or its number; empty: not known."""
    a: str
    """The incumbent's first answer; empty where answers are no scores of classes."""
    b: str
    loss: float
    """Score of the incumbent less that of the candidate, up to 1; of detections the share of the true boxes, of masks
    the mean IoU of the item's classes."""
    boxes: tuple[BoxShown, ...] = ()
    """What is true, of detections."""
    boxes_a: tuple[BoxShown, ...] = ()
    """The incumbent's best-scored, as many as there are true ones."""
    boxes_b: tuple[BoxShown, ...] = ()
    outlines: tuple[Outline, ...] = ()
    """What is true, of masks, without the class that covers most."""
    outlines_a: tuple[Outline, ...] = ()
    """What the incumbent named."""
    outlines_b: tuple[Outline, ...] = ()

    @property
    def cells(self) -> tuple[str | None, ...]:
        """Its row of a table: item, what is right, A's answer, B's answer, what was lost."""
        return self.file or str(self.item), self.label or None, self.a or None, self.b or None, f"{self.loss:.2g}"


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What both are worth in one part of the golden set."""

    name: str
    """`class cat`, `light dark`."""
    num_items: int
    a: float | None
    """The incumbent's share of right answers there, or what the metric says; None: only agreement is known."""
    b: float | None
    drop: float
    """Incumbent less candidate."""
    low: float
    """Of the interval of the drop; all parts share one probability of a wrong finding."""
    high: float
    outcome: Decided
    """Whether the drop there is surely within what is allowed in a part, surely beyond, or neither."""

    @property
    def cells(self) -> tuple[str | None, ...]:
        """Its row of a table: part, drop within or beyond what is allowed, items, A, B, points won or lost, their interval."""
        word = {"passed": "within", "rejected": "beyond", "inconclusive": "not known"}[self.outcome]
        a, b = (None if value is None else f"{100 * value:.2f}" for value in (self.a, self.b))
        interval = f"{-100 * self.high:+z.2f} to {-100 * self.low:+z.2f}"
        return self.name, word, f"{self.num_items:,}", a, b, f"{-100 * self.drop:+z.2f}", interval


class LayerError(msgspec.Struct, frozen=True, kw_only=True):
    """How far the candidate is from the incumbent at one tensor between its layers."""

    name: str
    """Of the tensor, which both have."""
    operator: str
    """That makes it."""
    relative_l2: float | None
    """|B - A| / |A| over some items; None: B holds a NaN or an infinity."""
    sqnr_db: float | None
    """Signal over error in decibels; None: no error at all, or none that can be told."""

    @property
    def cells(self) -> tuple[str | None, ...]:
        """Its row of a table: tensor, operator, relative L2, SQNR."""
        off = "NaN" if self.relative_l2 is None else f"{self.relative_l2:.2g}"
        return self.name, self.operator, off, None if self.sqnr_db is None else f"{self.sqnr_db:.1f}"


class ValidationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B may stand in for A."""

    schema: str = SCHEMA
    a: VariantSide
    b: VariantSide
    verdict: Acceptance
    says: str
    gates: tuple[Gate, ...]
    """Those that were asked; after a rejection no dearer one is."""
    batch: int
    """Items of the batch that was timed."""
    golden: str
    """The golden set, or `noise`."""
    golden_sha256: str = ""
    num_items: int
    """That both answered."""
    metric: str = "top1"
    """How answers were scored."""
    worst: tuple[WorstItem, ...] = ()
    """Those that lost most, at most twelve, where answers were scored one by one."""
    slices: tuple[SliceResult, ...] = ()
    """Parts of the golden set, those that lost most first, at most sixty."""
    num_slices: int = 0
    """Parts that were looked at."""
    layers: tuple[LayerError, ...] = ()
    """In the order of computation; where the answers are further off than the precision explains."""
    diverges_at: str = ""
    """The first of them that is."""
    next_command: str | None = None
    """What to do next."""
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    def find_gate(self, name: GateName) -> Gate | None:
        """Return a gate; None if it was not asked."""
        return next((gate for gate in self.gates if gate.name == name), None)

    def values_of(self, name: GateName) -> dict[str, float | None]:
        """Return what a gate measured; empty if it was not asked."""
        gate = self.find_gate(name)
        return gate.values if gate else {}

    def interval(self, name: GateName, low: str, mid: str, high: str) -> Estimate | None:
        """Return three values of a gate as an interval; None if one of them is missing."""
        values = [self.values_of(name).get(key) for key in (low, mid, high)]
        known = [value for value in values if value is not None]
        return Estimate(*known) if len(known) == 3 else None
