"""A closed loop over gRPC, by Triton's own client: a process of its own, each connection a channel that nobody else uses.

python -m benchmarks.serve.grpc_load ADDRESS CONNECTIONS SECONDS BODY
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.paths import ROOT

_PATIENCE_SECONDS = 60.0


def offer(address: str, connections: int, seconds: float, body: Path) -> dict[str, Any]:
    """Run it; return {"statuses": {"200" or how a call failed: calls}, "rate": answers per second}.

    Raises:
        RuntimeError: If the client ended without figures.
    """
    command = [sys.executable, "-m", "benchmarks.serve.grpc_load", address, str(connections), str(seconds), str(body)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + _PATIENCE_SECONDS)
    if done.returncode:
        raise RuntimeError(f"the gRPC client ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    return dict(json.loads(done.stdout))


async def _ask(address: str, body: bytes, ends: float, statuses: Counter[str]) -> None:
    import numpy as np
    from tritonclient.grpc import InferInput
    from tritonclient.grpc.aio import InferenceServerClient

    tensor = InferInput("bytes", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[body]], dtype=object))
    async with InferenceServerClient(address, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        while time.monotonic() < ends:
            try:
                await client.infer("pipeline", [tensor])
                statuses["200"] += 1
            except Exception as error:  # whatever it is, the call failed
                statuses[f"{type(error).__name__}: {error!s:.160}"] += 1


async def _ask_all(address: str, connections: int, seconds: float, body: bytes) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    await asyncio.gather(*(_ask(address, body, ends, statuses) for _ in range(connections)))
    return {"statuses": dict(statuses), "rate": statuses["200"] / seconds}


def main() -> None:
    """Read the arguments, ask, print the figures."""
    address, connections, seconds, body = sys.argv[1:]
    print(json.dumps(asyncio.run(_ask_all(address, int(connections), float(seconds), Path(body).read_bytes()))))


if __name__ == "__main__":
    main()
