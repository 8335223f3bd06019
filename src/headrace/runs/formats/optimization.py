"""What was tried to make a model cheaper, schema `headrace.optimization/1`: what `headrace optimize --json` prints.

Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.runs.formats.outcomes import Acceptance, Verdict
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import GateName, ValidationDocument, VariantSide

SCHEMA = "headrace.optimization/1"

ON_THE_FRONT = (
    "on the front: no other variant is surely better in accuracy, speed, size, memory or CPU time without being surely worse "
    "in another"
)
#: From the one that changes nothing to the one that changes most; of equals the first is chosen.
TechniqueKind = Literal["lossless", "numeric", "lossy", "trained"]


#: Technique of an attempt that ran beside the model in use, on live traffic.
SHADOW = "shadow"


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A model file that never changes."""

    sha256: str
    file: str
    """Its path."""
    num_bytes: int
    parent: str = ""
    """sha256 of the one it was made from; empty for the model as it was given."""
    technique: str = ""
    """That made it; empty for the model as it was given."""
    parameters: dict[str, Any] = {}
    data_sha256: str = ""
    """Of the calibration set; empty where none was needed."""

    @property
    def made(self) -> str:
        """How it was made: `percentile 99.9, per_channel True`."""
        return ", ".join(f"{key} {value}" for key, value in self.parameters.items())


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One way to share the cores among calls of a model."""

    workers: int
    """Of the device stage; they share one model."""
    threads: int
    """Inside one call."""
    batch: int
    items_per_second: float
    """Of all workers together, median of its blocks; the model alone, without the rest of a pipeline."""
    ratio: Estimate | None = None
    """Items per second over those of the layout that it was held against, in the same minutes; None: the first one."""
    against: str = ""
    """That layout: `1 x 2 threads, batch 8`."""
    chosen: bool = False
    """Whether it took that one's place."""


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """What all of it came to: the recommended variant in its layout against what is in use, in the Plan's, in turn."""

    ratio: Estimate
    """Items per second after over before."""
    before_per_second: float
    """Items per second of the model alone, without the rest of a pipeline."""
    after_per_second: float
    before: str
    """The layout: `1 x 1 thread, batch 1`."""
    after: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt was judged by, so that it can be done again."""

    max_drop: float
    max_slice_drop: float = 0.05
    alpha: float
    """Probability of accepting a worse one, at most: its share of that of the search; 0: the golden set was not asked."""
    metric: str = "top1"
    robustness: bool = False
    pipeline: str = ""
    """That decoded and preprocessed folders; empty: none did."""
    data: str = ""
    """Path of the calibration set; empty: none was given."""
    data_sha256: str = ""
    golden: str = ""
    golden_sha256: str = ""
    against: dict[str, Any] = {}
    """The `[model]` table of the Plan in use, which speed was held against, pinned to its files; empty: the model as given."""
    versions: dict[str, str] = {}
    """Of the packages that can change what is measured."""
    machine: str = ""
    """In words, beside the fingerprint; empty in attempts of early 2026-11, whose fingerprint followed another rule."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a technique was expected to gain before it was tried: what it gained elsewhere."""

    low: float
    """Times the speed of the model by itself."""
    high: float
    source: str
    """What that was measured on."""
    whole_low: float | None = None
    """Throughput of the pipeline after over before, simulated with `low`; None: no run was given, or it cannot be simulated."""
    whole_high: float | None = None
    run: str = ""
    """Folder of the recorded run that was simulated."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One variant that was tried, and what came of it."""

    id: str = ""
    """In the ledger, such as `a12`; empty if it was not written there."""
    created_unix_seconds: float = 0.0
    model: str
    """sha256 of the model as it was given."""
    technique: str
    kind: TechniqueKind
    hypothesis: str
    """Why it was tried."""
    candidate: str
    """The variant as `headrace validate` takes it."""
    settings: dict[str, Any] = {}
    """Its `[model]` table in a Plan."""
    stages: dict[str, int] = {}
    """Its device stage's `workers` and `batch` in a Plan; only of the technique `layout`."""
    layouts: tuple[Layout, ...] = ()
    """What was timed to find them, in order."""
    of: str = ""
    """The candidate whose layout it is; empty: what is in use; only of the technique `layout`."""
    whole: Whole | None = None
    """What variant and layout came to together; None: nothing was changed, or it was interrupted."""
    artifact: Artifact
    verdict: Acceptance
    gate: GateName | None = None
    """That rejected it, or left it open."""
    says: str
    predicted: Expected | None = None
    """What `speedup` was expected to be; None: nobody knows, or it was written before this was kept."""
    speedup: Estimate | None = None
    """Over what was in use: the model as it was given, or what the Plan names; None: it was not timed."""
    cpu: Estimate | None = None
    """CPU time of an item in use over that of this variant, in the same rounds; above 1 it needs less; None: not measured."""
    drop: Estimate | None = None
    """Of the share of right answers (or of agreement), 0 to 1; None: not known."""
    seconds: float
    """That making and judging it took."""
    money: float | None = None
    """What those seconds cost, in the user's currency; None: no price was given."""
    asked: Asked | None = None
    """None in attempts of 2026-11 that were written before it was kept."""
    validation: ValidationDocument
    hardware: str = ""
    """Fingerprint of the machine."""
    key: str = ""
    """Of everything that decides the outcome: the same is not tried twice."""
    is_recalled: bool = False
    """Whether this outcome was found in the ledger instead of being measured now."""

    @property
    def name(self) -> str:
        """Technique and engine: `int8 on openvino`."""
        return f"{self.technique} on {self.settings.get('engine', '')}"

    @property
    def outcome(self) -> str:
        """The verdict, and the gate that it comes from: `reject (speed)`."""
        return f"{self.verdict} ({self.gate})" if self.gate else self.verdict

    @property
    def expected_range(self) -> str:
        """How many times as fast it was expected to be: `1.6 to 8.3`; empty if nobody knows."""
        return "" if self.predicted is None else f"{self.predicted.low:.2g} to {self.predicted.high:.2g}"

    @property
    def layout_in_words(self) -> str:
        """Workers, threads and batch of the technique `layout`: `2 x 1, batch 8`."""
        return f"{self.stages['workers']} x {self.settings['threads']}, batch {self.stages['batch']}"


class EndToEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What the found variant and layout do for the whole pipeline: predicted first, then measured in pairs of blocks."""

    pipeline: str
    source: str
    """The items, in words."""
    prediction: str = ""
    """Its id in the ledger; empty where nothing could be predicted."""
    predicted: Estimate | None
    """Throughput after over before; None: not predicted."""
    refused: str = ""
    """Why nothing was predicted."""
    measured: Estimate | None
    """None: too few pairs for an interval."""
    error: float | None
    """predicted / measured - 1."""
    before_per_second: float
    """Items per second, median of the blocks."""
    after_per_second: float
    num_pairs: int
    verdict: Verdict
    """At what was asked for; for `cost` also `worse` where the throughput surely is."""
    metric: str = "throughput"
    """That the verdict is about: `latency_p50` for latency, `cpu_per_item` for cost."""
    gained: Estimate | None = None
    """That metric before over after; above 1 there is less of it; None: it is the throughput, or too few pairs."""
    ceiling: float | None
    """Times as fast as a model that cost nothing would make the pipeline; None: not known."""
    run: str
    """Folder of the recorded run that it was predicted from."""
    says: str


class Business(msgspec.Struct, frozen=True, kw_only=True):
    """What it means for those who pay: items an hour, items for a unit of money, and what it costs in right answers."""

    of: Literal["pipeline", "model"]
    """Whether the whole pipeline was measured, or the model alone, which is more than a pipeline will do."""
    before_per_hour: float
    """Items, as given."""
    after_per_hour: Estimate
    """Items, with what was found."""
    more: Estimate
    """after / before - 1."""
    fewer_right: Estimate | None
    """Share of the right answers of the model as given that is lost; negative: more are right; None: the answers are the same,
    or nobody knows."""
    fewer_found: Estimate | None = None
    """Share of the right detections that is lost, of the best-scored, as many as there are true boxes; None: no detections."""
    before_per_money: float | None = None
    """Items for one unit of the user's currency; None: no price was given."""
    after_per_money: Estimate | None = None
    says: str


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that costs nothing would bring a pipeline, by simulation of a recorded run."""

    stage: str
    """That runs the model."""
    share: float | None
    """Of the time that all stages worked, which is the model's; None: it was not measured."""
    ratio: float
    """Throughput of the pipeline over that of the recorded run."""
    is_low: bool
    """Whether something else should be worked on."""
    instead: str
    """The stage to work on first; empty where the ceiling is not low, or no other stage is known."""
    says: str


class RunOff(msgspec.Struct, frozen=True, kw_only=True):
    """Two accepted variants whose gains over what is in use overlap, held directly against each other."""

    a: str
    """The candidate that was ahead; `baseline` for what is in use, in a layout of its own."""
    b: str
    ratio: Estimate | None
    """Speed of B over that of A, for `cost` CPU time of A over that of B; None: it could not be measured."""
    rounds: int
    """Of A, B, A."""
    chosen: str
    """The faster one where that is sure, else the one that changes less."""
    says: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A technique that was not tried."""

    technique: str
    why: str


class OptimizationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A search for a cheaper variant."""

    schema: str = SCHEMA
    baseline: VariantSide
    """What is in use, which speeds are held against."""
    in_use: Attempt | None = None
    """Its answers against those of the model as given; None: it is the model as given."""
    model: Artifact
    objective: Literal["throughput", "latency", "size", "cost"]
    max_drop: float
    batch: int
    golden: str
    golden_uses: int = 0
    """How often this golden set had judged a variant of any model before."""
    attempts: tuple[Attempt, ...]
    """In the order in which they were tried."""
    skipped: tuple[Skipped, ...] = ()
    layout: Attempt | None = None
    """The search for workers, threads and batch of the recommended variant, or of what is in use where none is; None: it
    was not made."""
    laid_out: tuple[Attempt, ...] = ()
    """Such a search for each variant that its own layout could make the fastest, `layout` among them; the recommended one won
    by what its `whole` came to."""
    run_offs: tuple[RunOff, ...] = ()
    """In order; the one chosen by the last is recommended; none where one is surely the best, or the smallest is asked for."""
    end_to_end: EndToEnd | None = None
    """None: nobody asked, or nothing was found."""
    business: Business | None = None
    """None: nothing was found."""
    front: tuple[str, ...] = ()
    """Candidates that none other beats: accuracy against speed and size; the baseline among them as `baseline`."""
    recommended: str | None = None
    """The candidate; None: none is better and proved."""
    says: str
    ceiling: Ceiling | None = None
    """None: no run was given, or it does not tell."""
    stopped: Literal["", "ceiling", "goal"] = ""
    """Why nothing was tried: the model is too small a share, or the goals are met; empty: something was."""
    next_command: str | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def incumbent(self) -> str:
        """What speeds are over, in a sentence."""
        return "what the Plan uses" if self.in_use else "the model as given"

    @property
    def incumbent_mark(self) -> str:
        """The same, as a mark on a picture."""
        return "in use" if self.in_use else "as given"
