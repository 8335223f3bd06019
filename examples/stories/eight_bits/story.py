"""The story of eight bits, told by running it: `python story.py [FOLDER]` prints the transcript.

A network computes its first nodes in float64. In fewer bits it is faster, and the golden set finds nothing wrong with that:
it holds no image of 16 bits. Production has them.

1. `headrace validate` accepts the variant, and the Plan takes it; the ledger notes both Plans.
2. In production the model before goes along as a shadow, and answers otherwise for too many images.
3. `headrace ledger rollback` puts the Plan back.
4. Images of 16 bits join the golden set, and the same variant is rejected.
5. The first nodes in float32 are validated with that set, and accepted.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
from images import as_sixteen_bits, cut

from headrace.ledger.ledger import Ledger

HERE = Path(__file__).parent
#: Images in the golden set, those of 16 bits that are added to it, and those of production, where one of so many is of 16 bits.
NUM_GOLDEN, NUM_ADDED, NUM_PRODUCTION, EVERY = 220, 33, 500, 20


def write_files(folder: Path) -> None:
    """Write the models, both golden sets, and the images of production."""
    models.write(folder)
    images, labels = cut(NUM_GOLDEN, seed=17)
    np.savez(folder / "golden.npz", inputs=images, labels=labels)
    added, added_labels = cut(NUM_ADDED, seed=18)
    np.savez(folder / "golden_with_16_bits.npz", inputs=np.concatenate([images, as_sixteen_bits(added)]),
             labels=np.concatenate([labels, added_labels]))  # fmt: skip
    production, _ = cut(NUM_PRODUCTION, seed=19)
    rare = np.random.default_rng(20).permutation(NUM_PRODUCTION)[: NUM_PRODUCTION // EVERY]
    production[rare] = as_sixteen_bits(production[rare])
    np.save(folder / "production.npy", production)


def headrace(*arguments: str, folder: Path, expect: int = 0) -> str:
    """Run a command in a folder, print it, and return what it prints."""
    print(f"$ headrace {shlex.join(arguments)}".replace(f"{HERE}/", ""))
    command = [sys.executable, "-m", "headrace", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                          env=os.environ | {"COLUMNS": "400"})  # fmt: skip
    if done.returncode != expect:
        raise RuntimeError(f"it ended with {done.returncode}, not {expect}: {done.stderr}")
    return (done.stdout + done.stderr).replace(f"{folder}/", "")


def validate(variant: str, golden: str, folder: Path, *, expect: int) -> str:
    """Print what the gates say of a variant, and return the line about accuracy."""
    said = headrace("validate", "float64.onnx", variant, "--golden", golden, "--max-drop", "2pt", "--ledger",
                    "ledger.sqlite", folder=folder, expect=expect)  # fmt: skip
    gates = re.findall(r"^(?:extremes|speed|accuracy): .*$", said, flags=re.MULTILINE)
    print(*gates, "ACCEPT" if expect == 0 else "REJECT", sep="\n")
    return gates[-1]


def accept(variant: str, why: str, folder: Path) -> None:
    """Have the Plan name a variant, and say why in the ledger."""
    artifact = folder / variant
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        decision = ledger.attempts.accept(
            folder / "plan.toml", f'[model]\nartifact = "{artifact.as_posix()}"\n', why=why
        )
    print(f"decision d{decision.number}: plan.toml names {variant}")


def main(folder: Path) -> None:
    """Tell the story."""
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder)
    (folder / "plan.toml").write_text(f'[model]\nartifact = "{(folder / "float64.onnx").as_posix()}"\n')
    print(f"1. A golden set of {NUM_GOLDEN} images, all of 8 bits.")
    why = validate("eight_bits.onnx", "golden.npz", folder, expect=0)
    accept("eight_bits.onnx", why, folder)
    print(f"\n2. Production: one image of {EVERY} is of 16 bits.")
    said = headrace("run", f"{HERE / 'jobs.py'}:pipeline", "--plan", "plan.toml", "--shadow", "float64.onnx",
                    "--ledger", "ledger.sqlite", folder=folder)  # fmt: skip
    print(*re.findall(r"^(?:[\d,]+ received|shadow).*$", said, flags=re.MULTILINE), sep="\n")
    print("\n3. Back.")
    print(headrace("ledger", "rollback", "plan.toml", "--why", "images of 16 bits are answered otherwise", "--ledger",
                   "ledger.sqlite", folder=folder).strip())  # fmt: skip
    print(f"\n4. {NUM_ADDED} images of 16 bits join the golden set.")
    validate("eight_bits.onnx", "golden_with_16_bits.npz", folder, expect=1)
    print("\n5. The first nodes in float32.")
    why = validate("float32.onnx", "golden_with_16_bits.npz", folder, expect=0)
    accept("float32.onnx", why, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/eight_bits").resolve())
