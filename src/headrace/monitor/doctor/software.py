"""Checks of versions, engines and settings of libraries."""

from __future__ import annotations

import platform

from headrace.engines import ENGINES, why_missing
from headrace.monitor.doctor.check import Check
from headrace.monitor.doctor.comparing import exactly, has_all, has_versions, is_same_python
from headrace.monitor.doctor.machine import Machine
from headrace.runs.formats.doctor import Status, Value
from headrace.runs.run_folder import headrace_version

#: Change how libraries thread, allocate and load, behind the Plan's back.
_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_AFFINITY", "OMP_PROC_BIND", "MALLOC_ARENA_MAX", "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "PYTHONMALLOC", "PYTHON_GIL",
)  # fmt: skip
_THREADS = tuple(name for name in _VARIABLES if name.endswith("_THREADS"))


def _engines(machine: Machine) -> Value:
    found = []
    for name in ENGINES.names():
        try:
            missing = why_missing(name)
        except Exception:  # of another package, whose code may fail as it likes
            continue
        found += [] if missing else [name]
    return found


def _variables(machine: Machine) -> Value:
    # Of files the name alone: a fingerprint is handed on.
    return {name: machine.environ[name].rpartition("/")[2] for name in _VARIABLES if name in machine.environ}


def _judge_variables(found: dict[str, str]) -> tuple[Status, str] | None:
    set_here = [name for name in _THREADS if name in found]
    return ("note", f"{', '.join(set_here)} not set") if set_here else None


CHECKS = (
    Check(
        name="packages", title="packages", weight=100, read=lambda machine: dict(machine.versions), compare=has_versions,
        names_all=False,
        why="decoders and engines change speed, numbers and which damaged files they accept from version to version",
        do="install the versions that were proved: pip install --require-hashes -r LOCK; or prove these: headrace validate, "
        "headrace tune",
    ),
    Check(
        name="engines", title="engines that can run models", weight=97, read=_engines, compare=has_all(),
        why="a model that another engine was chosen for cannot be opened",
        do="pip install 'headrace[openvino]', 'headrace[torch]', ... or name another engine in the Plan",
    ),
    Check(
        name="python", title="Python", weight=82, read=lambda machine: machine.python, compare=is_same_python,
        why="another Python runs pure Python stages at another speed, and may resolve other versions of packages",
        do="use the same feature version, such as 3.12",
    ),
    Check(
        name="headrace", title="headrace", weight=81, read=lambda machine: headrace_version(), compare=exactly("note"),
        why="another headrace schedules otherwise, and may not know a setting", do="pip install the same version",
    ),
    Check(
        name="thread_variables", title="variables of thread and memory libraries", weight=65, read=_variables,
        compare=exactly(), alone=_judge_variables,
        why="they change threads and memory behind the Plan's back: headrace gives each library its threads by itself",
        do="unset them, or set the same on both machines",
    ),
    Check(
        name="libc", title="C library", weight=30, read=lambda machine: " ".join(platform.libc_ver()),
        compare=exactly("note"),
        why="wheels are chosen by it, and memory is allocated by it", do="use the same base image",
    ),
)  # fmt: skip
