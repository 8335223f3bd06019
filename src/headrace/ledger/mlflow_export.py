"""Attempts of a ledger as runs of an MLflow experiment, for those who look at everything there.

Each attempt becomes one run, found again by its tag, so that a second export adds only what is new. The ledger stays what
counts: nothing is read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.errors import LedgerError, MissingExtra
from headrace.runs.formats.optimization import Attempt

try:
    import mlflow
    from mlflow.exceptions import MlflowException
except ImportError as missing:
    raise MissingExtra("the export to MLflow", "mlflow") from missing

EXPERIMENT = "headrace"
_TAG = "headrace.attempt"
#: MLflow's own limit of a tag's or parameter's text.
_MOST_TEXT = 500


def export_attempts(attempts: Sequence[Attempt], uri: str, *, ledger: str) -> int:
    """Write attempts that are not there yet, and return how many.

    Args:
        attempts: Of the ledger.
        uri: Of the tracking server or store: `http://host:5000`, or a folder as `file:///path`.
        ledger: The ledger's name, so that `a1` of two ledgers are two runs.

    Raises:
        LedgerError: If MLflow cannot be written to.
    """
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        known = _list_known(client, experiment)
        new = [attempt for attempt in attempts if f"{ledger}#{attempt.id}" not in known]
        for attempt in sorted(new, key=lambda one: one.created_unix_seconds):
            _write(client, experiment, attempt, f"{ledger}#{attempt.id}")
    except (MlflowException, OSError) as error:
        raise LedgerError(f"MLflow at {uri} cannot be written to: {error}") from error
    return len(new)


def _list_known(client: Any, experiment: str) -> set[str]:
    found, token = set(), None
    while True:
        page = client.search_runs([experiment], page_token=token)
        found |= {run.data.tags.get(_TAG, "") for run in page}
        token = page.token
        if not token:
            return found


def _write(client: Any, experiment: str, attempt: Attempt, name: str) -> None:
    began = round(1000 * (attempt.created_unix_seconds - attempt.seconds))
    tags = {key: str(value)[:_MOST_TEXT] for key, value in _tags(attempt, name).items()}
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=f"{attempt.id} {attempt.technique}")
    for key, value in _parameters(attempt).items():
        client.log_param(run.info.run_id, key, str(value)[:_MOST_TEXT])
    for key, number in _numbers(attempt).items():
        client.log_metric(run.info.run_id, key, number)
    client.set_terminated(run.info.run_id, end_time=round(1000 * attempt.created_unix_seconds))


def _tags(attempt: Attempt, name: str) -> Mapping[str, Any]:
    return {
        _TAG: name, "headrace.verdict": attempt.verdict, "headrace.gate": attempt.gate or "", "headrace.says": attempt.says,
        "headrace.model": attempt.model, "headrace.artifact": attempt.artifact.sha256, "headrace.kind": attempt.kind,
        "headrace.hardware": attempt.hardware,
    }  # fmt: skip


def _parameters(attempt: Attempt) -> Mapping[str, Any]:
    settings = {key: value for key, value in attempt.settings.items() if key not in ("artifact", "options")}
    options = dict(attempt.settings.get("options", {}))
    return {"technique": attempt.technique, **settings, **options, **attempt.stages}


def _numbers(attempt: Attempt) -> Mapping[str, float]:
    numbers: dict[str, float] = {"seconds": attempt.seconds, "num_bytes": float(attempt.artifact.num_bytes)}
    if attempt.money is not None:
        numbers["money"] = attempt.money
    for name, estimate in (("speedup", attempt.speedup), ("drop", attempt.drop)):
        if estimate is not None:
            numbers |= {name: estimate.mid, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return numbers
