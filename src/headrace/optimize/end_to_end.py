"""The last gate: does the whole pipeline gain what its model gained? Predicted from a recording first, then measured.

A model five times as fast makes a pipeline that waits for downloads no faster. So the incumbent is recorded, the gain is
predicted by simulating that recording with the cheaper model and written to the ledger, and only then both run in paired blocks
over the same items. It is judged by what was asked for: for latency by the time that an item takes through the pipeline, for
cost by CPU time, of what is no slower; else by throughput. What the prediction was off by is kept: the ledger's record says how
far to trust the next one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import HeadraceError, Interrupted
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan, resolve
from headrace.base.plan_changes import list_changed_settings
from headrace.compare.blocks import FEWEST_ITEMS, Contender, SameItems, as_in_blocks, measure_block, replace_parts
from headrace.compare.comparison import METRICS, compare_pipelines
from headrace.compare.comparison import Question as Compared
from headrace.compare.contenders import Blocks
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.diagnose.whatif import predict
from headrace.ledger.ledger import Ledger, hardware_fingerprint
from headrace.optimize.amdahl import find_amdahl_bound
from headrace.optimize.better_plan import find_accepted_concurrency, proof_of
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.stage_defaults import stage_defaults
from headrace.pipeline.thread_budget import usable_cores
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.comparison import Beside, ComparisonDocument
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Ceiling, EndToEnd, OptimizationDocument
from headrace.runs.formats.prediction import Change, PredictionDocument
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run, read_run
from headrace.sources.finite import FiniteSource

#: How long the incumbent is recorded, in blocks, and within which numbers of items.
_PROFILED_BLOCKS = 5
_FEWEST_PROFILED, _MOST_PROFILED = 60, 5000
#: What is measured: more pairs are taken until it is sure or the time is over.
BLOCKS = Blocks(pairs=8, seconds=1.0, until_sure=True, time_limit_seconds=120.0)

#: What is compared for an objective, other than throughput, and the words for less of it.
_METRICS = {"latency": "latency", "cost": "cpu"}
_LESS = {"latency_p50": "an item is through {} times as soon", "cpu_per_item": "{} times less CPU time an item"}

_INCUMBENT, _CANDIDATE = "as it is", "with what was found"

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The pipeline before and after, and its items."""

    pipeline: Pipeline
    source: FiniteSource
    """Read once; every block has the same items."""
    before: Plan
    after: Plan
    stage: str
    """The device stage that runs the model."""
    found: OptimizationDocument
    """The search that proved the variant or the concurrency."""


def judge_end_to_end(
    question: Question,
    *,
    runs: Path,
    recorded: Path | None = None,
    ledger: Ledger | None = None,
    blocks: Blocks = BLOCKS,
    say: Say = lambda text: None,
) -> EndToEnd:
    """Return what a search's result does for a whole pipeline.

    Args:
        question: The pipeline before and after.
        runs: Folder for the recording.
        recorded: A run folder to predict from, if it is of the same pipeline and Plan; else the incumbent is recorded.
        ledger: Where the prediction is written before the measurement; None: nowhere.
        blocks: How much is measured.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If one of the two cannot run.
        Interrupted: If it was interrupted before anything was measured.
    """
    items = SameItems(question.source)
    run = _find_recording(question, items, runs, recorded, blocks.seconds * _PROFILED_BLOCKS, say)
    predicted, ceiling, refused = _predict(question, run)
    number = ledger.write_prediction(predicted, hardware=run.info.hardware) if ledger and predicted else ""
    if predicted is not None and predicted.throughput.ratio is not None:
        left_out = _explain_left_out(question)
        say(f"predicted: {predicted.throughput.ratio.mid:.2f} times the throughput{left_out}; now it is measured")
    began = time.time()
    try:
        compared = compare_pipelines(
            Contender(name=_INCUMBENT, pipeline=question.pipeline, plan=question.before),
            Contender(name=_CANDIDATE, pipeline=question.pipeline, plan=question.after),
            question.source,
            question=Compared(metric=METRICS[_METRICS.get(question.found.objective, "throughput")]),
            blocks=blocks,
            say=say,
        )
    except HeadraceError as error:
        if isinstance(error, Interrupted) or not str(error).startswith(f"{_CANDIDATE}: "):
            raise
        return _keep(question, ledger, _describe_failure(question, run, number, str(error)), run)
    measured = _read_measured(_throughput(compared))
    if ledger and number and measured is not None:
        ledger.write_measurement(
            number, measured, f"{pluralize(compared.num_pairs, 'interleaved pair')}", measured_at=began
        )
    return _keep(question, ledger, _tell(question, run, compared, predicted, number, refused, ceiling), run)


