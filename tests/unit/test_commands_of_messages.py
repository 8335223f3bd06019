"""Commands that messages and pages of the product name exist, with the options named: every text in the code is read."""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.cli import COMMANDS, make_parser

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
#: What stands for a value that is known when the text is made.
HOLE = "\0"
#: A command in a sentence: it ends where the sentence goes on, at a sign that no argument has, or at the end.
_COMMAND = re.compile(rf"headrace (?P<name>{'|'.join(COMMANDS)})(?P<rest>(?: [^\s`;,:)]+)*)")


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Give (line, text) of each text of a file, its docstrings too, which are help; a value within an f-string is a hole."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def parser_of(name: str, words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of a command, or of the action, and the action of that, which the words name, and the words left."""
    parser = _choices(_parser_with(name))[name]
    while words and words[0] in (actions := _choices(parser)):
        parser, words = actions[words[0]], words[1:]
    return parser, words


@functools.cache
def _parser_with(name: str) -> argparse.ArgumentParser:
    return make_parser([name])


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def before_script(words: list[str]) -> list[str]:
    """Return what stands before the script that `headrace train` runs: what follows is the script's."""
    behind = (at for at, word in enumerate(words) if not word.startswith("-") and words[at - 1 : at] != ["-o"])
    return words[: next(behind, None)]


def mistakes(text: str) -> list[str]:
    """Return what is wrong with the commands that a text names."""
    found = []
    for match in _COMMAND.finditer(text):
        parser, words = parser_of(match["name"], match["rest"].split())
        if match["name"] == "train":
            words = before_script(words)
        known = {option for action in parser._actions for option in action.option_strings}
        given = [word.partition("=")[0].rstrip(f".'\"{HOLE}") for word in words if re.match("--?[a-z]", word)]
        found += [f"{match[0]!r}: no option {option}" for option in given if option not in known]
    return found


def test_every_command_of_a_message_exists() -> None:
    """The options that a text gives a command are options of it."""
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 400
    found = [(file, line, wrong) for file in files for line, text in texts(file) for wrong in mistakes(text)]
    assert not [f"{file.relative_to(SOURCE)}:{line}: {wrong}" for file, line, wrong in found]


def test_a_wrong_option_would_be_found() -> None:
    """The test sees options of commands and of their actions, within sentences too."""
    assert mistakes("see `headrace queue peek ADDRESS --dead`; or headrace ledger list --events, later") == []
    assert mistakes("look: headrace queue peek ADDRESS --all") == [
        "'headrace queue peek ADDRESS --all': no option --all"
    ]
    assert mistakes("headrace train -o runs/first train.py --epochs 3") == []
    assert mistakes("headrace train --epochs 3 train.py") != []
    assert mistakes(f"headrace whatif {HOLE} --speed {HOLE}=2") != []
