"""What is recorded of a training, and what that costs.

    python -m benchmarks.train --json --quick                    # less than a minute
    python -m benchmarks.train --json --only identity,cost_us

`identity`: whether phases add up to steps, in eight loops. `cost_us`: CPU time of the training thread for each step. Only if
they are named: `diagnosis`, whether faults are named; `straggler`, whether late ranks are; `communication`, whether exchanges
are split into waiting and transfer; `workers`, what loading costs; `whatif`, how far off predictions are; `scaling`, whether
several ranks are predicted from one; `parallel`, whether the bubble of a pipeline is; `batch`, whether searches for batch sizes
survive, mistakes in accumulating are named, and checkpoints cost what was predicted; `tokeniser`, whether a slow one is named,
and what a fast one brings. A part is a module of this folder with `run(*, quick) -> values that JSON knows`, named in `PARTS`.
"""

from __future__ import annotations

import argparse
import importlib
import json

from headrace.cli.terminal import as_json

#: {part: its module}
PARTS = {
    "identity": "identity",
    "cost_us": "cost_us",
    "diagnosis": "diagnosis",
    "straggler": "ranks",
    "communication": "communication",
    "workers": "workers",
    "whatif": "whatif",
    "scaling": "scaling",
    "parallel": "parallel",
    "batch": "batch",
    "tokeniser": "tokeniser",
}
#: Without `--only`.
_USUAL = ("identity", "cost_us")


def main() -> None:
    """Measure the parts that were asked for, and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in one line")
    parser.add_argument("--quick", action="store_true", help="less than a minute; intervals are wider")
    parser.add_argument("--only", default=",".join(_USUAL), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    found = {name: importlib.import_module(f"benchmarks.train.{PARTS[name]}").run(quick=args.quick) for name in chosen}
    print(as_json(found) if args.json else json.dumps(found, indent=2), end="" if args.json else "\n")


if __name__ == "__main__":
    main()
