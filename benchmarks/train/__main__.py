"""What is recorded of a training, and what that costs.

    python -m benchmarks.train --json --quick                    # less than a minute: identity and cost_us
    python -m benchmarks.train --json                            # two hours: the first seven
    python -m benchmarks.train --json --quick --only straggler

`identity`: whether phases add up to steps, in eight loops. `cost_us`: CPU time of the training thread for each step.
`diagnosis`: whether faults are named. `straggler`: whether late ranks are. `whatif`: how far off predictions are. `batch`:
whether searches for batch sizes survive, mistakes in accumulating are named, and checkpoints cost what was predicted.
`scaling`: whether several ranks are predicted from one. Only if they are named: `communication`, whether exchanges are split
into waiting and transfer; `workers`, what loading costs; `parallel`, whether the bubble of a pipeline is predicted;
`tokeniser`, whether a slow one is named, and what a fast one brings. A part is a module of this folder with
`run(*, quick) -> values that JSON knows`, named in `PARTS`.
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
    "whatif": "whatif",
    "batch": "batch",
    "scaling": "scaling",
    "communication": "communication",
    "workers": "workers",
    "parallel": "parallel",
    "tokeniser": "tokeniser",
}
#: Without `--only`: the first so many, and the short way.
_USUAL, _QUICK = 7, 2


def main() -> None:
    """Measure the parts that were asked for, and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in one line")
    parser.add_argument("--quick", action="store_true", help="shorter; intervals are wider")
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else list(PARTS)[: _QUICK if args.quick else _USUAL]
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    found = {name: importlib.import_module(f"benchmarks.train.{PARTS[name]}").run(quick=args.quick) for name in chosen}
    print(as_json(found) if args.json else json.dumps(found, indent=2), end="" if args.json else "\n")


if __name__ == "__main__":
    main()
