"""How fast data arrives, beside the libraries that others use.

    python -m benchmarks.feed --json --quick          # less than a minute
    python -m benchmarks.feed --write                 # writes a dated result
    python -m benchmarks.feed --only formats,packing

`formats`: reading items of 30 kB from tar shards with an index, beside a bare `pread`, Python's tarfile, the WebDataset
library and a folder. `packing`: `headrace pack` beside `cp` and `sha256sum`. `loader`: batches of decoded JPEGs beside
PyTorch's DataLoader, SPDL, WebDataset, litdata and Ray Data. `remote`: shards behind a slow link, with and without a cache.
`cache`: the disk cache under kills and under readers that want the same. `resume`: 1,000 random stops of the order of samples.
`augment`: random crops in the worker, in batches, and on an emulated device.
`choice`: what `headrace pack --try` names in ten planted situations, some of them cold; `--quick` has two.
`cache_prediction`: what `headrace whatif` says of caches, and what they do then; `--quick` leaves it out unless it is named.
All other data are warm, in the page cache. A part is a module of this folder with `run(*, quick) -> values that JSON knows` and
`as_text(values)`, named in `PARTS`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

from benchmarks.measure import write_result

PARTS = ("formats", "packing", "loader", "remote", "cache", "resume", "augment", "choice", "cache_prediction")


def list_parts(*, quick: bool) -> list[str]:
    """Return the parts that are measured where none is named."""
    return [name for name in PARTS if not (quick and name == "cache_prediction")]


def as_text(found: dict[str, Any], *, quick: bool) -> str:
    """Return the parts for readers."""
    parts = [importlib.import_module(f"benchmarks.feed.{name}").as_text(values) for name, values in found.items()]
    only = "" if list(found) == list_parts(quick=quick) else f" --only {','.join(found)}"
    command = f"python -m benchmarks.feed{only}{' --quick' if quick else ''}"
    head = f"# How fast data arrives\n\n`{command}`; all data in the page cache, but for `choice`."
    return "\n\n".join([head, *parts])


def main() -> None:
    """Measure the parts that were asked for, and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.feed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in one line")
    parser.add_argument("--quick", action="store_true", help="less than a minute; fewer items and rounds")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else list_parts(quick=args.quick)
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    found = {}
    for name in chosen:
        began = time.perf_counter()
        found[name] = importlib.import_module(f"benchmarks.feed.{name}").run(quick=args.quick)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    text = as_text(found, quick=args.quick)
    print(json.dumps(found) if args.json else text)
    if args.write:
        theme = "_".join(["feed", *(chosen if args.only else [])])
        print(f"written: {write_result(theme, text, found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
