"""Explain a verdict: what it means, how it is recognised, what it is confused with, what to do, and a worked example.

    headrace explain                    lists all verdicts
    headrace explain GIL
    headrace explain download_latency
    headrace explain runs/first         says which stages of a run shared a worker, and why

The documentation has the same pages, under "Verdicts".
"""

from __future__ import annotations

import argparse
import difflib
import re
from importlib.resources import files
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.cli.terminal import write, write_json

SCHEMA = "headrace.explain/1"
#: A link to another of these pages, which a terminal cannot follow: its text is the name to ask for.
_LINK = re.compile(r"\[([^\]]+)\]\([a-z0-9_]+\.md\)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "verdict", nargs="?", metavar="CLASS|RUN", help="such as GIL, or a run folder; without, all classes are listed"
    )
    parser.add_argument("--json", action="store_true", help=f"print JSON (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Print one page, or the list of all."""
    from headrace.base.formatting import wrap_lines
    from headrace.cli import EXIT_DONE
    from headrace.runs.formats.diagnosis import VerdictClass
    from headrace.runs.fused import explain_fused
    from headrace.runs.reader import read_run

    if args.verdict and Path(args.verdict).is_dir():
        fused = explain_fused(read_run(args.verdict).info)
        _print(
            args,
            {"fused": fused},
            "\n".join(wrap_lines(fused or ["No two stages of this run shared a worker."])) + "\n",
        )
    elif args.verdict is None:
        listed = {str(name): summary(page(name)) for name in VerdictClass}
        _print(args, {"classes": listed}, "\n".join(_lines(listed)) + "\n")
    else:
        name = _find_class(args.verdict)
        text = page(name)
        _print(args, {"class": name, "summary": summary(text), "text": text}, text)
    return EXIT_DONE


def page(name: str) -> str:
    """Return the page of a class of verdict as Markdown, links to other pages by their names alone."""
    file = files("headrace") / "diagnose" / "explain" / f"{name.lower()}.md"
    return _LINK.sub(r"\1", file.read_text(encoding="utf-8"))


def summary(text: str) -> str:
    """Return the paragraph below the heading of a page, as one line."""
    return " ".join(text.split("\n\n")[1].split())


def _find_class(text: str) -> str:
    """Return the class that is meant: case, hyphens and what stands after a slash do not matter."""
    from headrace.runs.formats.diagnosis import VerdictClass

    name = text.upper().replace("-", "_").partition("/")[0]
    if name in set(VerdictClass):
        return name
    near = difflib.get_close_matches(name, list(VerdictClass), n=1)
    hint = f"did you mean {near[0]}?" if near else "`headrace explain` lists the verdicts"
    raise SettingsError(f"there is no verdict {text!r} and no run folder of that name; {hint}")


def _lines(listed: dict[str, str]) -> list[str]:
    from headrace.base.formatting import wrap_lines

    found: list[str] = []
    for name, says in listed.items():
        found += [name, *wrap_lines([f"  {says}"])]
    return found


def _print(args: argparse.Namespace, document: dict[str, object], text: str) -> None:
    if args.json:
        write_json({"schema": SCHEMA, **document})
    else:
        write(text, end="")
