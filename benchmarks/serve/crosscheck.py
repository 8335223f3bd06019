"""Whether another program than ours finds the same rate and times: perf_analyzer of Triton, by the Open Inference Protocol.

pip install perf-analyzer        # a program of its own; wants glibc 2.38
python -m benchmarks.serve --only crosscheck --perf-analyzer "$(which perf_analyzer)"
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.serve.contestants import OURS, Server
from benchmarks.serve.load import offer
from benchmarks.serve.workloads import THUMB_BYTES, Workload

_CONNECTIONS = (1, 8, 64)
_MODEL = "pipeline"
_INPUT = {"name": "input", "datatype": "UINT8", "shape": [1, THUMB_BYTES]}
#: Of our client over the other's.
_SHOWN = {"rate": "Inferences/Second", "p50_ms": "p50 latency", "p99_ms": "p99 latency"}


def crosscheck(
    workload: Workload, program: str | None, seconds: float, folder: Path, say: Callable[[str], object]
) -> dict[str, Any]:
    """Return, by connections, what our client and perf_analyzer measure, in turn, and ours over its.

    Args:
        workload: The emulated device; each request is a tensor of as many bytes as its bodies have.
        program: Command that runs perf_analyzer; None: it is not here, and nothing is compared.
        seconds: Of each measurement.
        folder: For files, and of the peers' environments.
        say: Told how it goes.

    Raises:
        RuntimeError: If perf_analyzer ended without figures.
    """
    if program is None:
        return {"not_run": "--perf-analyzer says where it is"}
    request = Path(workload.settings["lock"]).with_name("tensor.bin")
    head = json.dumps({"inputs": [{**_INPUT, "parameters": {"binary_data_size": THUMB_BYTES}}]}).encode()
    request.write_bytes(head + bytes(THUMB_BYTES))
    rows = {}
    with Server(OURS, workload, {}, folder) as server:
        for count in _CONNECTIONS:
            order = dataclasses.replace(
                server.order(connections=count, seconds=seconds, warm_seconds=1.0),
                path=f"/v2/models/{_MODEL}/infer",
                bodies=[str(request)],
                headers={"Inference-Header-Content-Length": str(len(head))},
            )
            ours = offer(order)
            theirs = _analyze(program, server.port, count, seconds, request.with_suffix(".csv"))
            ratios = {key: ours[key] / theirs[key] for key in _SHOWN}
            rows[f"c{count}"] = {"ours": {key: ours[key] for key in _SHOWN}, "theirs": theirs, "ratios": ratios}
            say(f"perf_analyzer, {count} connections: {rows[f'c{count}']}")
    return {"rows": rows}


def _analyze(program: str, port: int, connections: int, seconds: float, file: Path) -> dict[str, float]:
    words = [
        *shlex.split(program), "-m", _MODEL, "-u", f"127.0.0.1:{port}", "--shape", f"input:{THUMB_BYTES}",
        "--concurrency-range", str(connections), "--measurement-interval", str(round(seconds * 1e3 / 3)),
        "--stability-percentage", "90", "--percentile", "99", "-f", str(file),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=30 + 10 * seconds, env=dict(os.environ))
    if done.returncode or not file.exists():
        raise RuntimeError(
            f"perf_analyzer ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return read_figures(file.read_text())


def read_figures(text: str) -> dict[str, float]:
    """Return rate and times, in milliseconds, of perf_analyzer's CSV file, whose times are in microseconds."""
    row: Mapping[str, str] = next(csv.DictReader(text.splitlines()))
    return {key: float(row[column]) / (1e3 if key.endswith("_ms") else 1) for key, column in _SHOWN.items()}
