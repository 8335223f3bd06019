"""The designs headrace is compared with, and how to run them.

    from benchmarks import peers

    with peers.QueueBench(decode="usual", delay_ms=80) as bench:
        best = bench.tune("asyncio", budget_seconds=120).settings
        outcome = bench.run("asyncio", best, count=1000)

One module per design and workload (``queue_*``, ``folder_*``, ``emulated``); ``protocol`` says what they share,
``bench`` runs them in processes of their own, ``tuning`` finds their best settings. ``python -m benchmarks.peers`` runs
and checks them all.
"""

from benchmarks.peers.bench import (
    NOT_INSTALLED,
    Bench,
    EmulatedBench,
    FolderBench,
    Outcome,
    QueueBench,
    different_labels,
)
from benchmarks.peers.protocol import Peer, Settings
from benchmarks.peers.registry import is_runnable, names
from benchmarks.peers.tuning import Tuned

__all__ = [
    "NOT_INSTALLED",
    "Bench",
    "EmulatedBench",
    "FolderBench",
    "Outcome",
    "Peer",
    "QueueBench",
    "Settings",
    "Tuned",
    "different_labels",
    "is_runnable",
    "names",
]
