"""A machine as a file, to be compared with another one: `--fingerprint` and `--against`."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document
from headrace.base.errors import SettingsError
from headrace.base.given_files import read_given_file
from headrace.monitor.doctor.machine import CannotTell, Machine
from headrace.monitor.doctor.table import CHECKS
from headrace.runs.formats.doctor import FINGERPRINT_SCHEMA, Fingerprint, Value
from headrace.runs.run_folder import headrace_version

#: A fingerprint is some 3 kB; what is much larger is something else.
_MOST_BYTES = 10**6
_HOW = "write one on the other machine with `headrace doctor --fingerprint FILE`"


def make_fingerprint(machine: Machine) -> Fingerprint:
    """Return what a machine is like; what cannot be known is there with the reason."""
    facts: dict[str, Value] = {}
    unknown: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            facts[name] = check.read(machine)
        except CannotTell as error:
            unknown[name] = str(error)
        except (OSError, ValueError, IndexError, RuntimeError) as error:  # the kernel's files are as they are
            unknown[name] = f"{type(error).__name__}: {error}"
    return Fingerprint(headrace_version=headrace_version(), made_unix_seconds=time.time(), facts=facts, unknown=unknown)


def read_fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint in a file.

    Raises:
        SettingsError: If the file cannot be read, or is none, or one of another version.
    """
    try:
        content = read_given_file(path, _MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"--against {path} cannot be read: {error.strerror}; {_HOW}") from None
    if len(content) > _MOST_BYTES:
        raise SettingsError(f"--against {path} is larger than {_MOST_BYTES:,} bytes, and no fingerprint; {_HOW}")
    try:
        found = decode_document(content, Fingerprint)
    except msgspec.DecodeError as error:
        raise SettingsError(f"--against {path} is no fingerprint ({error}); {_HOW}") from None
    if found.schema != FINGERPRINT_SCHEMA:
        raise SettingsError(
            f"--against {path} has the schema {found.schema!r}, expected {FINGERPRINT_SCHEMA!r}: it was written by another "
            f"version of headrace; {_HOW}"
        )
    return found
