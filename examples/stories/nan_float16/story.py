"""The story of NaN in float16, told by running it: `python story.py` prints the transcript.

1. A training works in float32.
2. In float16 its loss is NaN from the first epoch on.
3. `headrace train check` names the layer.
4. That layer computes in float32, and the loss is that of float32 again.
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
#: `headrace train check` ends with 1 where something is wrong, which is what this story asks.
ACCEPTED = (0, 1)


def run(shown: str, command: list[str], accepted: tuple[int, ...] = (0,)) -> str:
    """Show a command as it would be typed, run it, and return what it prints."""
    print(f"$ {shown}")
    done = subprocess.run([sys.executable, *command], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise RuntimeError(f"{shown} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def train(script: str, dtype: str) -> float:
    """Train in a data type, show what is printed, and return the last loss."""
    said = run(f"python {script} {dtype}", [script, dtype]).splitlines()
    print(*(f"   {line}" for line in said), sep="\n")
    return float(said[-1].rpartition(" ")[2])


def check(script: str) -> list[str]:
    """Show what headrace says of each data type; return the layers that it names."""
    asked = ["train", "check", f"{script}:make", "--only", "precision"]
    told = run(" ".join(("headrace", *asked)), ["-m", "headrace", *asked, "--json"], ACCEPTED)
    named = []
    for precision in json.loads(told)["precision"]:
        found = precision["findings"]
        says = "; ".join(f"layer {one['layer']} ({one['layer_class']}): {one['kind']}: {one['what']}" for one in found)
        print(f"   {precision['dtype']}: {says or precision['problem'] or 'nothing is wrong'}")
        named += [one["layer_class"] for one in found]
    return named


def changed() -> Iterator[str]:
    """Yield the lines of code in which the fixed script differs."""
    slow, fixed = ((HERE / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("train.py", "fixed.py"))
    return (
        line for line in difflib.unified_diff(slow, fixed, n=0, lineterm="") if line[0] in "+-" and line[1] not in "+-"
    )


def tell() -> None:
    """Tell the story, to be read while it goes on."""
    print("1. In float32.")
    exact = train("train.py", "float32")
    print("\n2. In float16.")
    broken = train("train.py", "float16")
    print("\n3. Which layer?")
    named = check("train.py")
    print("\n4. It computes in float32, all else in float16. The line that changes:")
    print(*(f"   {line}" for line in changed()), sep="\n")
    mended = train("fixed.py", "float16")
    left = check("fixed.py")
    print(
        f"\nLoss of the last epoch: {exact:.4f} in float32, {broken:.4f} in float16, {mended:.4f} in float16 with the fix."
    )
    print(f"Layers named: {', '.join(named) or 'none'} before, {', '.join(left) or 'none'} after.")


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        sys.exit("this story trains: it needs PyTorch (pip install torch)")
    tell()
