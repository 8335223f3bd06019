"""The command that records a pipeline again, as it was recorded: with the same Plan, settings and source."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Protocol

#: What commands take for a pipeline; one that was run from code has a name for people alone.
_ADDRESS = re.compile(r"[^:]+\.py(:\w+)?|[\w.]+:\w+")


class Recorded(Protocol):
    """What knows how a run was started: `RunInfo`, `ProfileDocument`."""

    @property
    def pipeline(self) -> str:
        """Name of the pipeline."""
        ...

    @property
    def options(self) -> Sequence[str]:
        """Options of the command line that chose Plan, settings and source."""
        ...

    @property
    def served(self) -> bool:
        """Whether its jobs were requests."""
        ...


def profile_again(recorded: Recorded, *more: str, longer: bool = False) -> str:
    """Return the `headrace profile` command of a run; of one that served, the command that serves and measures.

    Of a portion it is that of the whole: `headrace profile` divides nothing.

    Args:
        recorded: The run.
        *more: Further options; of one that is given twice the later counts.
        longer: Without the `--limit` that made the run too short to say anything.
    """
    options = _without(recorded.options, "--shard", *(["--limit"] if longer else []))
    options = _without_settings(options, {text.partition("=")[0] for text in more})
    begin, end = (("serve",), ("--profile",)) if recorded.served else (("profile",), ())
    return shlex.join(["headrace", *begin, pipeline_address(recorded.pipeline), *options, *end, *more])


def again(recorded: Recorded) -> list[str]:
    """Return the arguments that choose what a run does, without a limit of its jobs."""
    return [recorded.pipeline, *_without(recorded.options, "--limit", "--shard")]


def is_address(name: str) -> bool:
    """Return whether commands take this name for a pipeline."""
    return _ADDRESS.fullmatch(name) is not None


def _without(options: Sequence[str], *names: str) -> list[str]:
    """Return options without those of these names and their values."""
    left = list(options)
    for name in names:
        while name in left:
            at = left.index(name)
            del left[at : at + 2]
    return left


def _without_settings(options: Sequence[str], keys: set[str]) -> list[str]:
    """Return options without `--set KEY=VALUE` of these keys."""
    left: list[str] = []
    for option in options:
        if left and left[-1] == "--set" and option.partition("=")[0] in keys:
            left.pop()
        else:
            left.append(option)
    return left


def pipeline_address(name: str) -> str:
    """Return how commands take a pipeline of this name; the form of it where it was run from code, and nobody knows."""
    return name if is_address(name) else "MODULE:ATTRIBUTE"
