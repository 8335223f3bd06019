"""Predicts every step of a ladder from a profile of the first one, before the others have run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.plan import Plan
from headrace.base.plan_changes import list_changed_settings
from headrace.compare.blocks import FEWEST_ITEMS, Contender, SameItems, as_in_blocks, replace_parts
from headrace.compare.contenders import Blocks, Say, run_block
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.whatif import predict
from headrace.ledger.ledger import Ledger
from headrace.pipeline.definition import Pipeline
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.prediction import Change, PredictionDocument, TrackRecord
from headrace.runs.reader import read_run
from headrace.tune.ladder_steps import Step

#: How long the first step is profiled, in blocks, and within which numbers of items.
_PROFILED_BLOCKS = 6
_FEWEST_PROFILED, _MOST_PROFILED = 40, 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What was predicted before anything but the first step ran."""

    documents: Mapping[str, PredictionDocument] = field(default_factory=dict)
    """By step; `id` is the ledger's, empty without one."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By step: why it was not predicted."""
    record: TrackRecord = field(default_factory=lambda: TrackRecord(num=0))
    """Of the ledger, before these predictions."""


def freeze(
    pipeline: Pipeline,
    steps: Sequence[Step],
    items: SameItems,
    blocks: Blocks,
    run_folder: Path,
    ledger: Ledger | None,
    say: Say,
) -> Frozen:
    """Profile the first step, predict the others from that alone, and write the predictions down.

    Args:
        pipeline: What is run.
        steps: The first is profiled.
        items: What it runs over.
        blocks: How much is measured later; the profile lasts as long as six blocks.
        run_folder: Where the profile is written; new or empty.
        ledger: Where the predictions are written; None: nowhere.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If the first step cannot run.
        Interrupted: If it was interrupted.
    """
    record = ledger.track_record() if ledger else TrackRecord(num=0)
    first, *others = steps
    items.num_items = _num_profiled(pipeline, first.plan, items, blocks)
    say(f"profiling the sequential Plan: {items.num_items:,} items, into {run_folder}")
    _profile(pipeline, first.plan, items, run_folder)
    try:
        replay = Analysis(read_run(run_folder)).replay
    except HeadraceError as error:
        return Frozen(refused={step.name: str(error) for step in others}, record=record)
    documents, refused = {}, {}
    for step in others:
        change = Change(settings=list_changed_settings(first.plan, step.plan))
        try:
            document = predict(replay, change, record=record)
        except (HeadraceError, ValueError) as error:
            refused[step.name] = str(error)
            continue
        ratio = document.throughput.ratio
        if ratio is None:
            refused[step.name] = document.throughput.refused
            continue
        if ledger:
            document = msgspec.structs.replace(
                document, id=ledger.write_prediction(document, hardware=replay.run.info.hardware)
            )
        documents[step.name] = document
        say(f"predicted: {step.name} {ratio.mid:.3g} times the sequential throughput")
    return Frozen(documents=documents, refused=refused, record=record)


def _num_profiled(pipeline: Pipeline, plan: Plan, items: SameItems, blocks: Blocks) -> int:
    if blocks.items is not None:
        return max(_FEWEST_PROFILED, blocks.items)
    pilot = run_block(Contender(name="sequential", pipeline=pipeline, plan=plan), items, FEWEST_ITEMS)
    wanted = math.ceil(_PROFILED_BLOCKS * blocks.seconds * (pilot.throughput or 0.0))
    return min(_MOST_PROFILED, max(_FEWEST_PROFILED, wanted))


def _profile(pipeline: Pipeline, plan: Plan, items: SameItems, run_folder: Path) -> None:
    # It would switch profiling off for part of what is little enough.
    settings = ProfileSettings(measure_overhead=False)
    source, limit = items.source_for(pipeline)
    with as_in_blocks(source, limit):
        result = profile(replace_parts(pipeline, source), plan, output=run_folder, limit=limit, settings=settings)
    if result.interrupted:
        raise Interrupted(f"interrupted while the sequential Plan was profiled; what ran until then is in {run_folder}")
