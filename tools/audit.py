"""Asks the Python Packaging Advisory Database, by pip-audit, about everything that `requirements/*.lock` pins.

Exit status: 0 nothing is known against them, or the service does not answer (which is said); 1 something is known. What was
looked at and does not concern headrace stands in `requirements/accepted-vulnerabilities.txt`, one id and its reason a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "requirements"
_SECONDS = 300


def accepted(file: Path = FOLDER / "accepted-vulnerabilities.txt") -> dict[str, str]:
    """Return {id: reason} of what was looked at.

    Raises:
        ValueError: If a line has no reason.
    """
    found = {}
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason.strip():
                raise ValueError(f"{file.name}: {name} has no reason")
            found[name] = reason.strip()
    return found


def ask(lock: Path) -> tuple[dict[str, Any] | None, str]:
    """Return pip-audit's answer about a lock file, None if there is none, and what it complained of."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "-r", str(lock), "-f", "json"]
    try:
        ended = subprocess.run(
            [*command, "--progress-spinner", "off"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_SECONDS} s"
    try:
        return json.loads(ended.stdout), ended.stderr
    except ValueError:
        return None, (ended.stderr.strip().splitlines() or ["no answer"])[-1]


def judge(answer: dict[str, Any] | None, trouble: str, known: dict[str, str]) -> tuple[bool, Iterator[str]]:
    """Return whether something speaks against a lock file, and what is to be said about it."""
    parts = [] if answer is None else answer["dependencies"]
    asked = [part for part in parts if "skip_reason" not in part]
    against = [
        (part, flaw) for part in asked for flaw in part["vulns"] if not {flaw["id"], *flaw["aliases"]} & set(known)
    ]

    def say() -> Iterator[str]:
        if not asked:
            why = trouble if answer is None else next((part["skip_reason"] for part in parts), "nothing is locked")
            yield f"NOT AUDITED: the vulnerability service does not answer here ({why.strip()[:200]})"
            return
        yield f"{len(asked)} of {len(parts)} distributions audited, {len(against)} known vulnerabilities"
        for part in parts:
            if "skip_reason" in part:
                yield f"  not audited: {part['name']}: {part['skip_reason']}"
        for part, flaw in against:
            mended = ", ".join(flaw["fix_versions"]) or "no version yet"
            yield f"  {part['name']} {part['version']}: {flaw['id']}, mended in {mended}"

    return bool(against), say()


def main() -> int:
    """Audit every lock."""
    known = accepted()
    is_bad = False
    for lock in sorted(FOLDER.glob("*.lock")):
        found, lines = judge(*ask(lock), known)
        is_bad |= found
        for line in lines:
            print(f"{lock.name}: {line}" if not line.startswith(" ") else line)
    if is_bad:
        print(
            "Renew the locks with `make lock`, or enter the id with a reason in requirements/accepted-vulnerabilities.txt"
        )
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
