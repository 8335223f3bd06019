"""Makes the line of a run: from its folder when it is over, or from what is known of it while it goes on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.in_flight import read_regular
from headrace.ledger.ledger import hardware_fingerprint
from headrace.monitor.history.moments import add_windows, bytes_per_item, cpu_per_item
from headrace.monitor.history.store import History
from headrace.monitor.history.windows import WINDOW_SECONDS, cut_run
from headrace.runs.formats.history import HistoryLine, HistoryWindow, StageWindow
from headrace.runs.hardware import Hardware, machine_in_words
from headrace.runs.reader import Run
from headrace.runs.run_folder import RunInfo
from headrace.runs.whole_run import WholeRun, read_whole


def add_run(history: History, folder: Path, *, seconds: float = WINDOW_SECONDS, diagnose: bool = True) -> list[str]:
    """Write the lines of a run folder, one for each Plan that it used, and return what is to be said of them.

    Args:
        history: The file.
        folder: A run folder, that of a supervised run, or an incident.
        seconds: Length of a window.
        diagnose: Also find the bottleneck, which takes some seconds of a core.

    Raises:
        RunFolderError: If it is no run folder.
        LedgerError: If the history cannot be written.
    """
    runs, said = _read_runs(folder)
    key = f"{runs[0].info.host} {min(run.info.started_unix_seconds for run in runs):.3f}"
    history.remove_run(str(folder.resolve()), key)
    for run in runs:
        bottleneck = _find_bottleneck(run) if diagnose else ""
        cut = cut_run(run, seconds)
        for plan_id in cut or list(run.info.plans)[:1] or [""]:
            windows = cut.get(plan_id, [])
            line = make_line(run.info, plan_id, windows, key=key, folder=folder, bottleneck=bottleneck, run=run.path)
            history.add_line(line, windows)
        if not any(window.stages for windows in cut.values() for window in windows):
            said.append(
                f"{run.path} has no CPU times, so its stages are compared with no baseline; `headrace profile` and "
                "`headrace run --history` record them"
            )
    return said


def _read_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the run, or its members that can be read, and which of them cannot."""
    found = read_whole(folder)
    return (list(found.members), list(found.missing)) if isinstance(found, WholeRun) else ([found], [])


def make_line(
    info: RunInfo,
    plan_id: str,
    windows: Sequence[HistoryWindow],
    *,
    key: str,
    folder: Path | None,
    bottleneck: str = "",
    run: Path | None = None,
) -> HistoryLine:
    """Return the line of a run that is over.

    Args:
        info: What the run says of itself.
        plan_id: Of the Plan that the line is about.
        windows: Under this Plan.
        key: Of the run.
        folder: That the user named; None: there is none.
        bottleneck: The diagnosis's verdict; empty: not diagnosed.
        run: The run folder itself, where an incident may lie.
    """
    summary: Mapping[str, Any] = info.summary or {}
    latency = summary.get("latency_seconds") or {}
    per_stage = sum_stages(windows)
    incident = _read_incident(run) if run is not None else ""
    counters = info.counters
    return HistoryLine(
        kind="incident" if incident else "run",
        began_unix_seconds=info.started_unix_seconds,
        ended_unix_seconds=info.ended_unix_seconds,
        key=f"{key} incident" if incident else key,
        status=info.status,
        pipeline=info.pipeline,
        plan_id=plan_id,
        machine=hardware_fingerprint(info.hardware),
        machine_says=machine_in_words(info.hardware),
        headrace_version=info.headrace_version,
        python=info.hardware.python,
        versions=dict(info.versions),
        module_sha256=hash_module(info.pipeline),
        delivered=counters.delivered or sum(window.delivered for window in windows),
        failed=counters.rejected + counters.dead_lettered,
        throughput=summary.get("throughput_per_second"),
        latency_p50=latency.get("p50"),
        latency_p90=latency.get("p90"),
        latency_p99=latency.get("p99"),
        cpu_per_item={stage: cpu_per_item(sums) for stage, sums in per_stage.items()},
        bytes_per_item={stage: bytes_per_item(sums) for stage, sums in per_stage.items()},
        bottleneck=bottleneck,
        efficiency=find_efficiency(info, plan_id),
        folder="" if folder is None else str(folder.resolve()),
        says=incident,
    )


def sum_stages(windows: Sequence[HistoryWindow]) -> dict[str, StageWindow]:
    """Return {stage: its sums over all windows}."""
    names = dict.fromkeys(name for window in windows for name in window.stages)
    return {name: add_windows(window.stages[name] for window in windows if name in window.stages) for name in names}


def hash_module(pipeline: str) -> str:
    """Return 12 digits of the SHA-256 of the file that defines `MODULE:ATTRIBUTE`; empty if it is not at hand.

    A module that was not imported is not searched for: the file that would be found may be another one.
    """
    name = pipeline.partition(":")[0]
    path = Path(name) if name.endswith(".py") else None
    if path is None:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        path = Path(file) if file else None
    try:
        return hashlib.sha256(read_regular(path, _MOST_SOURCE_BYTES, follow=True)).hexdigest()[:12] if path else ""
    except OSError:
        return ""


def find_efficiency(info: RunInfo, plan_id: str) -> float | None:
    """Return the throughput of the device stage over what its device can do at the batch size used; None if not known."""
    stages = {str(stage.get("name")): stage for stage in (info.summary or {}).get("stages", [])}
    plan = info.plans.get(plan_id, {})
    for name, curve in info.cost_curves.items():
        own, workers = stages.get(name, {}), next((one.workers for one in info.stages if one.name == name), None)
        size = plan.get("stages", {}).get(name, {}).get("batch") or max(curve, default=0)
        seconds, rate = curve.get(size), own.get("throughput_per_second")
        if seconds and rate and workers == 1 and min(seconds) > 0:
            return float(rate) / (size / (sum(seconds) / len(seconds)))
    return None


def _find_bottleneck(run: Run) -> str:
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.budget import Budget
    from headrace.diagnose.diagnosis import diagnosis_document

    try:
        return str(diagnosis_document(Analysis(run), [], Budget(_DIAGNOSIS_SECONDS)).first.verdict.value)
    except HeadraceError:
        return ""


#: Of a module; what is larger is none.
_MOST_SOURCE_BYTES = 16 * 2**20
#: Seconds of a core for the verdict.
_DIAGNOSIS_SECONDS = 4.0


def _read_incident(run: Path) -> str:
    """Return what an incident's document says; empty if there is none."""
    import msgspec

    from headrace.base.documents import decode_document
    from headrace.runs.contained_files import own_file

    try:
        found = decode_document(own_file(run, run / "incident.json").read_bytes(), dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return ""
    says = found.get("says")
    return " ".join(map(str, says)) if isinstance(says, list) else str(says or "an incident")


def describe_machine(hardware: Hardware) -> tuple[str, str]:
    """Return the fingerprint of a machine, and the machine in words."""
    return hardware_fingerprint(hardware), machine_in_words(hardware)
