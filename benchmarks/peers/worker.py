"""Runs one peer once, in this process: reads {workload, peer, jobs, settings} from a file, writes the window to another.

Called by ``bench``. Without jobs it answers with the peer's title and grid, so that the caller need not import it.
"""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.protocol import EmulatedJobs, FolderJobs, Peer, QueueJobs, Settings
from benchmarks.peers.registry import MODULES

JOBS = {"queue": QueueJobs, "folder": FolderJobs, "emulated": EmulatedJobs}


def load(workload: str, name: str) -> Peer:
    """Import a peer."""
    module = importlib.import_module(f"benchmarks.peers.{MODULES[workload][name]}")
    return next(peer for peer in getattr(module, "PEERS", (getattr(module, "PEER", None),)) if peer.name == name)


def main() -> None:
    request, reply = (Path(argument) for argument in sys.argv[1:3])
    order = json.loads(request.read_text())
    peer = load(order["workload"], order["peer"])
    if "jobs" not in order:
        reply.write_text(json.dumps({"title": peer.title, "grid": [asdict(point) for point in peer.grid]}))
        return
    jobs = JOBS[order["workload"]](**order["jobs"])
    window = peer.run(jobs, Settings(**order["settings"]))
    reply.write_text(json.dumps(asdict(window)))


if __name__ == "__main__":
    main()
