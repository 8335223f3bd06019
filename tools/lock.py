"""Renews `requirements/*.lock`: every version pinned and every file by its hash, for Python 3.11 and newer.

    python tools/lock.py            the newest versions that pyproject.toml allows
    python tools/lock.py --check    exit status 1 if a lock does not satisfy pyproject.toml; needs no network

torch is in none: it is an extra of 200 MB to 3 GB whose right file depends on the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
#: Lock file -> what it is made from: headrace's own dependencies, `build.in`, and names of extras.
LOCKS = {
    "dev": ("own", "build", "dev"),
    "container": ("own", "sqs", "redis"),
    "build": ("build",),
    "supply": ("supply",),
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, set[str]]:
    """Return {distribution: versions} of a lock file; several where they differ between versions of Python."""
    found: dict[str, set[str]] = {}
    for name, version in _PINNED.findall(lock.read_text()):
        found.setdefault(normalized(name), set()).add(version)
    return found


def wanted(name: str) -> list[str]:
    """Return the requirements that a lock file is made from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = dict(project["optional-dependencies"])
    parts["own"] = project["dependencies"]
    parts["build"] = [
        line for line in (FOLDER / "build.in").read_text().splitlines() if line and not line.startswith("#")
    ]
    return [requirement for part in LOCKS[name] for requirement in parts[part]]


def missing(name: str) -> list[str]:
    """Return each requirement that a lock does not pin, or pins at a version too old; only `>=` is used in pyproject.toml."""
    have = pinned(FOLDER / f"{name}.lock")
    found = []
    for requirement in wanted(name):
        bare, _, least = re.sub(r"\[.*?\]", "", requirement).partition(">=")
        versions = have.get(normalized(bare.strip()), set())
        if not versions or any(_numbers(version) < _numbers(least) for version in versions):
            found.append(f"{requirement}: requirements/{name}.lock has {', '.join(sorted(versions)) or 'none'}")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def renew(name: str) -> None:
    """Write a lock file anew."""
    header = "# Made by `make lock` from pyproject.toml; for `pip install --require-hashes -r`.\n"
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "-", "--quiet", "--upgrade", "--universal", "--python-version", "3.11"]
    options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-config"]
    made = subprocess.run(
        [*command, *options], input="\n".join(wanted(name)), text=True, stdout=subprocess.PIPE, check=True, cwd=ROOT,
        env=os.environ | {"UV_SYSTEM_CERTS": "1"},
    )  # fmt: skip
    (FOLDER / f"{name}.lock").write_text(header + made.stdout)
    print(f"requirements/{name}.lock: {len(pinned(FOLDER / f'{name}.lock'))} distributions")


def main() -> int:
    """Renew, or check, every lock."""
    if "--check" in sys.argv[1:]:
        found = [line for name in LOCKS for line in missing(name)]
        print("\n".join(found) or "every requirement of pyproject.toml is locked")
        return bool(found)
    for name in LOCKS:
        renew(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
