"""`headrace samples`: makes labelled images to measure with, copies the small model that names them, and lists the photographs.

headrace samples make DIR --count 500 --seed 1 --messy 0.2
headrace samples model scenes.onnx
headrace samples list
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal import say, write, write_json
from headrace.samples.catalogue import LICENCES_PATH, PHOTOGRAPHS, SCENES_MODEL_PATH, SPLITS

if TYPE_CHECKING:
    from headrace.samples.labels import Manifest

DONE, MISUSE = 0, 2
_PROGRESS_STEP = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to the parser of `headrace samples`."""
    subcommands = parser.add_subparsers(dest="samples_command", required=True, metavar="{make,model,list}")
    _add_make(subcommands.add_parser("make", help="cut labelled images from the photographs into a folder"))
    model = subcommands.add_parser("model", help="copy the model that names the photograph a sample was cut from")
    model.add_argument("file", metavar="FILE", nargs="?", default="scenes.onnx", help="where to; default scenes.onnx")
    model.add_argument("--force", action="store_true", help="replace a file that is there")
    listing = subcommands.add_parser("list", help="show the photographs with their licences")
    listing.add_argument("--json", action="store_true", help="print one JSON object")


def _add_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="folder to write; new or empty")
    parser.add_argument("--count", type=int, required=True, metavar="N", help="number of files, at least 1")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides every byte (default 0)")
    parser.add_argument("--messy", type=float, default=0.0, metavar="RATIO", help="share of messy files, 0 to 1")
    parser.add_argument("--split", choices=SPLITS, default="all", help="region of the photographs (default all)")
    parser.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return the exit code: 0 done, 2 misuse."""
    return {"make": _run_make, "model": _run_model, "list": _run_list}[args.samples_command](args)


def _run_model(args: argparse.Namespace) -> int:
    file = Path(args.file)
    if file.exists() and not args.force:
        say(f"headrace samples model: {file} exists; name another, or replace it with --force")
        return MISUSE
    try:
        file.write_bytes(SCENES_MODEL_PATH.read_bytes())
    except OSError as error:
        say(f"headrace samples model: {file} cannot be written: {error.strerror}")
        return MISUSE
    write(f"{file}: takes float32 (batch, 3, 224, 224), normalized, and scores each of {len(PHOTOGRAPHS)} photographs")
    return DONE


def _run_make(args: argparse.Namespace) -> int:
    from headrace.samples.generator import make  # Pillow: not for `list`, nor for the help

    def show(num_written: int) -> None:
        if num_written % _PROGRESS_STEP == 0:
            say(f"{num_written} of {args.count} files written")

    try:
        manifest = make(
            args.directory,
            count=args.count,
            seed=args.seed,
            messy_ratio=args.messy,
            split=args.split,
            force=args.force,
            progress=show,
        )
    except ValueError as error:
        say(f"headrace samples make: {error}")
        return MISUSE
    except OSError as error:
        say(f"headrace samples make: {args.directory} cannot be written: {error.strerror}")
        return MISUSE
    if args.json:
        write_json(_describe_manifest(manifest))
    else:
        write(_format_manifest(manifest))
    return DONE


def _describe_manifest(manifest: Manifest) -> dict[str, Any]:
    """Return version 1 of what `make --json` prints."""
    return {
        "version": 1,
        "directory": str(manifest.directory),
        "labels": str(manifest.labels_path),
        "num_files": len(manifest.labels),
        "num_bytes": manifest.num_bytes,
        "num_by_kind": manifest.num_by_kind,
        "num_by_messy": manifest.num_by_messy,
        "seed": manifest.seed,
        "split": manifest.split,
    }


def _format_manifest(manifest: Manifest) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in manifest.num_by_kind.items())
    faults = ", ".join(f"{count} {kind}" for kind, count in manifest.num_by_messy.items())
    return (
        f"{len(manifest.labels)} files, {manifest.num_bytes / 1e6:.1f} MB, in {manifest.directory}\n"
        f"kinds   {kinds}\n"
        f"messy   {faults or 'none'}\n"
        f"labels  {manifest.labels_path}"
    )


def _run_list(args: argparse.Namespace) -> int:
    if args.json:
        photographs = [
            {
                "name": photograph.name,
                "path": str(photograph.path),
                "width": photograph.width,
                "height": photograph.height,
                "licence": photograph.licence,
                "credit": photograph.credit,
            }
            for photograph in PHOTOGRAPHS
        ]
        write_json({"version": 1, "photographs": photographs, "licences": str(LICENCES_PATH)})
        return DONE
    for photograph in PHOTOGRAPHS:
        size = f"{photograph.width} x {photograph.height}"
        write(f"{photograph.name:<11} {size:<12} {photograph.licence:<14} {photograph.credit}")
    write(f"\nsources and changes: {LICENCES_PATH}")
    return DONE
