"""`--drift DIR` of `run` and `serve`: counts what passes, and compares it with what is usual. See `headrace monitor drift`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.pipeline_arguments import points

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.monitor.drift.watching import DriftWatcher
    from headrace.pipeline.definition import Pipeline
    from headrace.runs.formats.drift import DriftBaseline

#: Items of a window that are looked at closely.
WINDOW_ITEMS = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "drift", "notice when the input or the answers change; `headrace monitor drift` shows it"
    )
    group.add_argument(
        "--drift", metavar="DIR",
        help="count what passes into this folder, and compare it with the baseline there; workers and services may share it",
    )  # fmt: skip
    group.add_argument(
        "--drift-key", metavar="NAME",
        help="what comes together: an attribute of jobs such as camera, or stream, folder, host (of the address); "
        "each value has a reference of its own (default: the baseline's, else none)",
    )  # fmt: skip
    group.add_argument(
        "--drift-window", type=_items, metavar="N",
        help=f"items of a window that are looked at closely (default: the baseline's, else {WINDOW_ITEMS})",
    )  # fmt: skip
    group.add_argument(
        "--drift-hours", type=_hours, metavar="H",
        help="tell apart the hours of the day (UTC) in steps of H, a divisor of 24, so that night is compared with night",
    )  # fmt: skip
    group.add_argument(
        "--drift-budget", type=_share, metavar="SHARE",
        help="share of a core that looking closely at items may take in each process: 0.3%% (default), more to record faster",
    )  # fmt: skip
    group.add_argument(
        "--drift-values", metavar="MODULE:FUNCTION",
        help="further numbers of an item: a function (job, result) that returns {name: number}, such as parts of an embedding",
    )  # fmt: skip


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what counts and compares; None without `--drift`."""
    _check(args)
    if not args.drift:
        return None
    from headrace.cli.loading import load_attribute
    from headrace.cli.terminal import speaker
    from headrace.monitor.drift.collector import BUDGET_RATIO, Collector
    from headrace.monitor.drift.folder import DriftFolder
    from headrace.monitor.drift.instrument import DriftInstrument, parts_of
    from headrace.monitor.drift.watching import DriftWatcher

    folder = DriftFolder(args.drift, make=True)
    baseline = folder.baseline()
    key, hours = _strata_of(args, baseline)
    window_items = args.drift_window or (baseline.window_items if baseline else WINDOW_ITEMS)
    collector = Collector(
        key,
        hours=hours,
        window_items=window_items,
        own=load_attribute(args.drift_values) if args.drift_values else None,
        budget_ratio=args.drift_budget or BUDGET_RATIO,
    )
    watcher = DriftWatcher(collector, folder, window_items)

    @contextlib.contextmanager
    def watch(run: Any) -> Iterator[None]:
        with watcher.watch(run):
            yield
        _tell(watcher)
        if missing := collector.missing_key():
            speaker("drift")(f"warning: {missing}")

    return Companion(instruments=[DriftInstrument(collector, parts_of(pipeline))], watch=watch)


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Refuse what does not fit before the first worker is forked; workers share nothing but the folder."""
    from headrace.monitor.drift.folder import DriftFolder

    _check(args)
    if args.drift:
        _strata_of(args, DriftFolder(args.drift, make=True).baseline())
    return None


def _check(args: argparse.Namespace) -> None:
    from headrace.base.errors import SettingsError

    given = [
        name for name in ("key", "window", "hours", "budget", "values") if getattr(args, f"drift_{name}") is not None
    ]
    if given and not args.drift:
        raise SettingsError(f"--drift-{given[0]} needs --drift DIR, the folder of the drift monitor")


def _strata_of(args: argparse.Namespace, baseline: DriftBaseline | None) -> tuple[str, int]:
    """Return the key and the hours; raises SettingsError if the baseline was learnt with others."""
    from headrace.base.errors import SettingsError

    found: list[Any] = []
    for name, default in (("key", ""), ("hours", 0)):
        given, usual = getattr(args, f"drift_{name}"), getattr(baseline, name) if baseline else default
        if baseline is not None and given is not None and given != usual:
            raise SettingsError(
                f"--drift-{name} {given} does not fit: the baseline in {args.drift} was learnt with {usual or 'none'}; leave "
                "the option out, or record and learn in another folder"
            )
        found.append(given if given is not None else usual)
    return found[0], found[1]


def _tell(watcher: DriftWatcher) -> None:
    from headrace.cli.terminal import speaker

    if (document := watcher.document) is not None:
        besides = {*document.latency, *(one.says for one in document.news)}  # never behind a list of statistics
        for line in [*document.says[:4], *(line for line in document.says[4:] if line in besides)][:12]:
            speaker("drift")(line)


def _items(text: str) -> int:
    number = int(text)
    if not 10 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 10 and 1,000,000")
    return number


def _share(text: str) -> float:
    share = points(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and up to 100%")
    return share


def _hours(text: str) -> int:
    number = int(text)
    if number not in (1, 2, 3, 4, 6, 8, 12):
        raise argparse.ArgumentTypeError(f"{text} is none of 1, 2, 3, 4, 6, 8, 12")
    return number