def _keep(question: Question, ledger: Ledger | None, found: EndToEnd, run: Run) -> EndToEnd:
    """Write down which attempt it was that was measured, so that prediction and outcome are found from there."""
    proof = proof_of(question.found)
    if ledger is not None and proof.id:
        ledger.events.write(
            Event(
                kind="pipeline", attempt=proof.id, model=proof.model, technique=proof.technique, verdict=found.verdict,
                says=f"{found.pipeline}: {found.says}", hardware=hardware_fingerprint(run.info.hardware),
                speedup=found.measured, prediction=found.prediction,
            )
        )  # fmt: skip
    return found


def _find_recording(
    question: Question, items: SameItems, runs: Path, recorded: Path | None, seconds: float, say: Say
) -> Run:
    """Return the run to predict from: the one that is there if it is of this Plan, else one that is made now."""
    defaults = stage_defaults(question.pipeline, question.before)
    plan_id = resolve(question.before, defaults, usable_cores()).plan_id
    if recorded is not None:
        run = read_run(recorded)
        if plan_id in run.info.plans and run.info.pipeline == question.pipeline.name:
            return run
        say(f"{recorded} is of another pipeline or Plan; recording the one that is changed")
    pilot = measure_block(
        Contender(name=_INCUMBENT, pipeline=question.pipeline, plan=question.before), items, FEWEST_ITEMS
    )
    if pilot.interrupted:
        raise Interrupted("interrupted before the pipeline was measured; nothing is known of it")
    wanted = math.ceil(seconds * (pilot.throughput or 0.0))
    items.num_items = min(_MOST_PROFILED, max(_FEWEST_PROFILED, wanted))
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", question.pipeline.name).strip("-") or "pipeline"
    folder = runs / f"optimize-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    say(f"recording {items.num_items:,} items with the Plan as it is, into {folder}")
    settings = ProfileSettings(measure_overhead=False)
    source, limit = items.source_for(question.pipeline)
    pipeline = replace_parts(question.pipeline, source)
    with as_in_blocks(source, limit):
        result = profile(pipeline, question.before, output=folder, limit=limit, settings=settings)
    if result.interrupted:
        raise Interrupted(f"interrupted while recording; what ran until then is in {folder}")
    return read_run(folder)


def _predict(question: Question, run: Run) -> tuple[PredictionDocument | None, Ceiling | None, str]:
    """Return the prediction, what a free model would bring, and why there is neither."""
    try:
        analysis = Analysis(run)
        ceiling = find_amdahl_bound(analysis)
        document = predict(analysis.replay, _change(question, analysis.replay))
    except (HeadraceError, ValueError) as error:
        return None, None, str(error)
    if document.throughput.ratio is None:
        return None, ceiling, document.throughput.refused
    return document, ceiling, ""


def _change(question: Question, replay: Replay) -> Change:
    """Return what is done otherwise: the Plan's settings, and what the model costs now."""
    after = resolve(question.after, stage_defaults(question.pipeline, question.after), usable_cores())
    settings = list_changed_settings(replay.plan, after)
    concurrency = find_accepted_concurrency(question.found)
    if concurrency is None:
        times = speedup_at(question.found, after.stages[question.stage].batch or 1)
        return Change(settings=settings, speedups={question.stage: times})
    best = next(one for one in reversed(concurrency.layouts) if one.chosen)
    # What a call takes where as many workers run beside it, in each batch that was timed so.
    curve = {
        one.batch: one.workers * one.batch / one.items_per_second
        for one in concurrency.layouts
        if (one.workers, one.threads) == (best.workers, best.threads)
    }
    return Change(settings=settings, cost_curves={question.stage: curve})


def speedup_at(found: OptimizationDocument, batch: int) -> float:
    """Return how many times as fast the recommended variant is in batches of this size, at the Plan's concurrency.

    Where its own was searched, it was timed at the Plan's, too; else in the batch of its gates alone.

    Raises:
        CannotReplay: If it was timed in other batches: int8, for instance, gains more from large ones than float32 does.
    """
    proof, concurrency = proof_of(found), found.layout
    timed = {proof.validation.batch: proof.speedup}
    if concurrency is not None and concurrency.whole is not None:
        timed[concurrency.stages["batch"]] = concurrency.whole.ratio
    at = timed.get(batch)
    if at is None:
        sizes = " and ".join(str(size) for size, speedup in sorted(timed.items()) if speedup)
        raise CannotReplay(
            f"the variant was timed in batches of {sizes}, and those of the Plan are of {batch}: --batch {batch} times it so"
            if sizes
            else "the variant was not timed"
        )
    return at.mid


def _describe_failure(question: Question, run: Run, number: str, why: str) -> EndToEnd:
    """Return what is said of a candidate with which the pipeline does not work, such as a module that needs another engine."""
    return EndToEnd(
        pipeline=question.pipeline.name, source="", prediction=number, predicted=None, refused="", measured=None, error=None,
        before_per_second=0.0, after_per_second=0.0, num_pairs=0, verdict="worse", ceiling=None, run=str(run.path),
        says=f"the pipeline fails with it: {why}",
    )  # fmt: skip


