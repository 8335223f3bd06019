"""Trains one model on several ranks in every way of sharing the work: by data, by parts of the model, as a pipeline."""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import Interrupted, SettingsError
from headrace.diagnose.training.pipeline_bubble import (
    PipelineTime,
    StageNeeds,
    order_1f1b,
    order_gpipe,
    time_pipeline,
)
from headrace.runs.formats.parallel import Bubble, MeasuredWay, ParallelDocument, StageTimes, Way
from headrace.runs.run_folder import headrace_version
from headrace.train.ranks.launch import Group, RanksFailed, run_group
from headrace.train.ranks.parallel_child import Answer, Found, Request, Step

#: A bubble that was predicted so many points off is worth a warning.
_FAR_OFF = 0.05
#: Ranks that have no core for this share of their time say more of the machine than of the ways.
_NO_CORE = 0.05
#: Losses of the same training may differ by this share: sums of float32 in another order.
_ALIKE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """What is asked for.

    Attributes:
        recipe: FILE.py:FUNCTION or module:FUNCTION.
        ranks: How many share the work.
        micro_batches: Into which a pipeline cuts a batch.
        steps: Of each way in each round.
        rounds: In which the ways take turns.
        threads: Of PyTorch's operators, in each rank.
        seed: Of the recipe's random numbers.
        patience: Seconds until the ranks are taken to hang.
    """

    recipe: str
    ranks: int = 2
    micro_batches: int = 4
    steps: int = 10
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    patience: float = 600.0

    def __post_init__(self) -> None:
        """Raise SettingsError for what no schedule can do."""
        if self.ranks < 2:
            raise SettingsError(f"--ranks {self.ranks}: one rank shares nothing; expected 2 or more")
        if self.micro_batches < self.ranks:
            raise SettingsError(
                f"--micro-batches {self.micro_batches} for {self.ranks} ranks; expected as many as ranks or more: the schedule "
                "1F1B needs one for each stage"
            )


def measure_ways(settings: ParallelSettings) -> ParallelDocument:
    """Train in every way, and return what came of it; after Ctrl-C the rounds that were done.

    Raises:
        RanksFailed: If a rank fails or hangs.
        Interrupted: If it was interrupted before the first round was done.
        SettingsError: If there is no such file.
    """
    file = settings.recipe.partition(":")[0]
    if file.endswith(".py") and not Path(file).exists():  # before ranks are started, which import PyTorch first
        raise SettingsError(f"{file} does not exist; expected FILE.py:FUNCTION, got {settings.recipe!r}")
    request = Request(
        recipe=settings.recipe,
        micro_batches=settings.micro_batches,
        steps=settings.steps,
        rounds=settings.rounds,
        seed=settings.seed,
        threads=settings.threads,
        deadline=time.monotonic() + settings.patience,
    )
    with tempfile.TemporaryDirectory(prefix="headrace-parallel-") as name:
        folder = Path(name)
        asked, answer = folder / "request.json", folder / "answer.json"
        asked.write_bytes(encode_document(request))
        argv = (sys.executable, "-m", "headrace.train.ranks.parallel_child", str(asked), str(answer))
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
        is_interrupted = False
        try:
            run_group(
                Group(
                    argv=argv, ranks=settings.ranks, environment=environment, logs=folder, patience=settings.patience,
                    keeps_logs=False, advice="Where it is stands in its last lines, if it had begun.",
                )
            )  # fmt: skip
        except KeyboardInterrupt:
            is_interrupted = True
            if not answer.exists():
                raise Interrupted("interrupted before the first round was done: nothing was measured") from None
        if not answer.exists():
            raise RanksFailed(
                "all ranks ended with exit status 0 before a round was done: does the recipe call sys.exit() or os._exit()?"
            )
        found = decode_document(answer.read_bytes(), Answer)
    return describe(settings, found, is_interrupted=is_interrupted)


def describe(settings: ParallelSettings, answer: Answer, *, is_interrupted: bool = False) -> ParallelDocument:
    """Return what the ranks measured, in figures of the middle step."""
    cores = len(os.sched_getaffinity(0))
    ways = [_describe_way(found, settings, answer.batch_size, cores) for found in answer.found]
    return ParallelDocument(
        headrace_version=headrace_version(),
        created_unix_seconds=time.time(),
        recipe=settings.recipe,
        ranks=settings.ranks,
        threads=settings.threads,
        num_cores=cores,
        batch_size=answer.batch_size,
        ways=tuple(ways),
        warnings=tuple(_warn(ways, settings, cores, answer)),
        interrupted=is_interrupted,
    )


