"""`--techniques`: lists what can be tried with a model, and ends the command as `--help` does."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

from headrace.cli import EXIT_DONE
from headrace.cli.terminal import write

_WIDTH = 79


class ListTechniques(argparse.Action):
    """Prints the techniques and exits; no MODEL is needed."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_rest: Any) -> None:
        """Print and exit."""
        write(techniques_text(), end="")
        parser.exit(EXIT_DONE)


def techniques_text() -> str:
    """Return name, kind, needs, option and usual gain of every technique, in the order in which they are tried."""
    from headrace.optimize.catalogue import TECHNIQUES

    lines = []
    for one in TECHNIQUES:
        lines += [f"{one.name}: {one.kind}; needs {one.needs}{f'; only with {one.option}' if one.option else ''}"]
        lines += textwrap.wrap(one.says, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    lines += ["", "All but the model as given also needs a golden set with labels, to be recommended."]
    return "\n".join(lines) + "\n"
