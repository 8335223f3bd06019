"""headrace as a contestant: `python -m benchmarks.serve.ours`, with its settings as JSON in the first argument."""

import json
import mmap
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.ours import PLANS, Classifier
from benchmarks.serve import refusals
from headrace.serve import service
from headrace.serve.http.limits import Limits

_NUM_COUNTS = 2


class Device(hr.Module):
    """The emulated device; counts its calls and items in a file that others read meanwhile.

    Args:
        counts: The file.
    """

    input = hr.ArrayInput()

    def __init__(self, counts: Path) -> None:
        super().__init__()
        self._counts = counts

    def load(self, context: Any) -> None:
        """Open the device."""
        self._device = context.open_model()
        with self._counts.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * _NUM_COUNTS)
        self._calls = self._items = 0

    def process(self, batch: Any) -> list[dict[str, object]]:
        """Return a label for each item."""
        prepared = [np.full((3, 8, 8), payload[0], np.float32) for payload in batch]
        self._calls, self._items = self._calls + 1, self._items + len(prepared)
        self._map[:] = struct.pack("qq", self._calls, self._items)
        return [{"label": 7, "score": 0.5}] * len(self._device(prepared))


def read_counts(file: Path) -> tuple[int, int]:
    """Return calls of the device and items in them, warm-up included."""
    calls, items = struct.unpack("qq", file.read_bytes())
    return calls, items


def main() -> None:
    """Serve until SIGTERM."""
    order = json.loads(sys.argv[1])
    settings = []
    if "refusals" in order:
        refusals.watch(Path(order["refusals"]))
    if order["workload"] == "real":
        module: hr.Module = Classifier()
        settings.append(f"model.artifact={json.dumps(order['model'])}")
    else:
        counts = Path(order["counts"])
        counts.write_bytes(bytes(8 * _NUM_COUNTS))
        module = Device(counts)
        settings += [f"model.options.{key}={order[key]}" for key in ("launch_seconds", "item_seconds")]
    plan = hr.Plan.load(PLANS / order["plan"]).with_settings([*settings, *order.get("settings", [])])
    service.serve(
        hr.Pipeline(hr.items([]), module=module),
        plan,
        service.ServeSettings(
            port=order["port"],
            limits=Limits(**order.get("limits", {})),
        ),
    )


if __name__ == "__main__":
    main()
