"""Which peers there are. Only names here: a peer's module is imported where it runs, in its own process."""

from benchmarks.peers.protocol import Workload
from benchmarks.setup_peers import is_ready

MODULES: dict[Workload, dict[str, str]] = {
    "queue": {
        "sequential": "queue_sequential",
        "threads": "queue_threads",
        "processes": "queue_processes",
        "thread-pool": "queue_thread_pool",
        "asyncio": "queue_asyncio",
        "session-threads": "queue_session_threads",
        "dataloader": "queue_dataloader",
        "ray": "queue_ray",
    },
    "folder": {
        "sequential": "folder_sequential",
        "processes": "folder_processes",
        "thread-pool": "folder_thread_pool",
        "whole-processes": "folder_whole_processes",
        "session-threads": "folder_session_threads",
        "dataloader": "folder_dataloader",
        "ray": "folder_ray",
    },
    "emulated": dict.fromkeys(("threads", "asyncio", "asyncio-timers"), "emulated"),
}
HEAVY = frozenset({"dataloader", "ray"})


def names(workload: Workload) -> tuple[str, ...]:
    """Return the names of a workload's peers."""
    return tuple(MODULES[workload])


def is_heavy(name: str) -> bool:
    """Return whether the peer lives in the environment of ``benchmarks.setup_peers``."""
    return name in HEAVY


def is_runnable(name: str) -> bool:
    """Return whether the peer can run here and now."""
    return name not in HEAVY or is_ready()