def _throughput(compared: ComparisonDocument) -> ComparisonDocument | Beside | None:
    """Return what was measured of the throughput; None if no pair has it."""
    if compared.metric == "throughput":
        return compared
    return next((one for one in compared.beside if one.metric == "throughput"), None)


def _read_measured(compared: ComparisonDocument | Beside | None) -> Estimate | None:
    if compared is None or compared.ratio is None or compared.ratio_low is None or compared.ratio_high is None:
        return None
    return Estimate(compared.ratio_low, compared.ratio, compared.ratio_high)


def _compute_gain(compared: ComparisonDocument) -> Estimate | None:
    """Return by how much there is less of what was asked for; None for throughput."""
    found = _read_measured(compared)
    if found is None or compared.higher_is_better:
        return None
    return Estimate(1 / found.high, 1 / found.mid, 1 / found.low)


def _medians(compared: ComparisonDocument | Beside | None) -> tuple[float, float]:
    if compared is None:
        return 0.0, 0.0
    if isinstance(compared, Beside):
        return compared.a, compared.b
    return compared.a.median or 0.0, compared.b.median or 0.0


def _tell(
    question: Question,
    run: Run,
    compared: ComparisonDocument,
    predicted: PredictionDocument | None,
    number: str,
    refused: str,
    ceiling: Ceiling | None,
) -> EndToEnd:
    throughput = _throughput(compared)
    measured, (before, after) = _read_measured(throughput), _medians(throughput)
    is_slower = question.found.objective == "cost" and throughput is not None and throughput.verdict == "worse"
    ratio = predicted.throughput.ratio if predicted else None
    error = None if ratio is None or measured is None else ratio.mid / measured.mid - 1
    found = EndToEnd(
        pipeline=question.pipeline.name, source=f"{compared.environment.get('distinct_items', 0):,} items",
        prediction=number, predicted=ratio, refused=refused, measured=measured, error=error,
        before_per_second=before, after_per_second=after, num_pairs=compared.num_pairs, metric=compared.metric,
        gained=_compute_gain(compared), verdict="worse" if is_slower else compared.verdict,
        ceiling=ceiling.ratio if ceiling else None, run=str(run.path), says="",
    )  # fmt: skip
    return msgspec.structs.replace(found, says=_says(found, ceiling, _explain_left_out(question)))


def _explain_left_out(question: Question) -> str:
    """Return in words what a prediction does not count: the recording knows the images before the model as they were."""
    if question.before.model.input_side == question.after.model.input_side:
        return ""
    return ", by the model alone: what images of another size cost before it is not counted"


def _says(found: EndToEnd, ceiling: Ceiling | None, left_out: str) -> str:
    measured, predicted, gained = found.measured, found.predicted, found.gained
    parts = (
        [_LESS[found.metric].format(f"{gained.mid:.2f}") + f" ({gained.low:.2f} to {gained.high:.2f})"]
        if gained is not None
        else []
    )
    parts += [
        "end to end nothing is sure: too few pairs"
        if measured is None
        else f"end to end {measured.mid:.2f} times the throughput ({measured.low:.2f} to {measured.high:.2f}), "
        f"{found.before_per_second:.4g} to {found.after_per_second:.4g} items per second"
    ]
    if predicted is None:
        parts.append(f"not predicted: {found.refused}")
    else:
        off = "" if found.error is None else f", {100 * found.error:+z.0f} % off"
        parts.append(f"predicted {predicted.mid:.2f} ({predicted.low:.2f} to {predicted.high:.2f}){left_out}{off}")
    if found.verdict != "better":
        parts.append(
            {
                "worse": "that is worse" if found.gained else "that is slower",
                "no_difference": "that is no gain",
                "underpowered": "that may be no gain",
            }[found.verdict]
        )
        if ceiling is not None:
            parts.append(f"{ceiling.says}")
    return "; ".join(parts)


def judge(document: OptimizationDocument, found: EndToEnd, *, anyway: bool) -> OptimizationDocument:
    """Return a search's document with what its result did for the pipeline, and nothing recommended where it gains nothing.

    For `size` it is enough that the pipeline surely loses nothing.

    Args:
        document: The search.
        found: What was measured.
        anyway: Recommend it all the same.
    """
    enough = ("better", "no_difference") if document.objective == "size" else ("better",)
    gains = found.verdict in enough
    document = msgspec.structs.replace(document, end_to_end=found)
    if gains or anyway:
        return msgspec.structs.replace(document, says=f"{document.says}; {found.says}")
    concurrency = find_accepted_concurrency(document)
    rejected = (
        msgspec.structs.replace(concurrency, verdict="reject", gate="pipeline") if concurrency else document.layout
    )
    says = f"keep what you have: {found.says}. It was about this: {document.says}"
    return msgspec.structs.replace(document, recommended=None, layout=rejected, says=says)