def _describe_way(found: Found, settings: ParallelSettings, batch_size: int, cores: int) -> MeasuredWay:
    together = list(zip(*found.steps, strict=True))
    seconds = statistics.median(_span([(one.began, one.ended) for one in step]) for step in together)
    passes = [_span([(one.began, one.computed) for one in step]) for step in together]
    count = 1 if found.way in (Way.ONE, Way.DATA, Way.MODEL) else settings.micro_batches
    bubble, predicted = None, None
    if found.stages:
        predicted = predict(found.way, found.stages, count, cores)
        bubble = Bubble(
            measured=statistics.median(map(_measure_bubble, together, passes)),
            predicted=predicted.bubble,
            by_formula=(settings.ranks - 1) / (count + settings.ranks - 1),
        )
    return MeasuredWay(
        way=found.way,
        ranks=len(found.steps),
        micro_batches=count,
        num_steps=len(together),
        step_seconds=seconds,
        samples_per_second=batch_size / seconds,
        measured_seconds=statistics.median(passes),
        predicted_seconds=None if predicted is None else predicted.seconds,
        bubble=bubble,
        kept=max(one.kept for step in together for one in step),
        loss=_last_loss(together[-1]),
        stages=tuple(found.stages),
    )


def predict(way: Way, stages: Sequence[StageTimes], micro_batches: int, cores: float = math.inf) -> PipelineTime:
    """Return what a step takes, from what each stage takes alone, on cores that they share."""
    needs = [
        StageNeeds(
            forward=one.forward_seconds + one.pass_seconds,
            backward=one.backward_seconds + one.pass_seconds,
            transfer=one.transfer_seconds,
            fetch=one.fetch_seconds,
            between=one.between_seconds,
            forward_core=one.forward_core_seconds + one.pass_seconds,
            backward_core=one.backward_core_seconds + one.pass_seconds,
        )
        for one in stages
    ]
    orders = [
        order_1f1b(micro_batches, stage, len(stages)) if way is Way.ONE_F_ONE_B else order_gpipe(micro_batches)
        for stage in range(len(stages))
    ]
    return time_pipeline(needs, orders, cores)


def _span(times: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from the first begin to the last end; ranks of one host share the clock."""
    return max(end for _, end in times) - min(begin for begin, _ in times)


def _measure_bubble(ranks: Sequence[Step], seconds: float) -> float:
    return 1 - sum(one.busy for one in ranks) / (len(ranks) * seconds)


def _last_loss(ranks: Sequence[Step]) -> float:
    """Return the loss of a step: of data parallelism the mean of the shares'."""
    return statistics.mean(one.loss for one in ranks if one.loss is not None)


def _share_without_core(found: Found) -> float:
    """Return the share of the ranks' time in which they could compute and had no core."""
    steps = [step for rank in found.steps for step in rank]
    seconds = sum(step.ended - step.began for step in steps)
    # A wait that goes on while the clocks are read is counted too, and short steps have as long ones.
    return min(1.0, sum(step.core_wait for step in steps) / seconds) if seconds else 0.0


def _warn(ways: Sequence[MeasuredWay], settings: ParallelSettings, cores: int, answer: Answer) -> list[str]:
    left_out = answer.left_out
    warnings = [f"only one rank and data parallelism were measured: {left_out}"] if left_out else []
    if answer.unused:
        warnings.append(
            f"{', '.join(answer.unused)} of the model get no gradient: data parallelism looks for such parameters in each step "
            "(find_unused_parameters=True), which takes time; leave them out, or freeze them (requires_grad_(False))"
        )
    if answer.batch_size != answer.asked_size:
        warnings.append(
            f"a batch of {answer.asked_size} cannot be shared by {settings.ranks} ranks and cut into {settings.micro_batches} "
            f"micro-batches evenly: {answer.batch_size} samples of it were trained, in every way"
        )
    without_core = max(map(_share_without_core, answer.found))
    is_crowded = settings.ranks * settings.threads > cores
    if without_core >= _NO_CORE and not is_crowded:
        warnings.append(
            f"ranks could compute and had no core for {without_core:.0%} of the time: other programs had it; stop them, and "
            "measure again"
        )
    if is_crowded:
        warnings.append(
            f"{settings.ranks} ranks of {settings.threads} thread(s) share {cores} core(s): each takes them from the others, "
            "so these figures say more of this machine than of the ways"
        )
    one = ways[0]
    for way in ways[1:]:
        if abs(way.loss - one.loss) > _ALIKE * max(abs(one.loss), 1e-12):
            warnings.append(
                f"{way.way}: the loss of the last step is {way.loss:.6g}, with one rank {one.loss:.6g}: batch normalisation, "
                "dropout or a loss that is no mean over samples makes this another training"
            )
        bubble = way.bubble
        if bubble is not None and abs(bubble.measured - bubble.predicted) > _FAR_OFF:
            why = "stages were without a core" if without_core >= _NO_CORE else "stages take another time than alone"
            warnings.append(
                f"{way.way}: a bubble of {bubble.predicted:.0%} was predicted and {bubble.measured:.0%} measured: while all "
                f"ranks compute, {why}"
            )
    return warnings
