"""How much memory a variant needs: opened and called in a process of its own.

How this works: a fresh Python process reads the items, notes its resident memory, opens the variant with its engine, calls it a
few times, and tells how far its peak (`VmHWM` of /proc) lies above what it noted. So the engine's library, the weights, what
compiling took for a moment and the buffers of a call count, and Python, NumPy and this package do not. In the process that
searches, other variants are open already, and freed memory is seldom given back: there the same cannot be seen.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.documents import decode_document, encode_document
from headrace.base.plan import ModelPlan
from headrace.engines import traits_of
from headrace.validate.items import Feed
from headrace.validate.variant_spec import VariantSpec

#: Calls after which buffers have their size.
_CALLS = 3
_PATIENCE_SECONDS = 300.0
_STATUS = Path("/proc/self/status")


def measure_memory(spec: VariantSpec, batch: Feed) -> int | None:
    """Return the peak of resident memory that opening and calling a variant takes, bytes.

    Args:
        spec: The variant; None is returned for one whose network is in the pipeline's module.
        batch: That it is called with.

    Returns:
        None where it cannot be measured: no /proc, the variant does not open alone, or it takes longer than five minutes.
    """
    if traits_of(spec.model.engine).runs_networks or not _STATUS.exists():
        return None
    asked = io.BytesIO()
    # Names of inputs may be savez's own.
    arrays: dict[str, Any] = {f"={name}": array for name, array in batch.items()} if isinstance(batch, Mapping) else {}
    np.savez(asked, **(arrays or {"batch": batch}))
    with tempfile.TemporaryDirectory(prefix="headrace-memory-") as folder:
        items = Path(folder) / "batch.npz"
        items.write_bytes(asked.getvalue())
        model = encode_document(spec.model).decode()
        try:
            ran = subprocess.run(
                [sys.executable, "-P", "-m", "headrace.validate.memory", str(items), model],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE_SECONDS,
                check=True,
            )
            return int(ran.stdout)
        except (subprocess.SubprocessError, OSError, ValueError):
            return None


def _resident(name: str) -> int:
    """Return `VmRSS` or `VmHWM`, bytes."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _main(items: str, model: str) -> None:
    with np.load(items, allow_pickle=False) as arrays:
        named = {name.removeprefix("="): arrays[name] for name in arrays}
        batch = named if "batch" not in arrays else named["batch"]
    spec = VariantSpec("", decode_document(model, ModelPlan))
    before = _resident("VmRSS")
    opened = spec.open()
    for _ in range(_CALLS):
        opened(batch)
    sys.stdout.write(str(max(0, _resident("VmHWM") - before)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
