"""The way of an unattended loop, schema `headrace.loop/1`: `loop.json` of its folder. Version 1: 2026-11, first."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.loop/1"

StepKind = Literal["profile", "diagnose", "tune", "validate", "optimize", "compare"]
Outcome = Literal[
    "done", "better", "nothing better", "goal missed", "not sure", "refused", "failed", "interrupted", "out of time",
]  # fmt: skip
"""`out of time`: it was begun, and left when it was seen that it could not end within the budget; it is done again later."""
Stop = Literal["", "goal met", "nothing left", "budget", "jobs fail", "failed", "interrupted"]
"""Why it ended; empty: it has not, or it was killed."""


class LoopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; a loop that is resumed must be asked the same, but for the budget."""

    pipeline: str
    source: str
    """Empty: the pipeline's own."""
    goals: tuple[str, ...]
    """As typed; none: as much as can be gained."""
    rate: float | None = None
    """Jobs per second that are asked for."""
    slo: str = ""
    """The latency that is asked for, as `headrace tune --slo` takes it."""
    least_gain: float = 0.03
    """What is predicted to gain less, as a share, is not tried."""
    model: str = ""
    """The model's file; empty: no variant of it is searched."""
    data: str = ""
    golden: str = ""
    max_drop: float = 0.005
    deliver: bool = False
    block_seconds: float = 1.0
    plan_sha256: str = ""
    """Of the Plan at the beginning."""


class LoopStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step; what does not apply is empty or None."""

    number: int
    kind: StepKind
    command: str
    """That does the same by hand."""
    began_unix_seconds: float
    seconds: float
    outcome: Outcome
    says: tuple[str, ...] = ()
    plan_before: str = ""
    """Hash of the text of the Plan's file."""
    plan_after: str = ""
    """The same at the end of the step: another one if a better Plan was found, or one taken back."""
    run_folder: str = ""
    block_seconds: float | None = None
    """Of a profile: about how long a block of a comparison takes with this Plan, opening and closing included."""
    throughput: float | None = None
    """Of a diagnosis: jobs per second."""
    verdict: str = ""
    """Of a diagnosis: `GIL`, `DECODE`, ..."""
    is_met: bool | None = None
    """Of a diagnosis: whether all goals are met; None without goals, or where it is not known."""
    plan_gain: float | None = None
    """Of a diagnosis: the largest predicted ratio of throughput by settings of the Plan; None: it predicts none."""
    model_gain: float | None = None
    """Of a diagnosis: the ratio with a model that costs nothing; None: not known, or there is none."""
    ratio: Estimate | None = None
    """Throughput after over before, as measured."""
    is_emulated: bool = False
    """Of a diagnosis: the device was emulated, its times are settings."""
    changes_answers: bool = False
    """Of a tuning: the better Plan decodes otherwise, so that answers may change."""


class LoopDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A loop, as far as it has come."""

    schema: str = SCHEMA
    headrace_version: str
    asked: LoopAsked
    folder: str
    ledger: str
    budget_seconds: float | None
    steps: tuple[LoopStep, ...] = ()
    stopped: Stop = ""
    is_met: bool | None = None
    """Whether the goals are met by the last Plan; None without goals, or where it is not known."""
    throughput_before: float | None = None
    throughput_after: float | None = None
    ratio: Estimate | None = None
    """Of the last Plan to the first, by blocks in turn; None where nothing was changed or it was not measured."""
    changed: tuple[str, ...] = ()
    """Settings of the last Plan that the first had otherwise."""
    plan_file: str = ""
    """The last Plan; empty where nothing better was found."""
    says: tuple[str, ...] = ()
    is_emulated: bool = False
