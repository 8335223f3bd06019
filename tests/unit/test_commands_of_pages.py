"""Commands that pages print can be typed: their names and options exist. `test_pages_run.py` runs those of guides."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headrace.cli import make_parser

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "examples/README.md",
    *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md")),
]
#: A line of a block of code that is a command.
_COMMAND = re.compile(r"^(?:    |\$ )?headrace (?P<rest>[a-z].*)$", re.MULTILINE)
#: What only sketches a command's form, or is what a command printed (`headrace run: plan.toml ...`).
_FORM = re.compile(r"\[-|\[[A-Z]|\]\.\.\.|<|MODULE|COMMAND|^[a-z]+: ")


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each command of a page."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL) + re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    lines = [match["rest"] for block in blocks for match in _COMMAND.finditer(block)]
    return [_arguments(line) for line in lines if not _FORM.search(line)]


def _arguments(line: str) -> list[str]:
    """Return what the shell hands to the command: what comes before a pipe, another command or the name of a file."""
    splitter = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    splitter.whitespace_split = True
    found: list[str] = []
    for word in splitter:
        if set(word) <= set("|&;>"):
            return found[:-1] if found[-1:] == ["2"] else found
        found.append(word)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_can_be_typed(page: str) -> None:
    """Commands and options that pages name are known to the command line."""
    unknown = [f"headrace {shlex.join(argv)}" for argv in commands(page) if not _can_be_typed(argv)]
    assert not unknown


def _can_be_typed(argv: list[str]) -> bool:
    try:
        args, rest = make_parser(argv).parse_known_args(argv)
    except SystemExit as end:
        return not end.code  # it was asked to print something and leave
    return not rest or hasattr(args, "items")
