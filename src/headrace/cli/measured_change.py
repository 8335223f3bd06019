"""Reads what a predicted change did from a comparison or two run folders, and refuses what does not answer the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.documents import decode_document
from headrace.base.errors import LedgerError, SettingsError

if TYPE_CHECKING:
    from headrace.runs.formats.comparison import ComparisonDocument
    from headrace.runs.formats.ledger import PredictionEntry
    from headrace.runs.formats.profile import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChange:
    """What came of a change."""

    ratio: Estimate
    how: str
    began_unix_seconds: float


def find_measured(results: Sequence[str], entry: PredictionEntry) -> MeasuredChange:
    """Return what was measured, once it is clear that it is what was predicted.

    Args:
        results: The file of a comparison, or two run folders: before and after.
        entry: The prediction, with its document.

    Raises:
        SettingsError: If it is neither, or the file is no comparison.
        LedgerError: If it does not answer the prediction: not throughput, no interval, another Plan.
        RunFolderError: If a run folder cannot be read or compared.
    """
    if entry.document is not None and entry.document.unit == "step":
        return _measure_training(results, entry)
    if len(results) == 2 and all(Path(text).is_dir() for text in results):
        compared, began, how = _measure_from_runs(*results)
    elif len(results) == 1 and Path(results[0]).is_file():
        compared, began, how = _measure_from_comparison(Path(results[0]))
    else:
        raise SettingsError(
            f"{' '.join(results)}: expected the JSON file of `headrace compare -o FILE`, or two run folders: before and after"
        )
    _check_plan(compared, entry)
    doubts = _doubts(compared, entry)
    return MeasuredChange(ratio=_ratio(compared), how="; ".join([how, *doubts]), began_unix_seconds=began)


def _measure_from_runs(before: str, after: str) -> tuple[ComparisonDocument, float, str]:
    from headrace.compare.comparison import compare_runs
    from headrace.runs.reader import read_run

    runs = read_run(before), read_run(after)
    compared = compare_runs(*runs)
    # The run with the change is the measurement; the one before may be the very run that was predicted from.
    return compared, runs[1].info.started_unix_seconds, "two recorded runs, so drift of the machine is in it"


def _measure_training(results: Sequence[str], entry: PredictionEntry) -> MeasuredChange:
    """Return what came of a change of a training, by two run folders or by a comparison of both in turn."""
    if len(results) == 1 and Path(results[0]).is_file():
        return _measure_trainings_in_turn(Path(results[0]), entry)
    if len(results) != 2 or not all(Path(text).is_dir() for text in results):
        raise SettingsError(
            f"{' '.join(results)}: {entry.id} is of a training; expected the JSON file of `headrace train compare -o FILE`, or "
            "two run folders: before and after"
        )
    return _measure_recorded_trainings(results, entry)


def _measure_trainings_in_turn(file: Path, entry: PredictionEntry) -> MeasuredChange:
    compared, began, how = _measure_from_comparison(file)
    _check_loader(compared.b.name, compared.b.plan, entry)
    ratio = _ratio(compared)
    doubts = _doubts_of_scripts([(compared.a.pipeline, compared.a.name), (compared.b.pipeline, compared.b.name)], entry)
    if compared.interrupted:
        doubts.append("it was interrupted")
    return MeasuredChange(ratio=ratio, how="; ".join([how, *doubts]), began_unix_seconds=began)


def _measure_recorded_trainings(results: Sequence[str], entry: PredictionEntry) -> MeasuredChange:
    from headrace.diagnose.training.simulation_measured import loader_settings, training_ratio
    from headrace.runs.reader import read_run

    before, after = (read_run(text) for text in results)
    for run in (run for run in (before, after) if run.info.unit != "step"):
        raise LedgerError(
            f"{run.path} is no training, and {entry.id} is a prediction of one; name the run folders of trainings"
        )
    _check_loader(str(after.path), loader_settings(after), entry)
    how = "two recorded runs, so drift of the machine is in it"
    scripts = [(run.info.pipeline, " ".join((run.info.pipeline, *run.info.options))) for run in (before, after)]
    return MeasuredChange(
        ratio=training_ratio(before, after),
        how="; ".join([how, *_doubts_of_scripts(scripts, entry)]),
        began_unix_seconds=after.info.started_unix_seconds,
    )


def _check_loader(name: str, had: Mapping[str, object], entry: PredictionEntry) -> None:
    """Raise LedgerError unless a training had the loader that the prediction changes."""
    from headrace.diagnose.training.simulation_measured import missing_settings

    if missing := missing_settings(had, entry.change):
        raise LedgerError(
            f"{name} was recorded with {', '.join(missing)}, and {entry.id} predicts {', '.join(entry.change.settings)}; "
            "record the training with these settings"
        )


def _doubts_of_scripts(scripts: Sequence[tuple[str, str]], entry: PredictionEntry) -> list[str]:
    """Return what may make this another question: scripts, before and after, each with its command."""
    (before, before_command), (_, after_command) = scripts
    found = []
    if before != entry.pipeline:
        found.append(f"the side before is {before}, not {entry.pipeline}")
    if before_command != after_command:
        found.append(f"before: {before_command}, after: {after_command}: all that differs between them is in it")
    return found


def _measure_from_comparison(file: Path) -> tuple[ComparisonDocument, float, str]:
    import msgspec

    from headrace.runs.formats.comparison import SCHEMA, ComparisonDocument

    try:
        compared = decode_document(file.read_bytes(), ComparisonDocument)
        written = file.stat().st_mtime
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{file} is no comparison ({error}); expected what `headrace compare -o FILE` writes"
        ) from error
    if compared.schema != SCHEMA:
        raise SettingsError(f"{file} has the schema {compared.schema!r}, expected {SCHEMA!r}")
    if not compared.paired:
        raise LedgerError(
            f"{file} compares two recorded runs and does not say when they were made; name the two run folders instead"
        )
    began = compared.environment.get("started_unix_seconds")
    # Without it the file's own time must do: measuring ended by then.
    return (
        compared,
        float(began) if isinstance(began, int | float) else written,
        f"{compared.num_pairs} interleaved pairs",
    )


def _ratio(compared: ComparisonDocument) -> Estimate:
    from headrace.runs.formats.profile import Estimate

    if compared.metric != "throughput":
        raise LedgerError(
            f"this compares {compared.metric}, and throughput was predicted; compare with --metric throughput"
        )
    if compared.ratio is None or compared.ratio_low is None or compared.ratio_high is None:
        raise LedgerError(
            f"{compared.num_pairs} pairs are too few for an interval; compare again with more --blocks, or --until-sure"
        )
    return Estimate(compared.ratio_low, compared.ratio, compared.ratio_high)


def _check_plan(compared: ComparisonDocument, entry: PredictionEntry) -> None:
    """Raise LedgerError unless the side after has the settings that the prediction changes."""
    from headrace.base.plan import Plan

    used, settings = Plan.from_record(compared.b.plan), entry.change.settings
    if used.with_settings(settings).plan_id != used.plan_id:
        raise LedgerError(
            f"{compared.b.name} did not run with {', '.join(settings)}, which {entry.id} predicts; measure the Plan that "
            f"`headrace ledger show {entry.id} --plan` prints"
        )
    if settings and compared.a.plan_id == compared.b.plan_id:
        raise LedgerError(f"{compared.a.name} and {compared.b.name} ran under the same Plan; {entry.id} changes it")


def _doubts(compared: ComparisonDocument, entry: PredictionEntry) -> list[str]:
    """Return what may make this another question than the one that was predicted."""
    found = []
    if compared.a.plan_id != entry.plan_id:
        found.append(f"the side before ran under Plan {compared.a.plan_id}, not {entry.plan_id}")
    if compared.a.pipeline != entry.pipeline:
        found.append(f"the side before is {compared.a.pipeline}, not {entry.pipeline}")
    if compared.interrupted:
        found.append("it was interrupted")
    return found
