"""What runs in the environment of the packages, ``python -m benchmarks.real_models.worker``.

prepare NAME FOLDER COUNT     writes into FOLDER: `items/`, `own.json` (answers of the package's own code), `golden.npz` and
`data.npz` for the first model, and planted models; prints where they are
compare NAME OURS THEIRS      prints how many answers are the same, and of how many
"""

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.real_models import cases
from benchmarks.real_models.planted import plant


def prepare(name: str, folder: Path, count: int) -> dict[str, object]:
    """Make everything for one package and return where it is."""
    case = cases.load(name)
    items = folder / "items"
    items.mkdir(parents=True)
    case.make_items(items, count)
    files = sorted(items.iterdir())
    (folder / "own.json").write_text(json.dumps(case.own(files)))
    said: dict[str, object] = {"models": {key: str(path) for key, path in case.models.items()}, "planted": {}}
    first = next(iter(case.models.values()))
    if case.inputs is not None:
        inputs = case.inputs(files)
        third = max(32, len(inputs) // 3)  # what int8 is calibrated on does not judge it
        np.savez(folder / "data.npz", inputs=inputs[:third])
        np.savez(folder / "golden.npz", inputs=inputs[third:])
        said |= {"num_golden": len(inputs) - third, "planted": plant(first, folder, case.batch_axis)}
    return said


def compare(name: str, ours: Path, theirs: Path) -> tuple[int, int]:
    """Return how many answers are the same, and of how many."""
    case = cases.load(name)
    wanted = json.loads(theirs.read_text())
    found = {}
    for line in ours.read_text().splitlines():
        row = json.loads(line)
        found[Path(row["id"]).name] = row["result"]
    return sum(file in found and case.same(found[file], answer) for file, answer in wanted.items()), len(wanted)


def main() -> int:
    command, name, *rest = sys.argv[1:]
    made = prepare(name, Path(rest[0]), int(rest[1])) if command == "prepare" else compare(name, *map(Path, rest))
    print(SAID + json.dumps(made))
    return 0


#: What the line begins with that holds the answer; packages print lines of their own.
SAID = "SAID "

if __name__ == "__main__":
    sys.exit(main())
