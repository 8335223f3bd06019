"""What `--review` keeps of a run's answers, the rounds in which people review them, and what they find.

`sample.json` (headrace.review_sample), `rounds/NNN.json` (headrace.review_round), `verdicts.jsonl`, and
`headrace review --estimate --json` (headrace.review_estimate). Version 1: 2026-11, first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

SAMPLE_SCHEMA = "headrace.review_sample/1"
ROUND_SCHEMA = "headrace.review_round/1"
ESTIMATE_SCHEMA = "headrace.review_estimate/1"

Why = Literal["random", "least_certain", "disagreement"]
"""Why an answer is kept: drawn at random, one of the least certain of its hour, or of those that a twin answered otherwise."""
Verdict = Literal["correct", "wrong", "unsure", "skip", "none"]
"""Of a person; `none` takes back what was said before."""


class AnswerBox(msgspec.Struct, frozen=True, kw_only=True):
    """An object that the answer found."""

    name: str
    score: float | None
    x1: float
    """Left, as a share of the picture's width, as far as the answer's numbers are known to be pixels or shares of it."""
    y1: float
    x2: float
    y2: float


class SampledAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer that is kept."""

    key: str
    """32 hexadecimal digits, by chance; the first half is the item's place in the random order of its cell."""
    job: str
    name: str
    """The class that the answer names, as cells are counted by; empty: none, or not known."""
    arm: str = ""
    """`stable` or `canary`; empty: there was no canary."""
    why: tuple[Why, ...] = ()
    certainty: float | None = None
    """From 0 to 1; None: the answer does not say."""
    disagreement: float | None = None
    """Of a twin, from 0 to 1; None: none answered."""
    answer: Any = None
    """As delivered; shortened if it is long."""
    boxes: tuple[AnswerBox, ...] = ()
    file: str = ""
    """Of the picture or text, named by the SHA-256 of its content; empty: none is kept."""
    num_bytes: int = 0
    task: str = ""
    plan_id: str = ""
    source: str = ""
    """Where the item came from, without secrets."""
    unix_seconds: float = 0.0
    """When its job was settled."""


class CellCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers there were of one class and arm, kept or not."""

    name: str
    arm: str
    num_answers: int


class ReviewSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one process keeps of one hour."""

    id: str
    """Name of its folder."""
    began_unix_seconds: float
    ended_unix_seconds: float
    """Of the last answer."""
    cells: tuple[CellCount, ...]
    items: tuple[SampledAnswer, ...]
    schema: str = SAMPLE_SCHEMA
    share: float = 1.0
    """Of the jobs, drawn at random, that were looked at."""
    num_missed: int = 0
    """Answers that came while the memory for them was full; they are in no count."""
    num_unwritten: int = 0
    """Items whose picture could not be written, such as on a full disk."""
    pixels: int = 0
    """Longer side of kept pictures, at most; 0: originals are kept."""
    blur: bool = False
    class_names: Mapping[str, tuple[str, ...]] = {}
    """{last stage of a route: names of the classes in the order of the model's output}, where its file says them."""


class DrawCell(msgspec.Struct, frozen=True, kw_only=True):
    """Answers among which items were drawn with equal probability."""

    segment: str
    """The folder of the sample that they are from."""
    name: str
    arm: str
    why: Why
    num_answers: int
    num_kept: int
    preference: float
    """The next item is drawn with a probability in proportion to this, among all that are left."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """An item to review."""

    item: str
    """SEGMENT/KEY."""
    cell: int
    """Its place in `cells`."""


class ReviewRound(msgspec.Struct, frozen=True, kw_only=True):
    """A population of answers, and the order in which items of it are reviewed."""

    number: int
    made_unix_seconds: float
    first_unix_seconds: float
    last_unix_seconds: float
    segments: tuple[str, ...]
    """All of which it is made."""
    cells: tuple[DrawCell, ...]
    draws: tuple[Drawn, ...]
    """By chance, in the order of reviewing."""
    num_missed: int = 0
    """Answers that are in no count: memory was full when they came."""
    num_uncovered: int = 0
    """Answers of cells of which no item is kept any more; they are in no estimate."""
    share: float = 1.0
    """The least share of the jobs that was looked at."""
    schema: str = ROUND_SCHEMA


class VerdictLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `verdicts.jsonl`: what a person said of an item; the last one counts."""

    item: str
    verdict: Verdict
    label: str = ""
    """The right class, of a wrong answer."""
    boxes: tuple[AnswerBox, ...] | None = None
    """The right ones, of a wrong answer; None: nobody said."""
    unix_seconds: float = 0.0


class GroupEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the answers of one group."""

    name: str
    """Of the class or the arm; empty: all."""
    num_answers: int
    num_reviewed: int
    num_wrong: int
    num_unsure: int
    """Reviewed without a verdict; the interval counts them both ways."""
    accuracy: float | None
    """Share of right answers, weighted by the probability with which each item was drawn; None: nothing was decided."""
    low: float
    """Of the interval, which holds whenever one looks, with the stated confidence for each group by itself."""
    high: float


class ReviewEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy in production, as far as it is known from a round."""

    round: int
    first_unix_seconds: float
    last_unix_seconds: float
    confidence: float
    overall: GroupEstimate
    by_class: tuple[GroupEstimate, ...]
    """By the class that was answered: how many of its answers are right (precision)."""
    by_arm: tuple[GroupEstimate, ...]
    """Empty: there was no canary."""
    num_to_review: int
    """Items that are drawn and not yet reviewed."""
    num_waiting: int
    """Verdicts on items behind one that is not reviewed yet; they count once it is."""
    num_missed: int
    num_uncovered: int
    says: str
    schema: str = ESTIMATE_SCHEMA
