"""Second words of `headrace train` that are no script, such as `headrace train batch`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

#: {word: module of this folder that declares its arguments and runs it}.
WORDS = {
    "batch": "headrace.cli.train_batch",
    "check": "headrace.cli.train_check",
    "compare": "headrace.cli.train_compare",
    "parallel": "headrace.cli.train_parallel",
    "read": "headrace.cli.train_read",
    "scale": "headrace.cli.train_scale",
}


def is_word(argv: Sequence[str]) -> bool:
    """Return whether arguments begin with such a word; a file of that name is a program to train."""
    return bool(argv) and argv[0] in WORDS and not Path(argv[0]).exists()


def run_word(argv: Sequence[str]) -> int:
    """Run what the first argument names with the others, and return the exit status."""
    module = importlib.import_module(WORDS[argv[0]])
    parser = argparse.ArgumentParser(
        prog=f"headrace train {argv[0]}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_word_arguments(parser)
    status: int = module.run_word(parser.parse_args(argv[1:]))
    return status
