"""What a Plan needs of the machine that runs it: engines, model files, devices, shared memory, open files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.base.errors import HeadraceError
from headrace.base.in_flight import open_regular
from headrace.base.plan import ModelPlan, Plan
from headrace.base.units import format_size
from headrace.engines import check_engine, traits_of, why_missing
from headrace.monitor.doctor.limits import USUAL_SHM_BYTES
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.monitor.doctor.references import Reference
from headrace.monitor.doctor.table import CHECKS
from headrace.runs.cpu_features import cpu_flags, explain_slowness
from headrace.runs.formats.doctor import Finding, Status

#: Open files that a run needs beside those of its workers: libraries, spans, the queue.
_OWN_FILES = 128


def list_needs(plan: Plan, name: str, machine: Machine) -> Reference:
    """Return what a Plan needs, judged.

    Args:
        plan: As written.
        name: Its file.
        machine: This one.
    """
    findings = [
        finding
        for key, model in {"model": plan.model, **{f"models.{task}": one for task, one in plan.models.items()}}.items()
        for finding in _model_needs(model, key, machine)
    ]
    findings += [*_shared_memory(plan, machine), *_open_files(plan, machine)]
    named = tuple(
        Finding(
            name=one.name, title=one.title, status=one.status, seen=one.seen, expected=one.expected,
            compared_with=f"plan {name}", why=one.why, do=one.do,
        )
        for one in findings
    )  # fmt: skip
    return Reference(name=f"plan {name}", findings=named)


def _model_needs(model: ModelPlan, key: str, machine: Machine) -> Iterator[Finding]:
    yield _engine(model, key)
    yield from _file(model, key)
    yield from _device(model, key, machine)
    cores = machine.hardware.num_cores
    if model.threads is not None:
        yield Finding(
            name=f"{key}.threads", title=f"threads of one call ({key}.threads)",
            status="ok" if model.threads <= cores else "matters", seen=f"{cores} cores", expected=f"{model.threads} or more",
            why="threads beyond the cores wait for one another in every layer: a call takes longer than with fewer",
            do=f"set {key}.threads to {cores} or less, or tune on this machine",
        )  # fmt: skip


def _engine(model: ModelPlan, key: str) -> Finding:
    try:
        check_engine(model.engine)
        missing = why_missing(model.engine)
    except HeadraceError as error:
        missing = str(error)
    return Finding(
        name=f"{key}.engine", title=f"engine {model.engine} ({key}.engine)", status="matters" if missing else "ok",
        seen=missing or "installed", expected="installed", why="without it the model cannot be opened",
        do="install it, or name another engine in the Plan",
    )  # fmt: skip


def _file(model: ModelPlan, key: str) -> Iterator[Finding]:
    if model.artifact is None:
        return
    status, seen = _look_at(Path(model.artifact), model.sha256)
    yield Finding(
        name=f"{key}.artifact", title=f"model file {model.artifact}", status=status, seen=seen,
        expected=f"sha256 {model.sha256[:12]}" if model.sha256 else "there",
        why="a run that cannot open its model does not start; another file is another model",
        do="copy the file that the Plan was proved with here, or name it by its place on this machine",
    )  # fmt: skip


def _look_at(file: Path, sha256: str | None) -> tuple[Status, str]:
    try:
        if sha256 is None:
            return ("ok", "there") if file.is_file() else ("matters", "missing")
        with open(open_regular(file, os.O_RDONLY), "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        return "matters", "missing"
    except OSError as error:
        return "matters", f"cannot be read: {error.strerror}"
    return "ok" if found == sha256.lower() else "matters", f"sha256 {found[:12]}"


def _device(model: ModelPlan, key: str, machine: Machine) -> Iterator[Finding]:
    try:
        known = traits_of(model.engine)
    except HeadraceError:
        return
    provider, precision = str(model.options.get("provider", "")), str(model.options.get("precision", ""))
    if provider in known.providers:
        gpus = machine.hardware.accelerators
        yield Finding(
            name=f"{key}.provider", title=f"GPU for {key}.options.provider = {provider}", status="ok" if gpus else "matters",
            seen=", ".join(gpus) or "no NVIDIA GPU that the driver lists", expected="an NVIDIA GPU",
            why="the model cannot be opened, or runs on the CPU at a tenth of the speed",
            do="run on a machine with a GPU (container: --gpus all), or leave the provider out",
        )  # fmt: skip
    slow = explain_slowness(precision, cpu_flags(machine.root))
    if slow and not provider:
        yield Finding(
            name=f"{key}.precision", title=f"precision {precision} ({key}.options.precision)", status="matters", seen=slow,
            expected="instructions for it", why="it is emulated, and slower than float32", do='set precision = "f32"',
        )  # fmt: skip


def _shared_memory(plan: Plan, machine: Machine) -> Iterator[Finding]:
    names = [name for name, stage in plan.stages.items() if stage.executor == "process"]
    if not names:
        return
    check = CHECKS["shm_bytes"]
    status: Status
    try:
        size = check.read(machine)
        fits = isinstance(size, int) and size > USUAL_SHM_BYTES
        status, seen = ("ok" if fits else "matters"), check.show(size)
    except CannotTell as error:
        status, seen = "unknown", str(error)
    yield Finding(
        name="shm_bytes", title=f"shared memory for {', '.join(names)}", status=status, seen=seen,
        expected=f"more than {format_size(USUAL_SHM_BYTES)}", why=check.why, do=check.do,
    )  # fmt: skip


def _open_files(plan: Plan, machine: Machine) -> Iterator[Finding]:
    """Yield whether downloads and callbacks that the Plan makes at once have an open file each, and one for a process each."""
    calls = sum(stage.workers or 0 for stage in plan.stages.values())
    check = CHECKS["open_files"]
    status: Status
    try:
        limit = machine.limit("Max open files")
        wanted = _OWN_FILES + 2 * calls
        status, seen = ("ok" if limit is None or limit >= wanted else "matters"), check.show(limit)
    except CannotTell as error:
        status, seen, wanted = "unknown", str(error), 0
    yield Finding(
        name="open_files", title=f"open files for {calls} workers", status=status, seen=seen, expected=f"{wanted:,} or more",
        why=check.why, do=check.do,
    )  # fmt: skip
