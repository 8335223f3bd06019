"""What a diagnosis says of a run folder and what is predicted from it: before the truth of the case is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.truth.changes import Asked
from benchmarks.truth.rows import Frozen, Said, said
from headrace.base.errors import HeadraceError
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.document import profile_document
from headrace.diagnose.whatif import predict
from headrace.runs.reader import read_run


class FrozenCase(msgspec.Struct, frozen=True, kw_only=True):
    """What was said and predicted of a case, before its truth was measured."""

    seed: int
    at_unix_seconds: float
    said: Said
    predictions: tuple[Frozen, ...]
    is_experimented: bool = False
    """After experiments with the running pipeline."""


def freeze(seed: int, run_folder: Path, asked: Sequence[Asked | Frozen]) -> FrozenCase:
    """Return what a diagnosis says of a run folder, and what is predicted from it.

    Args:
        seed: Of the case.
        run_folder: Of its profile.
        asked: The changes; or what was predicted for them once, to predict it again.
    """
    said_of_it, analysis = _diagnose(run_folder)
    predictions = tuple(_predict(analysis, one) for one in asked)
    return FrozenCase(seed=seed, at_unix_seconds=time.time(), said=said_of_it, predictions=predictions)


def _diagnose(run_folder: Path) -> tuple[Said, Analysis | None]:
    analysis = None
    try:
        analysis = Analysis(read_run(run_folder))
        return said(diagnosis_document(analysis)), analysis
    except Exception as error:  # a diagnosis that fails is a miss with a reason
        return Said(first=None, problem=f"{type(error).__name__}: {error}"), analysis


def _predict(analysis: Analysis | None, asked: Asked | Frozen) -> Frozen:
    empty = Frozen(kind=asked.kind, says=asked.says, change=asked.change, predicted=None)
    if analysis is None:
        return msgspec.structs.replace(empty, refused="the run folder could not be read")
    try:
        document = predict(analysis.replay, asked.change)
    except HeadraceError as error:
        return msgspec.structs.replace(empty, refused=str(error))
    throughput = document.throughput
    return msgspec.structs.replace(
        empty, predicted=throughput.ratio, refused=throughput.refused, warnings=document.warnings
    )


def rate_of(run_folder: Path) -> float | None:
    """Return the jobs per second of a profile; None if it does not tell."""
    try:
        return profile_document(read_run(run_folder)).throughput
    except HeadraceError:
        return None
