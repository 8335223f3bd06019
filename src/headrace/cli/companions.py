"""What watches a run or a service beside its work, each kind by options of its own: metrics, a flight recorder, drift.

How this works. A kind is a module of this folder that has the functions of `Kind`, and its name in `KINDS`. `run` and `serve`
declare the options of all kinds, and give what these add to a run to `headrace.run`. With `--supervise` each worker process
does so; before the first of them is forked, `open_beside_workers` of each kind makes what all of them share.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from headrace.base.observer import Observer
    from headrace.base.plan import Plan
    from headrace.base.protocols import Instrument
    from headrace.base.worker_slot import WorkerSlot
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.supervisor import DeathNote
    from headrace.pipeline.watching import Watch

#: Modules of this folder, in the order in which `--help` shows their options.
KINDS: tuple[str, ...] = (
    "logs",
    "metrics_options",
    "live_page",
    "watch_fleet",
    "recorder",
    "watch_review",
    "watch_history",
    "environment_check",
    "watch_drift",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """What one kind adds to a run, in any of the three ways to hook in."""

    observers: Sequence[Observer] = ()
    instruments: Sequence[Instrument] = ()
    watch: Watch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideWorkers:
    """What one kind does in the supervisor's process, whose only thread must not wait for it."""

    note_death: Callable[[DeathNote], object] = lambda death: None
    """Called when a worker died, before its successor starts."""
    note_child_end: Callable[[int], object] = lambda process: None
    """Called with the process id when a child of the supervisor ended that is no worker."""
    close: Callable[[], object] = lambda: None
    """Called in the supervisor when the last worker has ended, and not in the workers, which are its forks."""


class Kind(Protocol):
    """The functions of a kind's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        ...

    def open_companion(
        self, args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
    ) -> Companion | None:
        """Return what the options add to a run; None: nothing.

        Args:
            args: As parsed; in a worker process with what `open_beside_workers` left there.
            pipeline: That will run.
            plan: Under which, not yet resolved.
            slot: Of a worker process; None without a supervisor.

        Raises:
            SettingsError: If the options do not fit.
        """
        ...

    def open_beside_workers(self, args: argparse.Namespace) -> BesideWorkers | None:
        """Make what the workers share, before the first is forked, and leave in `args` what they need of it; None: nothing."""
        ...


def add_companion_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of every kind."""
    for kind in _kinds():
        kind.add_arguments(parser)


def companion_options(
    args: argparse.Namespace,
    pipeline: Pipeline,
    plan: Plan,
    *,
    slot: WorkerSlot | None = None,
    watch: Watch | None = None,
    instruments: Sequence[Instrument] = (),
) -> dict[str, Any]:
    """Return the options `observers`, `instruments` and `watch` of `headrace.run` with what the kinds add.

    Args:
        args: As parsed.
        pipeline: See `Kind.open_companion`, as for `plan` and `slot`.
        plan: See there.
        slot: See there.
        watch: Lives beside the run anyway.
        instruments: Are around the calls of stages anyway.
    """
    from headrace.pipeline.watching import watch_together

    opened = [kind.open_companion(args, pipeline, plan, slot) for kind in _kinds()]
    companions = [one for one in opened if one is not None]
    watches = [one for one in (watch, *(companion.watch for companion in companions)) if one is not None]
    return {
        "observers": [observer for companion in companions for observer in companion.observers],
        "instruments": [*instruments, *(one for companion in companions for one in companion.instruments)],
        "watch": watch_together(*watches) if watches else None,
    }


@contextlib.contextmanager
def beside_workers(args: argparse.Namespace) -> Iterator[BesideWorkers]:
    """Make what the kinds have in a supervisor's process, and give all of them as one, whose `close` is called here."""
    opened = [kind.open_beside_workers(args) for kind in _kinds()]
    beside, supervisor = [one for one in opened if one is not None], os.getpid()

    def note_death(death: DeathNote) -> None:
        for one in beside:
            one.note_death(death)

    def note_child_end(process: int) -> None:
        for one in beside:
            one.note_child_end(process)

    try:
        yield BesideWorkers(note_death=note_death, note_child_end=note_child_end)
    finally:
        if os.getpid() == supervisor:  # a worker, which is a fork, leaves by this way too
            for one in beside:
                one.close()


def _kinds() -> list[Kind]:
    return [cast(Kind, importlib.import_module(f"headrace.cli.{name}")) for name in KINDS]
