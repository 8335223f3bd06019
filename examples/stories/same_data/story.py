"""The story of the same data, told by running it: `python story.py [FOLDER]` prints the transcript.

1. A training runs on one node.
2. The same script runs on four. Nothing fails; headrace records it, and says what is wrong.
3. Each node gets its own part. The proof is the validation loss after as many steps, which no speed changes.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
NODES, STEPS = 4, 192
#: "It cannot be told" is an answer of `headrace diagnose` too.
ACCEPTED = (0, 4)


def run(*arguments: str) -> str:
    """Show a command as it would be typed, and return what it prints."""
    shown = " ".join(arguments if arguments[0] == "headrace" else ("python", "-m", *arguments))
    print("$", shown.replace(f"{Path.cwd()}/", ""))
    more = ["--json"] if arguments[:2] == ("headrace", "diagnose") else []
    command = [sys.executable, "-m", *arguments, *more]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode not in ACCEPTED:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def launch(script: str, nodes: int, steps: int) -> list[str]:
    """Return the module, with its arguments, that starts a script on nodes."""
    return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(nodes), script, str(steps)]


def read_loss(printed: str) -> float:
    """Show what a training said at its end, and return its validation loss."""
    said = next(line for line in printed.splitlines() if line.startswith("an epoch has"))
    print(f"   {said}")
    return float(said.rpartition(" ")[2])


def record(folder: Path, script: str, nodes: int, steps: int) -> tuple[float, str]:
    """Record a training on nodes, and return its validation loss and what limits it."""
    output = str(folder / Path(script).stem)
    loss = read_loss(run("headrace", "train", "-o", output, "-m", *launch(script, nodes, steps)))
    first = json.loads(run("headrace", "diagnose", output))["first"]
    print(f"   {first['verdict']}: {first['says']}")
    if first["remedies"]:
        print(f"   what to do: {first['remedies'][0]['says']}")
    return loss, first["verdict"]


def changed() -> Iterator[str]:
    """Yield the lines of code in which the fixed script differs."""
    slow, fixed = ((HERE / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("train.py", "fixed.py"))
    return (
        line for line in difflib.unified_diff(slow, fixed, n=0, lineterm="") if line[0] in "+-" and line[1] not in "+-"
    )


def tell(folder: Path, nodes: int, steps: int) -> None:
    """Tell the story, to be read while it goes on."""
    print("1. One node.")
    one = read_loss(run(*launch("train.py", 1, steps)))
    print(f"\n2. {nodes} nodes. Nothing fails. An epoch has as many steps as before, which nobody looks at.")
    same, named = record(folder, "train.py", nodes, steps)
    print("\n3. Each node gets its own part of the data. The lines that change:")
    print(*(f"   {line}" for line in changed()), sep="\n")
    parts, left = record(folder, "fixed.py", nodes, steps)
    print(f"\nValidation loss after {steps} steps: {one:.4f} on one node, {same:.4f} on {nodes} with the same data, "
          f"{parts:.4f} on {nodes} with a part each.")  # fmt: skip
    print(f"What diagnose names: {named} before, {left} after.")
    print("Nodes and devices were emulated: 20 ms a batch is a setting, not a measurement.")


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        sys.exit("this story trains: it needs PyTorch (pip install torch)")
    tell(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/same_data").absolute(), NODES, STEPS)
