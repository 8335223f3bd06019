"""Costs that were measured beside a run, in files: of calls and steps with other batches, and of items in other formats."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.settings import unknown_key

#: The only curve of a training.
_STEP = "step"
_SEARCH, _TRIAL = "headrace.batch_search/", "headrace.pack.try/"


def step_curves(given: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return `{"step": {batch size: seconds of a step}}` from `--curve step=WHERE`; empty where none was given.

    WHERE is a run folder with other batches, what `headrace train batch --json` printed, or JSON `{"64": 0.012}`.

    Raises:
        SettingsError: If one is malformed, or names something else.
        RunFolderError: If a run folder cannot be read.
    """
    found: dict[str, dict[int, float]] = {}
    for text in given:
        name, equals, where = (part.strip() for part in text.partition("="))
        if not equals or not where:
            raise SettingsError(f"--curve {text!r}: expected {_STEP}=RUN or {_STEP}=FILE")
        if name != _STEP:
            raise unknown_key(name, "--curve: of a training", [_STEP])
        curve = _of_run(where) if Path(where).is_dir() else _of_file(where)
        found[_STEP] = {**found.get(_STEP, {}), **curve}
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}


def _of_run(where: str) -> dict[int, float]:
    from headrace.diagnose.replay.demands import CannotReplay
    from headrace.diagnose.training.simulation_batch import step_curve
    from headrace.diagnose.training.simulation_recorded import read_training
    from headrace.runs.reader import read_run

    run = read_run(where)
    if run.info.unit != "step":
        raise SettingsError(f"--curve {_STEP}={where}: that is the run of a pipeline; expected one of a training")
    try:
        curve = step_curve(read_training(run))
    except CannotReplay as error:
        raise SettingsError(f"--curve {_STEP}={where}: {error}") from None
    if not curve:
        raise SettingsError(f"--curve {_STEP}={where}: how many samples its steps had was not recorded")
    return curve


def _of_file(where: str) -> dict[int, float]:
    table = _read("--curve", where)
    if not (isinstance(table, dict) and str(table.get("schema", "")).startswith(_SEARCH)):
        return curve_of_file(where)
    trials = table.get("trials")
    curve = {
        one["batch_size"]: float(one["step_seconds"])
        for one in (trials if isinstance(trials, list) else [])
        if isinstance(one, dict) and _is_size(one.get("batch_size")) and _is_seconds(one.get("step_seconds"))
    }
    if not curve:
        raise SettingsError(f"--curve {_STEP}={where}: no size of that search was run to its end")
    return curve


def format_costs(where: str) -> dict[str, dict[str, float]]:
    """Return `{"ORDER, CACHE": {format: seconds of an item}}` from what `headrace pack --try --json` printed.

    Raises:
        SettingsError: If it is something else.
    """
    table = _read("--formats", where)
    figures = table.get("figures") if isinstance(table, dict) else None
    is_trial = isinstance(table, dict) and str(table.get("schema", "")).startswith(_TRIAL)
    found: dict[str, dict[str, float]] = {}
    for one in figures if is_trial and isinstance(figures, list) else []:
        if not (isinstance(one, dict) and _is_seconds(one.get("us"))):
            continue
        order, cache, name = (str(one.get(key)) for key in ("order", "cache", "format"))
        found.setdefault(f"{order}, {cache}", {})[name] = one["us"] / 1e6
    if not found:
        raise SettingsError(f"--formats {where}: expected what `headrace pack FOLDER --try 200 --json` prints")
    return found


def curve_of_file(where: str) -> dict[int, float]:
    """Return the cost curve in a JSON file: `{"1": 0.012, "8": 0.055}`."""
    expected = 'expected a run folder, or JSON with seconds per call by batch size such as {"1": 0.012, "8": 0.055}'
    try:
        table = json.loads(Path(where).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--curve {where} cannot be read: {error.strerror}; {expected}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--curve {where} is not JSON ({error}); {expected}") from None
    if not isinstance(table, Mapping) or not table:
        raise SettingsError(f"--curve {where}: {expected}")
    for size, seconds in table.items():
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (size.isascii() and size.isdecimal() and int(size) >= 1 and is_number and 0 < seconds < math.inf):
            raise SettingsError(f"--curve {where}: {size!r}: {seconds!r} is no batch size with its seconds; {expected}")
    return {int(size): float(table[size]) for size in sorted(table, key=int)}


def _read(option: str, where: str) -> Any:
    try:
        return json.loads(Path(where).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{option} {where} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{option} {where} is not JSON ({error})") from None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
