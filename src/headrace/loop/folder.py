"""The folder of a loop: `loop.json`, `before.toml` as it began, `plan.toml` as it is now, and `runs`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import SettingsError
from headrace.runs.formats.loop import SCHEMA, LoopAsked, LoopDocument
from headrace.runs.run_folder import headrace_version, replace_file

LOOP_FILE, BEFORE_FILE, PLAN_FILE, RUNS_FOLDER = "loop.json", "before.toml", "plan.toml", "runs"
REFUSED_FILE = "refused.toml"
#: A loop that ended so may go on when it is asked again: with more time, or after Ctrl-C.
_MAY_GO_ON = ("", "budget", "interrupted", "failed")


def plan_sha256(text: str) -> str:
    """Return twelve hexadecimal digits that stand for a Plan's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class LoopFolder:
    """A loop's folder, which is its memory.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan, self.before, self.runs = path / PLAN_FILE, path / BEFORE_FILE, path / RUNS_FOLDER
        self.refused = path / REFUSED_FILE

    def begin(self, asked: LoopAsked, plan_text: str, *, budget_seconds: float | None, ledger: str) -> LoopDocument:
        """Make the folder, and return the document of a loop that has taken no step.

        Raises:
            SettingsError: If it cannot be written.
        """
        document = LoopDocument(
            headrace_version=headrace_version(), asked=asked, folder=str(self.path), ledger=ledger,
            budget_seconds=budget_seconds,
        )  # fmt: skip
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            for file in (self.before, self.plan):
                replace_file(file, plan_text.encode())
        except OSError as error:
            raise SettingsError(f"-o {self.path} cannot be written: {error.strerror}; name another folder") from None
        self.save(document)
        return document

    def resume(self, asked: LoopAsked, *, budget_seconds: float | None) -> LoopDocument | None:
        """Return the document of a loop that is to go on here; None where there is none.

        Raises:
            SettingsError: If it was asked otherwise, has ended, or cannot be read, or the Plan was changed meanwhile.
        """
        file = self.path / LOOP_FILE
        if not file.exists():
            self._check_empty()
            return None
        found = read_loop(file)
        fields = [name for name in LoopAsked.__struct_fields__ if getattr(found.asked, name) != getattr(asked, name)]
        differing = [name.removesuffix("_sha256") for name in fields]
        if differing:
            raise SettingsError(
                f"-o {self.path} holds a loop that was asked otherwise ({', '.join(differing)}); name another folder, or begin "
                "again with --force"
            )
        nothing_ran = found.stopped == "jobs fail" and not found.steps  # and the jobs may have been mended
        if found.stopped not in _MAY_GO_ON and not nothing_ran:
            raise SettingsError(
                f"-o {self.path} holds a loop that has ended ({found.stopped}); read {file}, name another folder, or begin "
                "again with --force"
            )
        expected = found.steps[-1].plan_after if found.steps else asked.plan_sha256
        if self.read_plan_sha256() != expected:
            raise SettingsError(
                f"{self.plan} was changed since the loop's last step; put it back, or begin again with --force"
            )
        return msgspec.structs.replace(found, stopped="", says=(), budget_seconds=budget_seconds)

    def save(self, document: LoopDocument) -> None:
        """Write the document as a whole; raises SettingsError if it cannot be."""
        try:
            replace_file(self.path / LOOP_FILE, encode_document(document, indent=True) + b"\n")
        except OSError as error:
            raise SettingsError(f"{self.path / LOOP_FILE} cannot be written: {error.strerror}") from None

    def read_plan_sha256(self) -> str:
        """Return the hash of the Plan as it is now; raises SettingsError if it cannot be read."""
        try:
            return plan_sha256(self.plan.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.plan} cannot be read: {error}") from None

    def _check_empty(self) -> None:
        """Raise SettingsError where the folder holds files of somebody else."""
        try:
            is_taken = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
        except OSError as error:
            raise SettingsError(f"-o {self.path} cannot be read: {error.strerror}") from None
        if is_taken:
            raise SettingsError(f"-o {self.path} is there and holds no loop; name a new folder")


def read_loop(file: Path) -> LoopDocument:
    """Return the loop in a file.

    Raises:
        SettingsError: If it cannot be read, or is none.
    """
    try:
        found = decode_document(file.read_bytes(), LoopDocument)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SettingsError(f"{file} is no loop ({error}); expected what `headrace loop -o DIR` writes") from None
    if found.schema != SCHEMA:
        raise SettingsError(f"{file} has the schema {found.schema!r}, expected {SCHEMA!r}")
    return found
