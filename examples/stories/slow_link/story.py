"""The story of the slow link, told by running it: `python story.py [FOLDER]` prints the transcript.

1. A training runs on one node, and on two that a link connects. Two bring a fifth more.
2. headrace says why, what more nodes on a slower link would bring, and what exchanging less often would.
3. Both are tried: eight nodes on the slower link are slower than one; exchanging less often makes them faster.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Bytes per second of the link of two nodes, and of the throttled one.
LINK, THROTTLED = 75_000_000, 7_000_000
FEW, MANY, STEPS = 2, 8, 30
#: Batches for each exchange in the fixed script, on either link.
EVERY, EVERY_THROTTLED = 4, 8
#: "It cannot be told" is an answer of `headrace diagnose` too.
ACCEPTED = (0, 4)


def run(*arguments: str, as_json: bool = False) -> str:
    """Show a command as it would be typed, and return what it prints."""
    shown = " ".join(arguments if arguments[0] == "headrace" else ("python", "-m", *arguments))
    print("$", shown.replace(f"{Path.cwd()}/", ""))
    command = [sys.executable, "-m", *arguments, *(["--json"] if as_json else [])]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode not in ACCEPTED:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def launch(script: str, nodes: int, *arguments: int) -> list[str]:
    """Return the module, with its arguments, that starts a script on nodes."""
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(nodes), script]
    return [*start, *map(str, arguments)]


def read_rate(printed: str) -> float:
    """Show what a training said at its end, and return its samples per second."""
    said = next(line for line in printed.splitlines() if line.endswith("samples/s"))
    print(f"   {said}")
    return float(said.split()[0])


def record(output: Path, script: str, nodes: int, *arguments: int) -> float:
    """Record a training on nodes, and return its samples per second."""
    return read_rate(run("headrace", "train", "-o", str(output), "-m", *launch(script, nodes, *arguments)))


def diagnose(output: Path) -> str:
    """Say what limits a recorded training, and return its verdict."""
    first = json.loads(run("headrace", "diagnose", str(output), as_json=True))["first"]
    print(f"   {first['verdict']}: {first['says']}")
    for remedy in first["remedies"]:
        ratio = f"x{remedy['ratio']['mid']:.2f}: " if remedy["ratio"] else ""
        print(f"   what to do: {ratio}{remedy['says']}")
    verdict: str = first["verdict"]
    return verdict


def predict(output: Path, *settings: str, cores: int) -> float:
    """Ask what settings would bring, and return the ratio to the recorded training."""
    words = [word for setting in settings for word in ("--set", setting)]
    # Devices are emulated: nodes of their own have cores of their own.
    asked = run("headrace", "whatif", str(output), *words, "--cores", str(cores), "--no-ledger", as_json=True)
    ratio = json.loads(asked)["throughput"]["ratio"]
    print(f"   predicted: x{ratio['mid']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] of the recorded training")
    found: float = ratio["mid"]
    return found


def tell(folder: Path, few: int, many: int, steps: int) -> None:
    """Tell the story, to be read while it goes on."""
    print("1. One node, and a second one beside it.")
    one = read_rate(run(*launch("train.py", 1, LINK, steps)))
    two = record(folder / "few", "train.py", few, LINK, steps)
    print(f"   {few} nodes are x{two / one:.2f} of one")
    print("\n2. Why, and what would be with more nodes on a link that is throttled, and with fewer exchanges.")
    named = diagnose(folder / "few")
    slower = predict(folder / "few", f"ranks={many}", f"link.bandwidth={THROTTLED}", cores=many)
    less = predict(folder / "few", f"accumulate={EVERY}", cores=few)
    print(f"\n3. {few} nodes that exchange once for {EVERY} batches.")
    fixed = record(folder / "few-fixed", "fixed.py", few, LINK, steps // EVERY + 8, EVERY)
    print(f"   x{fixed / two:.2f} measured, x{less:.2f} predicted: {few} nodes are x{fixed / one:.2f} of one")
    print(f"\n4. {many} nodes on the throttled link.")
    eight = record(folder / "many", "train.py", many, THROTTLED, steps)
    print(f"   {many} nodes are x{eight / one:.2f} of one; from {few} nodes x{slower * two / one:.2f} was predicted")
    diagnose(folder / "many")
    less = predict(folder / "many", f"accumulate={EVERY_THROTTLED}", cores=many)
    mended = record(folder / "many-fixed", "fixed.py", many, THROTTLED, steps // EVERY_THROTTLED + 8, EVERY_THROTTLED)
    print(f"   x{mended / eight:.2f} measured, x{less:.2f} predicted: {many} nodes are x{mended / one:.2f} of one")
    print(
        f"\nOf one node: {few} nodes x{two / one:.2f}, exchanging less often x{fixed / one:.2f}; {many} nodes on the throttled "
        f"link x{eight / one:.2f}, exchanging less often x{mended / one:.2f}."
    )
    print(f"What diagnose named first: {named}.")
    print("Nodes, devices and links were emulated: 20 ms a batch and the bandwidths are settings, not measurements.")
    print(
        "An update of more batches is another training: whether its loss is as good is for `headrace train batch` to say."
    )


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        sys.exit("this story trains: it needs PyTorch (pip install torch)")
    tell(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/slow_link").absolute(), FEW, MANY, STEPS)
