"""Searches the batch size: a child process for each, doubling until memory, throughput or the data set ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.runs.formats.batch_search import BatchSearchDocument, LossComparison, SizeTrial
from headrace.train.search.children import Answer, TrainingFailed, run_child
from headrace.train.search.limits import find_limit
from headrace.train.search.loss_judgement import FEWEST_SEEDS
from headrace.train.search.loss_search import LossSettings, compare_losses
from headrace.train.search.sizes import HEADROOM, choose_size, measured, model_memory, next_size, predict_peak


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What a search may use."""

    memory_bytes: int | None = None
    """Limit of the training process; None: what the machine, control group or device has."""
    seconds: float = 1.0
    """Steps of a size are timed so long."""
    largest: int | None = None
    """Largest size; None: the data set's."""
    seed: int = 0
    loss_samples: int | None = None
    """Samples of each training whose validation loss is compared; None: once through the data."""
    rate_rule: str = "linear"
    """How the learning rate follows the batch size."""
    num_seeds: int = FEWEST_SEEDS
    margin: float = 0.01
    """Increase of the validation loss that is acceptable, as a share."""


def search_batch_size(
    recipe: str,
    settings: SearchSettings,
    *,
    on_trial: Callable[[SizeTrial], None] = lambda _: None,
    on_comparison: Callable[[LossComparison], None] = lambda _: None,
) -> BatchSearchDocument:
    """Find the batch size; Ctrl-C ends it early and keeps what was measured.

    Args:
        recipe: FILE.py:make.
        settings: Of the search.
        on_trial: Called after each size.
        on_comparison: Called after each comparison of validation losses.

    Raises:
        SettingsError: If the recipe is none.
        TrainingFailed: If the user's code failed.
        KeyboardInterrupt: If it came before a size was tried.
    """
    about = run_child("describe", recipe, seed=settings.seed).results[0]
    limit, limit_from = find_limit(settings.memory_bytes, about["device_bytes"])
    largest = min(about["num_samples"], settings.largest or about["num_samples"])
    trials: list[SizeTrial] = []
    losses: list[LossComparison] = []
    interrupted, stopped, present = False, "interrupted", about["batch_size"]
    wants_losses = bool(about["num_validation"])
    loss_settings = LossSettings(
        samples=settings.loss_samples or about["num_samples"],
        rule=settings.rate_rule,
        num_seeds=settings.num_seeds,
        margin=settings.margin,
    )

    def keep_trial(size: int) -> None:
        trials.append(_try(recipe, size, limit, trials, settings))
        on_trial(trials[-1])

    def keep_comparison(comparison: LossComparison) -> None:
        losses.append(comparison)
        on_comparison(comparison)

    try:
        for size in _sizes(trials, limit, largest):
            try:
                keep_trial(size)
            except TrainingFailed:
                if trials or largest < 2:
                    raise
                keep_trial(2)  # batch normalisation takes no single sample
        stopped = next_size(trials, limit_bytes=limit, largest=largest)[1]
        if _is_worth_running(present, trials, limit, largest):
            keep_trial(present)
        candidates = _larger(choose_size(trials, limit_bytes=limit), present, trials)
        if wants_losses and candidates:
            compare_losses(recipe, present, candidates, loss_settings, on_comparison=keep_comparison)
    except KeyboardInterrupt:
        if not trials:
            raise
        interrupted = True
    fastest = choose_size(trials, limit_bytes=limit)
    return BatchSearchDocument(
        recipe=recipe,
        headrace_version=__version__,
        torch_version=about["torch_version"],
        device=about["device"],
        threads=about["threads"],
        num_samples=about["num_samples"],
        num_parameters=about["num_parameters"],
        present_batch_size=about["batch_size"],
        limit_bytes=limit,
        limit_from=limit_from,
        headroom=HEADROOM,
        trials=tuple(trials),
        memory=model_memory(trials),
        batch_size=_recommend(fastest, present, losses),
        fastest=fastest,
        losses=tuple(losses),
        loss_samples=loss_settings.samples if losses else None,
        rate_rule=settings.rate_rule if losses else None,
        stopped=stopped,
        interrupted=interrupted,
    )


def _sizes(trials: list[SizeTrial], limit: int, largest: int) -> Iterator[int]:
    """Yield sizes to try, each after the trial of the one before was added."""
    while (size := next_size(trials, limit_bytes=limit, largest=largest)[0]) is not None:
        yield size


def _is_worth_running(present: int, trials: Sequence[SizeTrial], limit: int, largest: int) -> bool:
    """Return whether the present size is missing in the table, and can fit by what is known."""
    predicted = predict_peak(trials, present)
    failed = min((trial.batch_size for trial in trials if trial.outcome != "measured"), default=present + 1)
    known = {trial.batch_size for trial in trials}
    return present not in known and present <= min(largest, failed - 1) and (predicted is None or predicted <= limit)


def _larger(fastest: int | None, present: int, trials: Sequence[SizeTrial]) -> list[int]:
    """Return the fastest and what else was measured between it and the present size, the largest first."""
    sizes = sorted((trial.batch_size for trial in measured(trials)), reverse=True)
    return [size for size in sizes if fastest is not None and present < size <= fastest]


def _recommend(fastest: int | None, present: int, losses: Sequence[LossComparison]) -> int | None:
    """Return the fastest size, or, where losses were compared, the one that was kept; the present one if none was."""
    if not losses:
        return fastest
    return next((loss.batch_size for loss in losses if loss.outcome == "kept"), present)


def _try(recipe: str, size: int, limit: int, trials: list[SizeTrial], settings: SearchSettings) -> SizeTrial:
    answer = run_child(
        "steps", recipe, seed=settings.seed, limit_bytes=limit, batch_size=size, seconds=settings.seconds
    )
    return as_trial(size, answer, predict_peak(trials, size))


def as_trial(size: int, answer: Answer, predicted: float | None) -> SizeTrial:
    """Return what a child process found about a size.

    Args:
        size: Samples in a batch.
        answer: Of the child.
        predicted: Peak memory that was predicted, bytes.
    """
    if not answer.results:
        return SizeTrial(batch_size=size, outcome="does not fit", why=answer.shortage, predicted_peak_bytes=predicted)
    found = answer.results[0]
    return SizeTrial(
        batch_size=size,
        outcome="measured",
        samples_per_second=size / found["step_seconds"],
        step_seconds=found["step_seconds"],
        spread=found["spread"],
        num_steps=found["num_steps"],
        core_wait=found["core_wait"],
        peak_bytes=found["peak_bytes"],
        base_bytes=found["base_bytes"],
        predicted_peak_bytes=predicted,
    )
