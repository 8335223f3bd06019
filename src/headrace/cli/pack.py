"""Pack many small files into few large ones, which are read faster from cold disks and over a network.

    headrace pack photos/ -o data
    headrace pack photos/ -o data --format parquet --shard 256MB
    headrace pack urls.txt -o data --resume
    headrace pack photos/ --try 200 --short-side 256 --pipeline jobs.py:pipeline
    headrace pack photos/ -o small --short-side 256 --quality 90
    headrace pack photos/ --try 200
    headrace pack data --verify
    headrace pack 'others-{000..009}.tar' --index

The folder gets shards (`shard-000000.tar`, readable by every tar tool), an index beside each, `manifest.json` with counts and
SHA-256, and `unreadable.jsonl`, which lists the items that could not be read, with the reason. `--source data` then reads it in
any pipeline. Packing is a run like others: the Plan says how (--set fetch.workers=16), Ctrl-C keeps what was packed, and
--resume goes on after any end. The packed bytes are the same, whatever the number of workers and of kills.

--short-side, --encode and --quality make images smaller on the way: first ask --try what that saves, and how far pixels and the
answers of your pipeline change.

--try N packs N of the files in each format, here or beside -o, reads them in both orders, warm and cold, and says which format
pays, or that none does.

--verify reads a packed folder again and compares it with its manifest. --index makes the index of tar shards that other tools
made.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.pipeline_arguments import add_plan_arguments, live_view, open_plan, points, positive, stdout_kept
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.delivery.packed import Packed
    from headrace.sources.finite import FiniteSource
    from headrace.store.manifest import Encoding

_say = speaker("pack")
_DEFAULT_SHARD = "128MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source", metavar="SOURCE",
        help="a folder (all of its files), a glob, a .txt of URLs or paths, tar shards, a store (s3://bucket/name)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="DATA", help="the folder to pack into")
    parser.add_argument(
        "--format", choices=("tar", "parquet", "tfrecord", "lmdb"), default="tar", help="of the shards (default: tar)"
    )
    parser.add_argument(
        "--shard", type=_size, default=_size(_DEFAULT_SHARD), metavar="SIZE",
        help=f"size of a shard, such as 64MB (default: {_DEFAULT_SHARD})",
    )  # fmt: skip
    smaller = parser.add_argument_group("smaller images")
    smaller.add_argument(
        "--short-side", type=positive, metavar="PIXELS",
        help="of images whose shorter side has more; the shorter side of what your module takes, or a little above",
    )  # fmt: skip
    smaller.add_argument(
        "--encode", choices=("jpeg", "webp"),
        help="the format of all images (default: JPEG and WebP stay so, others are packed as they are)",
    )  # fmt: skip
    smaller.add_argument(
        "--quality",
        type=_quality,
        metavar="1-100",
        help="of images that are encoded (default: 90); given, of all of them",
    )
    smaller.add_argument(
        "--pipeline", metavar="MODULE:ATTRIBUTE",
        help="with --try: it answers for the images before and after, and how many answers stay the same is said",
    )  # fmt: skip
    smaller.add_argument(
        "--max-change", type=points, metavar="SHARE",
        help="with --pipeline: exit status 1 if more answers change than this, such as 1pt, 1%% or 0.01",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on where an earlier start was cut off")
    parser.add_argument("--force", action="store_true", help="remove what was packed there before, and begin anew")
    parser.add_argument("--run-folder", metavar="RUN", help="write a run folder, as `headrace run -o` does")
    parser.add_argument(
        "--try", dest="try_number", type=positive, metavar="N",
        help="measure reading N of the files in each format on this disk, and say whether packing pays",
    )  # fmt: skip
    parser.add_argument("--verify", action="store_true", help="read the packed folder SOURCE again, and check it")
    parser.add_argument("--index", action="store_true", help="make the indexes of the tar shards SOURCE")
    add_plan_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON (schema headrace.pack/1)")


def run(args: argparse.Namespace) -> int:
    """Pack, verify or index."""
    from headrace.base.errors import SettingsError

    if sum(map(bool, (args.verify, args.index, args.try_number))) > 1:
        raise SettingsError("--try, --verify and --index do different things; give one of them")
    if args.max_change is not None and not args.pipeline:
        raise SettingsError("--max-change bounds what --pipeline MODULE:ATTRIBUTE answers otherwise; name one")
    if args.pipeline and not (args.try_number and _encoding(args)):
        raise SettingsError(
            "--pipeline answers for images before and after: give --try N, and --short-side or another of its kind"
        )
    if args.try_number:
        return _try(args)
    if args.verify:
        return _verify(args)
    if args.index:
        return _index(args)
    if not args.output:
        raise SettingsError("headrace pack needs -o DATA, the folder to pack into")
    return _pack(args)


def _pack(args: argparse.Namespace) -> int:
    from headrace.base.errors import SettingsError
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE
    from headrace.delivery.packed import Packed
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.execute import run as run_pipeline
    from headrace.pipeline.thread_budget import usable_cores
    from headrace.sources.packing import PackedSource
    from headrace.sources.packing_rows import PackedRows, list_rows
    from headrace.sources.records import Records
    from headrace.sources.shards import ShardFiles
    from headrace.stages.encode import EncodeStage
    from headrace.stages.fetch import FetchStage
    from headrace.store.naming import keep_names, name_members, rename_images
    from headrace.store.turns import Turns

    folder = Path(args.output)
    source = _open_source(args.source, folder)
    _check_output(args, folder)
    if isinstance(source, Records):
        entries, named = list_rows(source)
        if not entries:
            raise SettingsError(f"there is nothing to pack: {source.where} have no row")
    else:
        entries = list(source.entries())
        ids = [entry.id for entry in entries]
        named = keep_names(ids) if isinstance(source, ShardFiles) else name_members(ids)
        _say_rows(args, source, ids)
    encoding = _encoding(args)
    if encoding is not None:
        named = rename_images(named, encoding.format)
    turns = Turns([one.id for one in named])
    packed = Packed(folder, named, turns, format=args.format, shard_bytes=args.shard, encoding=encoding)
    fetch = FetchStage("fetch")
    if getattr(source, "gives_files", False):
        fetch.workers = max(2, usable_cores())  # more threads than cores only hand the GIL round
    given = (entries, turns, packed.give_up)
    kept = PackedRows(source, *given) if isinstance(source, Records) else PackedSource(source, *given)
    stages = [fetch] if encoding is None else [fetch, EncodeStage("encode", encoding)]
    pipeline = Pipeline(kept, stages=stages, delivery=packed, name="pack")
    with _taken(args, folder), stdout_kept(args.json):
        result = run_pipeline(
            pipeline,
            open_plan(args),
            output=args.run_folder,
            force=args.force,
            resume=args.resume,
            checkpoint=packed.checkpoint,
            watch=functools.partial(live_view, len(entries)),
        )
    _print(args, packed, result, len(entries))
    if not packed.manifest().complete:
        return EXIT_INTERRUPTED if result.interrupted else EXIT_NEGATIVE
    return EXIT_DONE if packed.manifest().files else EXIT_NEGATIVE


def _say_rows(args: argparse.Namespace, source: FiniteSource, ids: Sequence[str]) -> None:
    """Say that files of a folder hold rows, which are packed as they are: nobody reads rows out of such a shard."""
    from headrace.sources.folder import Folder, holds_rows

    rows = next(filter(holds_rows, ids), None) if isinstance(source, Folder) else None
    if rows is not None:
        command = shlex.join(["headrace", "pack", f"records://{args.source}", "-o", args.output])
        _say(f"{rows} holds rows, and is packed as one item; to pack its rows: {command}")


def _encoding(args: argparse.Namespace) -> Encoding | None:
    from headrace.store.manifest import Encoding

    if args.encode is args.short_side is args.quality is None:
        return None
    return Encoding(format=args.encode, short_side=args.short_side, quality=args.quality)


def _open_source(text: str, folder: Path) -> FiniteSource:
    """Return what is packed.

    Raises:
        SettingsError: If it has no end, or holds the folder that is packed into.
    """
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import parse_source
    from headrace.sources.finite import FiniteSource
    from headrace.sources.folder import Folder
    from headrace.sources.objects import Objects
    from headrace.sources.records import Records
    from headrace.sources.shards import ShardFiles, Shards

    source: Any = parse_source(text, drain=False)
    if isinstance(source, Shards):
        source = ShardFiles(text)
    elif isinstance(source, Folder):
        if folder.resolve().is_relative_to(Path(text).resolve()):
            raise SettingsError(f"{folder} is inside of {text}, and would be packed itself; name a folder beside it")
        source = Folder(text, patterns=("*",))
    elif isinstance(source, Objects):
        source.patterns = ("*",)
    if isinstance(source, Records):
        return source
    if not isinstance(source, FiniteSource) or source.where is None or not source.lists_ahead:
        raise SettingsError(
            f"{type(source).__name__} cannot be packed; name a folder, a glob, a .txt of URLs or paths, shards, a store, or records://FILES"
        )
    return source


def _check_output(args: argparse.Namespace, folder: Path) -> None:
    """Raise SettingsError if something is in the way."""
    from headrace.base.errors import SettingsError
    from headrace.delivery.packed import list_packed

    there = list_packed(folder) if folder.is_dir() else []
    if args.resume:
        return
    if not folder.exists() and folder.suffix.lower() in (".tar", ".tgz", ".gz", ".zip", ".tfrecord"):
        raise SettingsError(
            f"-o {folder} names a file; expected a folder to pack into, such as {folder.with_suffix('')}"
        )
    if there and not args.force:
        raise SettingsError(
            f"{folder} holds what was packed before ({there[-1].name}): go on with --resume, begin anew with --force, or name "
            "another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; expected a folder to pack into")
    if folder.is_dir() and not there and any(folder.iterdir()):
        raise SettingsError(f"{folder} holds other files; name a new folder or an empty one")


@contextlib.contextmanager
def _taken(args: argparse.Namespace, folder: Path) -> Iterator[None]:
    """Hold the folder that is packed into; with --force remove what was packed before, if nobody packs into it now."""
    from headrace.base.errors import SettingsError
    from headrace.delivery.packed import list_packed
    from headrace.runs.held_folder import HeldFolder

    if args.resume and not folder.is_dir():  # the checkpoint says what is missing
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = HeldFolder(folder)
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}") from None
    with contextlib.closing(held):
        if args.force and not args.resume:
            for file in list_packed(folder):
                file.unlink()
            shutil.rmtree(folder.with_name(f"{folder.name}.checkpoint"), ignore_errors=True)
        yield


def _print(args: argparse.Namespace, packed: Packed, result: Any, num_items: int) -> None:
    from headrace.base.formatting import pluralize

    manifest = packed.manifest()
    if args.json:
        write_json(manifest)
        return
    shards = pluralize(len(manifest.shards), "shard")
    what = f"{pluralize(manifest.files, 'file')} ({manifest.bytes / 1e6:,.1f} MB) in {shards} of {packed.folder}"
    if not manifest.complete:
        command = ["headrace", "pack", args.source, "-o", str(packed.folder), "--resume"]
        command += ["--format", args.format] if args.format != "tar" else []
        command += [] if manifest.encoding is None else manifest.encoding.describe().split()
        write(f"not complete: {what}; go on with: {shlex.join(command)}")
        if result.ended_early:
            say(f"ended early: {result.ended_early}")
        return
    write(f"packed {what}")
    if manifest.unreadable:
        write(f"{manifest.unreadable:,} of {num_items:,} items could not be read: {packed.folder / 'unreadable.jsonl'}")
    place = packed.folder if manifest.format == "tar" else f"records://{packed.folder}"
    write(f"read it with: headrace run MODULE:ATTRIBUTE --source {place}")


def _try(args: argparse.Namespace) -> int:
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.cli.pack_try import describe, try_formats

    place = Path(args.output).parent if args.output else Path.cwd()
    source = _open_source(args.source, Path(args.output or place / "packed"))
    with stdout_kept(args.json):
        document = try_formats(source, args.try_number, place, _encoding(args), args.pipeline)
    if args.json:
        write_json(document)
    else:
        for line in describe(document):
            write(line)
    answers = document.smaller.answers if document.smaller else None
    if args.max_change is None or answers is None or answers.same >= (1 - args.max_change) * answers.looked_at:
        return EXIT_DONE
    say(f"more answers change than --max-change {args.max_change:.2%} allows")
    return EXIT_NEGATIVE


def _verify(args: argparse.Namespace) -> int:
    from headrace.base.formatting import pluralize
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.store.indexing import verify_folder

    found = verify_folder(Path(args.source))
    if args.json:
        write_json({
            "schema": "headrace.pack.verify/1", "shards": found.num_shards, "bytes": found.num_bytes,
            "problems": found.problems,
        })  # fmt: skip
    else:
        for problem in found.problems:
            write(problem)
        good = "as packed" if not found.problems else pluralize(len(found.problems), "problem")
        write(f"{pluralize(found.num_shards, 'shard')}, {found.num_bytes / 1e6:,.1f} MB: {good}")
    return EXIT_NEGATIVE if found.problems else EXIT_DONE


def _index(args: argparse.Namespace) -> int:
    from headrace.base.formatting import pluralize
    from headrace.cli import EXIT_DONE
    from headrace.store.indexing import index_shard
    from headrace.store.shards import find_shards, no_shards

    shards = find_shards(args.source)
    if not shards:
        raise no_shards(args.source)
    counts = [index_shard(shard) for shard in shards]
    if args.json:
        write_json({"schema": "headrace.pack.index/1", "shards": len(shards), "files": sum(counts)})
    else:
        write(f"indexed {pluralize(sum(counts), 'file')} in {pluralize(len(shards), 'shard')}")
    return EXIT_DONE


def _quality(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 100, got {text!r}")
    return int(text)


def _size(text: str) -> int:
    from headrace.base.units import parse_size

    try:
        found = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found < 1:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as {_DEFAULT_SHARD}, got {text}")
    return int(found)
