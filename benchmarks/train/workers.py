"""What is said of a loader's workers, against what was injected and against the break-even; and what saying it costs.

    python -m benchmarks.train.workers [--quick] [--json] [--write]

How this works: each loader of a sweep sleeps in its items, which say themselves how long they took. It is recorded with a model
that sleeps longer, so that the loop waits for nothing. Then:

- `cost_error`: what was recorded of a batch in its worker, against what its items took by their own clocks.
- `headroom_error`: `find_headroom` from that record, against the break-even that is measured by emptying the same loader
  without a model: the time of the model over the time between two of its batches.
- `item_us`, `batch_us`: CPU time that recording adds in the thread that loads, for an item and for a batch, by blocks in turn.

Sleeping workers share no core, so the limit by workers is what is tested here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks import measure
from headrace import train
from headrace.diagnose.training.headroom import find_headroom
from headrace.diagnose.training.steps import read_steps
from headrace.runs.reader import read_run
from headrace.runs.training_phases import LoaderWork, Phase
from headrace.train.loader_clock import BatchClock, WatchedFetcher

#: (milliseconds of an item, items in a batch, workers, milliseconds of the model for a batch)
SWEEP = (
    (5, 4, 2, 25),
    (10, 4, 2, 40),
    (20, 2, 2, 30),
    (5, 8, 1, 60),
    (10, 2, 1, 30),
    (40, 1, 2, 30),
    (5, 4, 1, 30),
    (10, 4, 1, 50),
    (20, 4, 2, 60),
    (2, 16, 2, 30),
    (10, 8, 2, 60),
    (5, 2, 1, 40),
)
QUICK = 3
#: Batches of each loader; those of the first round of all workers are left out where the time between batches is measured.
NUM_BATCHES = 30
#: Items in a batch, and batches in a block, where the price is measured.
ITEMS, BATCHES = 64, 40


class Sleeping(Dataset[Any]):
    """Items that take a time, and say how long."""

    def __init__(self, seconds: float, count: int) -> None:
        self.seconds, self.count = seconds, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        began = time.monotonic()
        time.sleep(self.seconds)
        return time.monotonic() - began  # collating makes a tensor of it


def run(*, quick: bool) -> dict[str, Any]:
    """Return the errors of the sweep as shares, and the price in microseconds of CPU time."""
    rows = [_try_loader(*case) for case in (SWEEP[:QUICK] if quick else SWEEP)]
    price = [_price(repeats=10 if quick else 40) for _ in range(3)]
    return {
        "loaders": rows,
        "cost_error_max": max(abs(row["cost_error"]) for row in rows),
        "headroom_error_max": max(abs(row["headroom_error"]) for row in rows),
        "wait_share_max": max(row["wait_share"] for row in rows),
        "item_us": [round(item, 3) for item, _ in price],
        "batch_us": [round(batch, 2) for _, batch in price],
    }


def _try_loader(item_ms: float, batch_size: int, workers: int, model_ms: float) -> dict[str, Any]:
    def loader() -> DataLoader[Any]:
        return DataLoader(Sleeping(item_ms / 1e3, batch_size * NUM_BATCHES), batch_size, num_workers=workers)

    with tempfile.TemporaryDirectory() as folder:
        said = _record(loader(), model_ms / 1e3, Path(folder) / "run")
        (rank,) = read_steps(read_run(Path(folder) / "run"))
    work = rank.batches.work
    recorded = work[LoaderWork.ITEMS].wall
    headroom = find_headroom(rank, num_workers=workers, num_cores=torch.get_num_threads() or 1)
    assert headroom is not None
    measured = headroom.model_seconds / _time_between(loader(), workers)
    return {
        "case": f"{batch_size} items of {item_ms:g} ms, {workers} workers, model {model_ms:g} ms",
        "cost_error": float(recorded.sum() / sum(said) - 1),
        "headroom": headroom.ratio_by_workers,
        "break_even": measured,
        "headroom_error": headroom.ratio_by_workers / measured - 1,
        "wait_share": float(rank.steps.phases[Phase.WAIT].wall[1:].sum() / rank.steps.wall[1:].sum()),
    }


def _record(loader: DataLoader[Any], model_seconds: float, output: Path) -> list[float]:
    """Train on a loader with a model that sleeps; return the seconds that the items of each batch took."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    with train.profile(loader, output=output) as same:
        for batch in same:
            said.append(float(batch.sum()))
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            time.sleep(model_seconds)
    return said


def _time_between(loader: DataLoader[Any], workers: int) -> float:
    """Return the mean time between batches of a loader that is emptied as fast as it goes, after its first rounds."""
    came = [time.monotonic() for _ in loader]
    kept = came[2 * workers - 1 :: workers]  # whole rounds: workers end theirs together
    return (kept[-1] - kept[0]) / ((len(kept) - 1) * workers)


class _Plain:
    """A fetcher as PyTorch's, of items that cost nothing."""

    def __init__(self) -> None:
        self.dataset = list(range(ITEMS))
        self.collate_fn: Callable[[Any], Any] = len

    def fetch(self, index: Any) -> Any:
        return self.collate_fn([self.dataset[one] for one in index])


def _price(*, repeats: int) -> tuple[float, float]:
    """Return the CPU time that recording adds for an item, and for a batch without items, in microseconds."""
    bare = _Plain()
    watched = WatchedFetcher(_Plain(), BatchClock(lambda record: None, 0, is_alone=True))
    few, many = [0], list(range(ITEMS))
    of_few, of_many = (
        float(np.median([_block(watched, indices) - _block(bare, indices) for _ in range(repeats)]))
        for indices in (few, many)
    )
    return (of_many - of_few) / (ITEMS - 1) * 1e6, of_few * 1e6


def _block(fetcher: Any, indices: list[int]) -> float:
    """Return the CPU seconds of a batch."""
    began = time.thread_time()
    for _ in range(BATCHES):
        fetcher.fetch(indices)
    return (time.thread_time() - began) / BATCHES


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = (
        f"| {row['case']} | {row['cost_error']:+.2%} | {row['headroom']:.3f} | {row['break_even']:.3f} | "
        f"{row['headroom_error']:+.1%} | {row['wait_share']:.1%} |"
        for row in result["loaders"]
    )
    lines = [
        "# What loading costs in workers, and how much faster a model may become",
        "",
        "Items and models sleep. Cost: what was recorded of all batches, against what their items took by their own clocks.",
        "Headroom: as many times faster may the model become; measured by emptying the loader without it.",
        "",
        f"Costs are off by at most {result['cost_error_max']:.2%}, headroom by {result['headroom_error_max']:.1%}; the loops",
        f"wait at most {result['wait_share_max']:.1%} of the step.",
        f"Recording takes {_range(result['item_us'], 2)} us of an item, and {_range(result['batch_us'], 0)} us of a batch.",
        "",
        "| loader | cost off by | headroom | measured | off by | wait |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines)


def _range(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


if __name__ == "__main__":
    measure.run_benchmark("train.workers", __doc__.splitlines()[0], lambda quick: run(quick=quick), as_text)
