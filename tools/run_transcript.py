"""Runs the commands of a page again, in order, and puts what they print into it.

Run from the repository's root, on a quiet machine: `python tools/run_transcript.py docs/guides/diagnosing.md`.

A command is the first line of a fenced block, behind `$ `; what follows is replaced by what it writes to stdout. A block that
ends with `...` keeps as many paragraphs as it had, or lines if it had one. Commands run in a new folder with the examples
beside them; `--only 'samples|scenes'` runs those that match, and `--folder DIR` in a folder that is kept. Look at the page
afterwards: its prose may speak of what was printed before.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"```\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```\n", re.DOTALL)


def main() -> int:
    """Run the commands of each page that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="of the commands to run"
    )
    parser.add_argument("--folder", type=Path, help="a new folder to run in, which is kept; only with one page")
    given = parser.parse_args()
    if given.folder and len(given.pages) > 1:
        parser.error("--folder is for one page")
    for page in given.pages:
        with tempfile.TemporaryDirectory() as made:
            folder = given.folder or Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "examples").symlink_to(ROOT / "examples")
            _run(page, folder, given.only)
    return 0


def _run(page: Path, folder: Path, only: re.Pattern[str]) -> None:
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        command, before = found["command"], found["output"]
        if not only.search(command):
            continue
        print(f"$ {command}", flush=True)
        printed = _printed(command, folder)
        block = f"```\n$ {command}\n{_cut(printed, before)}```\n"
        # Read again: it took a while, and whoever writes the page may have saved it meanwhile.
        page.write_text(page.read_text(encoding="utf-8").replace(found[0], block, 1), encoding="utf-8")


def _printed(command: str, folder: Path) -> str:
    # The headrace of this interpreter, whichever else is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    printed = done.stdout.replace(str(folder.resolve()), "~")  # where it ran is nobody's business
    return printed.rstrip("\n") + "\n" if printed.strip() else ""


def _cut(printed: str, before: str) -> str:
    """Return as much of an output as was shown before, if that was not all."""
    if not before.endswith("...\n"):
        return printed
    shown = before.removesuffix("...\n").rstrip("\n")
    by = "\n\n" if "\n\n" in before else "\n"
    most = shown.count(by) + 1
    parts = printed.rstrip("\n").split(by)
    return printed if len(parts) <= most else by.join([*parts[:most], "...\n"])


if __name__ == "__main__":
    sys.exit(main())
