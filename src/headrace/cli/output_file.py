"""The file that `-o` names, for commands that measure for minutes before they write it."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.terminal import write_machine_readable


def check_output(output: str | None, *, force: bool, option: str = "-o") -> None:
    """Raise SettingsError before minutes are spent on what could not be written."""
    from headrace.base.errors import SettingsError

    if not output:
        return
    path = Path(output)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SettingsError(f"{option} {path} cannot be written: expected a file in a folder that exists")
    if path.exists() and not force:
        raise SettingsError(f"{option} {path} exists; name another, or replace it with --force")


def write_output(path: Path, text: str, *, option: str = "-o") -> None:
    """Write the file as a whole; raises SettingsError if that fails, and prints the text instead."""
    from headrace.base.errors import SettingsError
    from headrace.runs.run_folder import replace_file

    try:
        replace_file(path, text.encode())
    except OSError as error:
        write_machine_readable(text)  # minutes were spent on it
        raise SettingsError(f"{option} {path} cannot be written: {error.strerror}; it is printed instead") from error
