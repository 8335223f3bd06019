"""A generated pipeline as the text of a Python file: what is written out is what the benchmark runs."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.faults.environment_faults import cpu_quota
from benchmarks.truth import library, surroundings
from benchmarks.truth.grammar import Case
from benchmarks.truth.spec import TASKS, Machine, Part, Spec
from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline

#: What the files are called beside a pipeline that is written out.
_BESIDE = (library, surroundings)
_PACKAGE = "benchmarks.truth."


def text_of(spec: Spec, seconds: float, title: str) -> str:
    """Return the Python file of a pipeline.

    Args:
        spec: The pipeline.
        seconds: How long jobs come.
        title: Its first line.
    """
    parts = [stage.part for stage in spec.stages]
    names = {"jobs"}
    while parts:
        part = parts.pop()
        names.add(part.name)
        parts += [one for one in part.options.values() if isinstance(one, Part)]
    names |= {"Steps"} if spec.shape == "tasks" else set()
    names |= {name for name in ("Both", "receiver_of", "results_file", "Service") if f"{name}(" in spec.delivery}
    arrivals = "".join(f", {key}={value!r}" for key, value in spec.arrivals.items())
    imports = [
        f"from {module.__name__} import {', '.join(sorted(own))}"
        for module in _BESIDE
        if (
            own := {name for name in names if getattr(getattr(module, name, None), "__module__", "") == module.__name__}
        )
    ]
    return (
        f'"""{title}"""\n\n' + "\n".join(imports) + "\n\nimport headrace as hr\n\n"
        "pipeline = hr.Pipeline(\n"
        f"    source=jobs({seconds:g}{arrivals}),\n"
        f"{_work_of(spec)}"
        f"    delivery={spec.delivery},\n"
        # One name for all: a run folder is not to say what was done to its pipeline.
        '    name="texts",\n'
        ")\n"
    )


def _work_of(spec: Spec) -> str:
    """Return the argument of a Pipeline that says what is done: stages, or a module for each task."""
    if spec.shape != "tasks":
        return "    stages=[\n" + "".join(f"        {stage},\n" for stage in spec.stages) + "    ],\n"
    parts = {task: [str(stage.part) for stage in spec.stages if stage.name.startswith(f"{task}.")] for task in TASKS}
    return (
        "    modules={\n"
        + "".join(f"        {task!r}: Steps({', '.join(own)}),\n" for task, own in parts.items())
        + "    },\n"
    )


def pipeline_of(spec: Spec, seconds: float) -> Pipeline:
    """Return a pipeline to run once."""
    names: dict[str, object] = {}
    exec(compile(text_of(spec, seconds, "A generated pipeline."), "pipeline.py", "exec"), names)
    pipeline = names["pipeline"]
    assert isinstance(pipeline, Pipeline)
    return pipeline


def plan_of(spec: Spec) -> Plan:
    """Return its Plan."""
    return Plan().with_settings(spec.settings)


@contextlib.contextmanager
def machine_of(spec: Spec) -> Iterator[None]:
    """Give a pipeline the machine that it has, for the length of a `with` block.

    Raises:
        OSError: If this machine lets us make no control group, and the pipeline has a quota.
    """
    machine = spec.machine
    with contextlib.ExitStack() as stack:
        if machine.cores is not None:
            stack.enter_context(_affinity(choose_cores(machine)))
        if machine.quota is not None or machine.neighbours or _has_threads(spec):
            # No quota holds for the real-time classes, and who spins there would keep a core for a tenth of a second each.
            stack.enter_context(_usual_scheduling())
        if machine.quota is not None:
            stack.enter_context(cpu_quota(machine.quota))
        if machine.neighbours:
            stack.enter_context(surroundings.neighbours(machine.neighbours, machine.on, machine.off))
        yield


def _has_threads(spec: Spec) -> bool:
    return any(stage.part.inmost().whole("threads", 1) > 1 for stage in spec.stages)


def choose_cores(machine: Machine) -> tuple[int, ...]:
    """Return the cores that a pipeline may use, of those that this process may."""
    cores = sorted(os.sched_getaffinity(0))
    if machine.cores is None:
        return tuple(cores)
    number = machine.which % math.comb(len(cores), machine.cores)
    return next(itertools.islice(itertools.combinations(cores, machine.cores), number, None))


@contextlib.contextmanager
def _affinity(cores: Sequence[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _usual_scheduling() -> Iterator[None]:
    """Have no thread of this process in a real-time class: a group with a quota takes no process that has one."""
    before = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):
            before[thread] = os.sched_getscheduler(thread), os.sched_getparam(thread)
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        for thread, (policy, parameters) in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, parameters)


def write(case: Case, folder: Path, seconds: float) -> str:
    """Write a case as files that a person can run, and return the commands that do.

    Raises:
        FileExistsError: If the folder exists and is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder")
    for module in _BESIDE:
        path = Path(str(module.__file__))
        (folder / path.name).write_text(path.read_text().replace(_PACKAGE, ""))
    versions = {"pipeline": (case.spec, f"The pipeline of seed {case.seed}: {case.says}.")}
    for number, planted in enumerate(case.planted):
        versions[f"without_{planted.kind}"] = case.without((number,)), f"The same without {planted}."
    lines = []
    for name, (spec, title) in versions.items():
        (folder / f"{name}.py").write_text(text_of(spec, seconds, title).replace(_PACKAGE, ""))
        (folder / f"{name}.toml").write_text(plan_of(spec).as_toml())
        lines += [_command(name, spec)]
    text = "\n".join(lines) + "\n"
    (folder / "commands.txt").write_text(text)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return text


def _command(name: str, spec: Spec) -> str:
    machine = spec.machine
    command = f"headrace profile {name}.py:pipeline --plan {name}.toml -o runs/{name} && headrace diagnose runs/{name}"
    if machine.cores is not None:
        command = f"taskset -c {','.join(map(str, choose_cores(machine)))} sh -c '{command}'"
    if machine.quota is not None:
        command = f"systemd-run --scope -p CPUQuota={100 * machine.quota:.0f}% sh -c '{command}'"
    if machine.neighbours:
        beside = f"python surroundings.py {machine.neighbours} {machine.on:g} {machine.off:g}"
        command = f"{beside} & sleep 1; {command}; kill $!"
    return command
