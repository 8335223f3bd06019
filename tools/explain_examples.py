"""Runs the worked examples of the pages on verdicts again, and puts what they print into the pages.

Run from the repository's root, on a quiet machine: `python tools/explain_examples.py`, or with names of pages (`gil decode`).

A worked example is a block of a page that begins with the command that runs a fault and the one that diagnoses it. What follows
them is replaced. An example whose run comes to another verdict than its page is left as it was, and told: so a page never shows
what was not printed, and a change that breaks a verdict is seen.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.reader import read_run

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "src" / "headrace" / "diagnose" / "explain"
#: Two commands, and what the last printed, in a fenced block; below it where and when.
_EXAMPLE = re.compile(
    r"```\n\$ (?P<run>python -m benchmarks\.faults [^\n]+)\n\$ (?P<diagnose>headrace diagnose [^\n]+)\n"
    r".*?```\n(\n\([^\n]+\)\n)?",
    re.DOTALL,
)
#: Parts of the output that a page shows: the verdict, its evidence, what to do.
_SHOWN = 3


def main() -> int:
    """Run the examples that were asked for; return 1 if a verdict was not that of its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="NAME", help="such as gil; without, all")
    given = parser.parse_args()
    names = given.pages or sorted(file.stem for file in PAGES.glob("*.md"))
    return max([_page(PAGES / f"{name}.md") for name in names], default=0)


def _page(file: Path) -> int:
    status = 0
    for found in _EXAMPLE.finditer(file.read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory() as folder:
            document, text, says = _printed(found["run"], found["diagnose"], Path(folder))
        name = f"{document.first.verdict} {document.first.cause}".rstrip()
        if document.first.verdict.lower() != file.stem:
            print(f"{file.stem}: {found['run']} came to {name}; left as it was", flush=True)
            status = 1
            continue
        print(f"{file.stem}: {name}, confidence {document.first.confidence}", flush=True)
        shown = f"```\n$ {found['run']}\n$ {found['diagnose']}\n{text}\n```\n\n({says})\n"
        # Read again: it took a while, and whoever writes the page may have saved it meanwhile.
        file.write_text(file.read_text(encoding="utf-8").replace(found[0], shown), encoding="utf-8")
    return status


def _printed(run: str, diagnose: str, folder: Path) -> tuple[DiagnosisDocument, str, str]:
    """Return the diagnosis, the beginning of its text, and where and when it was made."""
    python = [sys.executable, "-m", *shlex.split(run)[2:]]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(python, cwd=folder, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    arguments = shlex.split(diagnose)[1:]
    command = [sys.executable, "-c", "import sys; from headrace.cli import main; sys.exit(main())", *arguments]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    as_json = subprocess.run([*command, "--json"], cwd=folder, capture_output=True, check=False).stdout
    info = read_run(folder / arguments[1]).info
    says = f"{info.hardware.num_cores} cores of {info.hardware.cpu_model}, {datetime.date.today():%Y-%m}; shortened"
    return msgspec.json.decode(as_json, type=DiagnosisDocument), _shortened(text), says


def _shortened(text: str) -> str:
    """Return verdict, evidence and remedies; the rule stands on the page already."""
    parts = text.strip().split("\n\n")
    shown = [re.sub(r"^Rule: .*", "", part, flags=re.MULTILINE | re.DOTALL).rstrip() for part in parts[:_SHOWN]]
    return "\n\n".join([part for part in shown if part] + (["..."] if len(parts) > _SHOWN else []))


if __name__ == "__main__":
    sys.exit(main())
