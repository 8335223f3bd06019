"""Data parallel over the devices of one host: one Plan, 1, 2 and 4 emulated devices, and what had been predicted.

    python -m benchmarks.scale_devices --json [--quick] [--write]

A batch takes a device 1.36 ms and 3.4 ms an item, a tenth of the reference case of `docs/design.md`. The numbers of devices
take turns. A perfect rate is that of so many devices at full batches, without a pause; predictions are simulated from the
profile of the run with one device.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.measure import run_benchmark
from headrace.base.plan import Plan
from headrace.diagnose.analysis import Analysis
from headrace.runs.formats.prediction import Change
from headrace.runs.reader import read_run

LAUNCH_SECONDS, ITEM_SECONDS, BATCH = 0.00136, 0.0034, 8
DEVICES = (1, 2, 4)
FULL_RATE = BATCH / (LAUNCH_SECONDS + ITEM_SECONDS * BATCH)


class Scenes(hr.Module):
    """A model that only takes time."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open it."""
        self.scenes = context.open_model()

    def process(self, batch: Any) -> Any:
        """Return its answers."""
        return self.scenes(batch)


def run_on(number: int, folder: Path, seconds: float) -> None:
    """Run for about so many seconds on so many devices, and leave a run folder."""
    plan = Plan.from_table(
        {
            "stages": {"process": {"batch": BATCH}},
            "source": {"receive_batch": 64},
            "model": {
                "engine": "emulated",
                "devices": list(range(number)),
                "options": {"launch_seconds": LAUNCH_SECONDS, "item_seconds": ITEM_SECONDS},
            },
        }
    )
    items = [0.0] * round(seconds * number * FULL_RATE)
    hr.profile(hr.Pipeline(hr.items(items), module=Scenes()), plan, output=folder)


def measure_devices(seconds: float, turns: int) -> dict[str, Any]:
    """Return rates, by the number of devices."""
    rates: dict[int, list[float]] = {number: [] for number in DEVICES}
    predicted: dict[int, list[float]] = {number: [] for number in DEVICES}
    with tempfile.TemporaryDirectory(prefix="headrace-devices-") as name:
        for turn in range(turns):
            for number in DEVICES:
                folder = Path(name) / f"{turn}-{number}"
                run_on(number, folder, seconds)
                replay = Analysis(read_run(folder)).replay
                rates[number].append(replay.throughput)
                if number == 1:
                    for more in DEVICES[1:]:
                        settings = (f"process.workers={more}", f"model.devices={list(range(more))}")
                        predicted[more].append(replay.simulate(Change(settings=settings)).throughput)
    found = {}
    for number in DEVICES:
        rate = statistics.median(rates[number])
        found[str(number)] = {
            "rate": rate,
            "share_of_perfect": rate / (number * FULL_RATE),
            "predicted": statistics.median(predicted[number]) if predicted[number] else None,
        }
    return {"launch_seconds": LAUNCH_SECONDS, "item_seconds": ITEM_SECONDS, "batch": BATCH, "devices": found}


def measure_all(quick: bool) -> dict[str, Any]:
    """Return everything."""
    return measure_devices(4.0, 1) if quick else measure_devices(8.0, 3)


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    one = result["devices"]["1"]["rate"]
    lines = [
        "# Data parallel over emulated devices",
        "",
        f"One Plan with `[model] devices`; a batch of up to {result['batch']} takes each device",
        f"{result['launch_seconds'] * 1e3:.3g} ms and {result['item_seconds'] * 1e3:.3g} ms an item. Medians of three turns;",
        "predicted from the profile with one device.",
        "",
        "| devices | items a second | of one | of perfect | predicted | error |",
        "|---|---|---|---|---|---|",
    ]
    for number, row in result["devices"].items():
        told = row["predicted"]
        error = f"{told:.1f} | {told / row['rate'] - 1:+z.1%}" if told else "- | -"
        lines.append(
            f"| {number} | {row['rate']:.1f} | {row['rate'] / one:.2f} | {row['share_of_perfect']:.1%} | {error} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_benchmark("scale_devices", __doc__.splitlines()[0], measure_all, as_text)
