"""Accepting what `headrace train batch` or `check` recommends: a value in a settings file of the training, and the ledger.

headrace changes no code: the training reads the file. The ledger keeps what the file held, so `headrace ledger rollback FILE`
puts that back; where there was no file, it removes it, and the training goes on with its own values.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from headrace.base.formatting import quote_arg
from headrace.cli.whatif import add_ledger_argument


def add_accept_arguments(parser: argparse.ArgumentParser, key: str) -> None:
    """Declare where what is recommended is written.

    Args:
        parser: Of the command.
        key: Of the file.
    """
    parser.add_argument(
        "--accept",
        metavar="FILE.toml",
        type=Path,
        help=f"write what is recommended as `{key}` into this file, which the training reads, and into the ledger",
    )
    add_ledger_argument(parser)


def check_file(file: Path | None) -> None:
    """Raise SettingsError for a file that cannot be added to: before anything is measured."""
    if file is not None and file.exists():
        _with_value(file, "batch_size", 1)


def accept(file: Path, key: str, value: int | list[str], *, why: str, ledger: str | None) -> str:
    """Set a value in a file, write the decision into the ledger, and return a sentence.

    Args:
        file: Of the training's settings; made if it is missing.
        key: Its other ones stay as they are.
        value: The new one.
        why: In words.
        ledger: Its file; None: the usual one.

    Raises:
        SettingsError: If the file is no TOML.
        LedgerError: If the file or the ledger cannot be written.
    """
    from headrace.ledger.ledger import Ledger

    text = _with_value(file, key, value)
    with Ledger.open(ledger) as opened:
        decision = opened.attempts.accept(file, text, why=why)
    where = "" if ledger is None else f" --ledger {quote_arg(ledger)}"
    back = f"headrace ledger rollback {quote_arg(str(file))}{where}"
    return f"d{decision.number}: {file} has {key} = {json.dumps(value)}; take it back: {back}"


def _with_value(file: Path, key: str, value: int | list[str]) -> str:
    """Return the content of a file with one more top-level value, or another one."""
    from headrace.base.errors import SettingsError
    from headrace.base.toml import parse_toml

    line = f"{key} = {json.dumps(value)}\n"
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        has_it = key in parse_toml(before)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be added to: {error}; expected a file of TOML") from error
    # Top-level values stand before the first table, so a new one goes to the top.
    after = re.sub(rf"(?m)^{key}\s*=.*\n?", lambda _: line, before, count=1) if has_it else line + before
    try:
        is_set = parse_toml(after) == parse_toml(before) | {key: value}
    except ValueError:
        is_set = False
    if not is_set:
        raise SettingsError(f"{file}: {key} cannot be replaced; write it into one line of its own, such as {line!r}")
    return after
