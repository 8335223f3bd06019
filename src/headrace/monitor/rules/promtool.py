"""Runs `promtool`, which comes with Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import HeadraceError

_VERSION = re.compile(r"version (\d+\.\d+\.\d+)")
#: Seconds: the tests of the rules take some.
_LONGEST = 600.0


class PromtoolMissing(HeadraceError):
    """There is no promtool on this machine."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What promtool said."""

    is_good: bool
    said: str


def find_promtool() -> str:
    """Return the path of promtool; raise PromtoolMissing if there is none."""
    found = shutil.which("promtool")
    if found is None:
        raise PromtoolMissing(
            "promtool is not on the PATH; it comes with Prometheus: `apt-get install prometheus`, or its release archive"
        )
    return found


def promtool_version(promtool: str) -> str:
    """Return its version; empty if it does not say."""
    done = subprocess.run([promtool, "--version"], capture_output=True, text=True, timeout=30)
    found = _VERSION.search(done.stdout + done.stderr)
    return found[1] if found else ""


def run_promtool(promtool: str, arguments: Sequence[str], folder: Path) -> Checked:
    """Run it in a folder."""
    done = subprocess.run(
        [promtool, *arguments], cwd=folder, capture_output=True, text=True, timeout=_LONGEST, errors="replace"
    )
    said = "\n".join(line for line in (done.stdout + done.stderr).splitlines() if line.strip())
    return Checked(done.returncode == 0, said)
