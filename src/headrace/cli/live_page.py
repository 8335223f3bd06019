"""`--live-page PORT`: the streams of a run on a page of this machine."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError
from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.terminal import is_quiet, say

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.watching import RunInProgress

_MOST_PORT = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--live-page", metavar="PORT",
        help="show streams at http://127.0.0.1:PORT/ as they go on: pictures, age, drops; 0: any port that is free",
    )  # fmt: skip


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what notes the streams, and the server that shows them; None without the option."""
    if getattr(args, "live_page", None) is None:
        return None
    from headrace.monitor.streams.server import StreamsServer
    from headrace.monitor.streams.watching import StreamsWatch

    watch = StreamsWatch(pipeline)
    server = StreamsServer(watch, _read_port(args.live_page))
    if not is_quiet():
        say(f"headrace: streams at {server.address}", level=logging.INFO)

    @contextlib.contextmanager
    def serving(progress: RunInProgress) -> Iterator[None]:
        with server.serving():
            yield

    return Companion(observers=[watch], watch=serving)


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Refuse: each of several processes knows its own frames alone."""
    if getattr(args, "live_page", None) is not None:
        raise SettingsError("--live-page shows the streams of one process; leave out --supervise")
    return None


def _read_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_PORT)) and int(text) <= _MOST_PORT):
        raise SettingsError(f"--live-page {text}: expected a port, such as 8001; 0 takes any that is free")
    return int(text)
