"""The command that records a pipeline again, as it was recorded: with the same Plan, settings and source."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Protocol


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


def profile_again(recorded: Recorded, *more: str, longer: bool = False) -> str:
    """Return the `headrace profile` command of a run.

    Args:
        recorded: The run.
        *more: Further options; of one that is given twice the later counts.
        longer: Without the `--limit` that made the run too short to say anything.
    """
    options = list(recorded.options)
    while longer and "--limit" in options:
        at = options.index("--limit")
        del options[at : at + 2]
    return shlex.join(["headrace", "profile", recorded.pipeline or "MODULE:ATTRIBUTE", *options, *more])
