"""`--shard I/N` of `headrace run`: one of N portions of a folder, clips, a list or a bucket, with files of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.protocols import Delivery, Source
    from headrace.sources.finite import FiniteSource
    from headrace.sources.portions import Portion

#: Results that many runs write together: a row of a table has a job's id for its key.
_TABLES = ("sqlite", "postgresql")


def add_shard_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the portion that a run does."""
    parser.add_argument(
        "--shard", type=_portion, metavar="I/N",
        help="of a folder, clips, list or bucket do portion I of N, counted from 0, such as $AWS_BATCH_JOB_ARRAY_INDEX/8; "
        "every item is in one portion, and each has results, checkpoint and run folder of its own: results-2-of-8.jsonl",
    )  # fmt: skip


def portion_of(args: argparse.Namespace) -> Portion | None:
    """Return the portion that the arguments name; None: the whole, or a command that knows no portions."""
    found: Portion | None = getattr(args, "shard", None)
    return found


def take_portion(source: Source, portion: Portion) -> FiniteSource:
    """Return the portion of a source.

    Raises:
        SettingsError: If it is a queue or another source that has no list to divide.
    """
    from headrace.base.errors import SettingsError
    from headrace.sources import portions
    from headrace.sources.finite import FiniteSource

    if not isinstance(source, FiniteSource):
        raise SettingsError(
            f"--shard {portion} is for a folder, a list or a bucket, and the source is a {type(source).__name__}: workers of a "
            "queue share it by themselves; leave --shard out"
        )
    return portions.take_portion(source, portion)


def name_for_portion(results: str, portion: Portion) -> str:
    """Return the results of a portion: `out/results.jsonl` -> `out/results-2-of-8.jsonl`; a table is everybody's."""
    scheme, is_address, rest = results.partition("://")
    if is_address:
        address, mark, options = rest.partition("?")
        return results if scheme in _TABLES else f"{scheme}://{address.rstrip('/')}-{portion.name}{mark}{options}"
    return str(portion.beside(Path(results)))


def give_portion_its_own(args: argparse.Namespace, portion: Portion) -> None:
    """Let run folder and checkpoint be those of the portion.

    Raises:
        SettingsError: If the arguments ask for what is not of portions.
    """
    from headrace.base.errors import SettingsError

    if args.supervise:
        raise SettingsError("--supervise is for a queue, whose workers share it by themselves; leave it or --shard out")
    if args.output:
        args.output = str(Path(args.output) / f"shard-{portion.name}")
    if args.checkpoint:
        args.checkpoint = str(Path(args.checkpoint) / portion.name)


def check_results(delivery: Delivery, portion: Portion) -> None:
    """Raise SettingsError if results go to a place of the program's own, which all portions would write."""
    from headrace.base.errors import SettingsError
    from headrace.base.protocols import Recoverable
    from headrace.delivery.only import Only

    place, condition = delivery, ""
    while isinstance(place, Only):
        place, condition = (
            place.delivery,
            "; those take all results, so look for the ones that headrace.only let through there",
        )
    if isinstance(place, Recoverable) and place.checkpoint is not None:
        raise SettingsError(
            f"--shard {portion}: the pipeline names one place for the results of all portions ({type(place).__name__}); say "
            f"--results results.jsonl, and each writes its own, results-{portion.name}.jsonl{condition}"
        )


def checkpoint_of_portion(args: argparse.Namespace, delivery: Delivery, portion: Portion | None) -> str | None:
    """Return where the checkpoint lies, within that of a table, which is everybody's; None: where the delivery says."""
    from headrace.base.protocols import Recoverable

    given: str | None = args.checkpoint
    is_shared = portion is not None and (args.results or "").partition("://")[0] in _TABLES
    if given or not is_shared or not isinstance(delivery, Recoverable) or portion is None:
        return given
    return f"{delivery.checkpoint}/{portion.name}"


def _portion(text: str) -> Portion:
    from headrace.sources.portions import Portion

    try:
        return Portion.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
