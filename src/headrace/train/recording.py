"""Runs a program that trains, as its user would, and records every process of it that trains into one run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import RunFolderError, SettingsError
from headrace.runs.run_folder import RunFolder
from headrace.train.program import Ending, armed_environment, run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A program that was recorded."""

    folder: Path
    ending: Ending
    problem: RunFolderError | None
    """What kept its run folder from being finished; None: nothing."""


def find_program(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the program and arguments that a user's words start, and the program's name.

    Args:
        words: `SCRIPT.py ARGUMENT...`, `-m MODULE ARGUMENT...` or `PROGRAM ARGUMENT...`.

    Raises:
        SettingsError: If they name none, or a script that does not exist.
    """
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise SettingsError("-m names no module; expected `headrace train -m MODULE [ARGUMENT]...`")
        return [sys.executable, *words], words[1]
    given = list(words[1:] if words[:1] == ["--"] else words)
    if not given:
        raise SettingsError(
            "no script is named; expected `headrace train SCRIPT.py [ARGUMENT]...`, for example train.py"
        )
    if given[0].endswith(".py"):
        if not Path(given[0]).is_file():
            raise SettingsError(f"script {given[0]!r} does not exist; the working folder is {Path.cwd()}")
        return [sys.executable, *given], given[0]
    return given, Path(given[0]).name


def record_program(
    argv: Sequence[str],
    name: str,
    folder: Path,
    *,
    force: bool = False,
    stdout: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Recording:
    """Run a program to its end and record it.

    Args:
        argv: Program and arguments.
        name: Of the program, as the run folder has it.
        folder: The run folder to write.
        force: Replace an earlier run in it.
        stdout: File descriptor that becomes its stdout.
        variables: Of its environment, besides those of this process; None: no others.

    Raises:
        RunFolderError: If the folder cannot be made.
        SettingsError: If the program cannot be started; no folder is left then.
    """
    run_folder = RunFolder.create(folder, pipeline=name, options=argv[1:], unit="step", force=force)
    try:
        ending = run_program(argv, armed_environment(run_folder.path, name) | dict(variables or {}), stdout=stdout)
    except SettingsError:
        run_folder.discard()
        raise
    try:
        run_folder.finish(ending.status, ended_by=ending.reason)  # type: ignore[arg-type]
    except RunFolderError as error:
        return Recording(folder=run_folder.given, ending=ending, problem=error)
    return Recording(folder=run_folder.given, ending=ending, problem=None)
