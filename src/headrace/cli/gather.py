"""Put together what the runs of `headrace run --shard` wrote, once all of them are done.

    headrace gather out/results.jsonl            out/results-0-of-8.jsonl ... -> out/results.jsonl
    headrace gather out/parts                    folders of Parquet files in the same way
    headrace gather out/results.jsonl --check    look only

Nothing is written unless every portion is there and has done all of its items, no item is in two of them, and all were done
by one pipeline from one source: else it says which portion to run again, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal import say, write, write_json

if TYPE_CHECKING:
    from headrace.pipeline.gathering import Gathered

SCHEMA = "headrace.gathered/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("results", metavar="RESULTS", help="as --results named them: a file of JSON Lines, or a folder")
    parser.add_argument("--check", action="store_true", help="say whether all is done, and write nothing")
    parser.add_argument("--force", action="store_true", help="put together also what two pipelines or sources gave")
    parser.add_argument("--json", action="store_true", help=f"print JSON (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Look at all portions, and put their results together."""
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.cli.loading import parse_results
    from headrace.pipeline.gathering import find_doubled, find_growth, find_mixed, find_portions, join, look_at

    results = _check(args.results)
    gathered = [look_at(*one, parse_results) for one in sorted(find_portions(results).items())]
    doubled = find_doubled(gathered)
    mixed = find_mixed(gathered)
    for says in filter(None, (*mixed, find_growth(gathered))):
        say(f"headrace gather: {says}", level=logging.WARNING)
    is_mixed = bool(mixed) and not args.force
    is_whole = not doubled and not is_mixed and not any(one.left or one.is_again for one in gathered)
    if is_whole and not args.check:
        join(gathered, results)
    if args.json:
        write_json({**as_dict(gathered, doubled), "written": str(results) if is_whole and not args.check else None})
    else:
        write("\n".join(_say(gathered, doubled, None if args.check else results, is_mixed=is_mixed)))
    return EXIT_DONE if is_whole else EXIT_NEGATIVE


def _check(results: str) -> Path:
    """Return the path; raises SettingsError for an address."""
    from headrace.base.errors import SettingsError
    from headrace.sources.addresses import hide_secrets

    if "://" in results:
        raise SettingsError(
            f"gather is for files and folders of this machine, and {hide_secrets(results)} is an address: a table holds the "
            "rows of all portions already, and results in an object store are read where they are"
        )
    return Path(results)


def as_dict(gathered: list[Gathered], doubled: list[str]) -> dict[str, Any]:
    """Return what was found, by portion and in all (schema `headrace.gathered/1`)."""
    return {
        "schema": SCHEMA,
        "delivered": sum(len(one.delivered) for one in gathered),
        "rejected": sum(one.rejected for one in gathered),
        "given_up": sum(one.given_up for one in gathered),
        "left": sum(one.left for one in gathered),
        "doubled": doubled,
        "begun_again": [str(one.portion) for one in gathered if one.is_again],
        "portions": [
            {
                "portion": str(one.portion), "results": str(one.results), "delivered": len(one.delivered),
                "rejected": one.rejected, "given_up": one.given_up, "left": one.left,
            }
            for one in gathered
        ],
    }  # fmt: skip


def _say(gathered: list[Gathered], doubled: list[str], results: Path | None, *, is_mixed: bool) -> list[str]:
    """Return it for people; `results`: where all of it is now, if it is whole."""
    found = as_dict(gathered, doubled)
    counts = [
        f"{found[kind]:,} {kind.replace('_', ' ')}" for kind in ("delivered", "rejected", "given_up") if found[kind]
    ]
    lines = [f"{len(gathered)} portions: {', '.join(counts) or 'nothing'}"]
    lines += [
        f"portion {one.portion} has at least {one.left:,} to do: run it again with --resume --shard {one.portion}"
        for one in gathered
        if one.left
    ]
    lines += [
        f"portion {one.portion} was begun again without --resume, and has results of both runs: take {one.results} and its "
        f"checkpoint away, and run it again"
        for one in gathered
        if one.is_again
    ]
    if doubled:
        lines.append(
            f"{len(doubled):,} items are in several portions, such as {doubled[0]}: these are results of other sources, or of "
            "runs that were begun again with --force"
        )
    if is_mixed:
        lines.append(
            "results of several runs are not put together; --force does it, where one is meant under two names"
        )
    if results is not None and len(lines) == 1:
        lines.append(f"written: {results}")
    return lines
