"""The history as a document: its lines, a verdict for each baseline, and the ledger's decisions of the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.base.errors import LedgerError
from headrace.base.formatting import pluralize
from headrace.ledger.ledger import Ledger
from headrace.monitor.history.baseline import FEWEST_WINDOWS, as_window
from headrace.monitor.history.judging import judge_windows
from headrace.monitor.history.store import History
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.history import (
    Annotation,
    BaselineVerdict,
    HistoryDocument,
    HistoryLine,
    HistoryWindow,
)


def make_document(history: History, *, pipeline: str | None = None, ledger: Path | None = None) -> HistoryDocument:
    """Return what a history holds.

    Args:
        history: The file.
        pipeline: Only of this one; None: all.
        ledger: Whose decisions stand beside the runs; None, or a file that is not there: none.

    Raises:
        LedgerError: If the history cannot be read.
    """
    lines = history.lines(pipeline=pipeline)
    annotations, warnings = _read_decisions(ledger)
    return HistoryDocument(
        file=str(history.path),
        lines=tuple(lines),
        baselines=tuple(_judge_all(history, lines)),
        annotations=tuple(annotations),
        warnings=tuple(warnings),
    )


def read_windows(history: History, verdict: BaselineVerdict) -> list[tuple[str, HistoryWindow]]:
    """Return the (key of the run, window) that a verdict is made from."""
    return history.windows(verdict.pipeline, verdict.plan_id, verdict.machine)


def _judge_all(history: History, lines: Sequence[HistoryLine]) -> list[BaselineVerdict]:
    """Return a verdict for each pipeline, Plan and machine family, that of the newest run first."""
    newest: dict[tuple[str, str, str], HistoryLine] = {}
    for line in lines:
        if line.kind == "run":
            newest.setdefault((line.pipeline, line.plan_id, line.machine), line)
    return [verdict for line in newest.values() if (verdict := _judge(history, line, lines)) is not None]


def _judge(history: History, newest: HistoryLine, lines: Sequence[HistoryLine]) -> BaselineVerdict | None:
    found = history.windows(newest.pipeline, newest.plan_id, newest.machine)
    windows = [as_window(key, window) for key, window in found]
    if not windows:
        return None
    judged = judge_windows(windows)
    verdict = BaselineVerdict(
        pipeline=newest.pipeline,
        plan_id=newest.plan_id,
        machine=newest.machine,
        machine_says=newest.machine_says,
        since_unix_seconds=windows[0].began,
        num_reference=judged.num_reference,
        num_compared=len(windows) - judged.num_reference if judged.num_reference else 0,
        num_unlike=sum(map(bool, judged.unlike)),
        stages=judged.stages,
        changed=_list_changes(newest, lines, {key for key, _ in found}),
    )
    unlike = next((reason for reason in reversed(judged.unlike) if reason), "")
    return msgspec.structs.replace(verdict, says=_describe(verdict, len(windows), unlike))


def _list_changes(newest: HistoryLine, lines: Sequence[HistoryLine], keys: set[str]) -> tuple[str, ...]:
    """Return what is otherwise in the newest run than in the first of its baseline."""
    first = next((line for line in reversed(lines) if line.key in keys and line.plan_id == newest.plan_id), newest)
    pairs = [
        ("headrace", first.headrace_version, newest.headrace_version),
        ("Python", first.python, newest.python),
        ("the pipeline's file", first.module_sha256, newest.module_sha256),
        *(
            (name, first.versions.get(name, "none"), newest.versions.get(name, "none"))
            for name in sorted(first.versions.keys() | newest.versions.keys())
        ),
    ]
    return tuple(
        f"{name}: {before} -> {after}" for name, before, after in pairs if before and after and before != after
    )


def _describe(verdict: BaselineVerdict, num_windows: int, unlike: str) -> str:
    if not verdict.num_reference:
        return f"cannot tell yet: {pluralize(num_windows, 'window')}, and {FEWEST_WINDOWS} make a baseline"
    if not verdict.stages:
        return "cannot tell: no stage has enough CPU times in the baseline's windows"
    slower = [stage for stage in verdict.stages if stage.verdict == "slower"]
    said = (
        "; ".join(stage.says for stage in slower) if slower else "no stage is known to be slower than in the baseline"
    )
    if slower and verdict.changed:
        said += f". Changed since the baseline: {', '.join(verdict.changed)}"
    if verdict.num_unlike:
        left = pluralize(verdict.num_unlike, "window")
        said += f". {left} left out, since the baseline has no such items ({unlike}); `headrace history restart` begins anew"
    return said


def _read_decisions(path: Path | None) -> tuple[list[Annotation], list[str]]:
    if path is None or not path.exists():
        return [], []
    try:
        with Ledger(path, must_exist=True) as ledger:
            decisions = ledger.attempts.decisions()
    except LedgerError as error:
        return [], [f"decisions are not shown: {error}"]
    return [_annotate(decision) for decision in decisions], []


def _annotate(decision: Decision) -> Annotation:
    why = f": {decision.why}" if decision.why else ""
    return Annotation(
        at_unix_seconds=decision.created_unix_seconds,
        id=f"d{decision.number}",
        says=f"{decision.action} {decision.plan} by {decision.who}{why}",
        plan_id=_find_plan_id(decision),
    )


def _find_plan_id(decision: Decision) -> str:
    from headrace.base.errors import SettingsError
    from headrace.base.plan import Plan
    from headrace.base.toml import parse_toml

    try:
        return Plan.from_table(parse_toml(decision.after)).plan_id if decision.after else ""
    except (SettingsError, ValueError):
        return ""
