"""Measures what lies between ranks of this machine: time and CPU of all-reduces of several sizes, and the line through them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.base.documents import decode_document
from headrace.diagnose.training.simulation_exchange import Link
from headrace.runs.formats.scaling import MeasuredLink, MeasuredReduce
from headrace.train.ranks.launch import Group, run_group

#: Bytes of the all-reduces: as small as a bias, as large as a bucket.
SIZES = (1 << 12, 1 << 16, 1 << 19, 1 << 21, 1 << 23, 1 << 24)
_PATIENCE_SECONDS = 120.0


def measure_link(ranks: int = 2, sizes: Sequence[int] = SIZES) -> MeasuredLink:
    """Return what lies between ranks of this machine; takes some seconds, most of them to start PyTorch.

    Args:
        ranks: That exchange.
        sizes: Bytes, at least two different ones.

    Raises:
        RanksFailed: If they do not end well.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-link-") as name:
        folder = Path(name)
        answer = folder / "answer.json"
        argv = (sys.executable, "-m", "headrace.train.ranks.link_child", str(answer), *map(str, sizes))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run_group(Group(argv=argv, ranks=ranks, environment=environment, logs=folder, patience=_PATIENCE_SECONDS))
        measured = decode_document(answer.read_bytes(), tuple[MeasuredReduce, ...])
    return fit_link(measured, ranks)


def fit_link(measured: Sequence[MeasuredReduce], ranks: int) -> MeasuredLink:
    """Return the line through measured all-reduces: seconds = messages x latency + bytes moved / bandwidth.

    Each size counts alike, as a share of what it took: else the largest would decide alone.

    Args:
        measured: Of at least two sizes.
        ranks: That exchanged.
    """
    messages, moved = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    rows = np.array([[messages, moved * one.num_bytes] for one in measured])
    seconds, cpu = (np.array([getattr(one, name) for one in measured]) for name in ("seconds", "cpu_seconds"))
    latency, per_byte = _fit(rows, seconds)
    message_cpu, byte_cpu = _fit(rows, cpu)
    error = float(np.median(np.abs(rows @ (latency, per_byte) / seconds - 1)))
    return MeasuredLink(
        ranks=ranks,
        latency_seconds=latency,
        bytes_per_second=1 / per_byte,
        message_cpu_seconds=message_cpu,
        byte_cpu_seconds=byte_cpu,
        error=error,
        measured=tuple(measured),
    )


def _fit(rows: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the line with the least relative error and no negative part."""
    weighted = rows / values[:, None]
    ones = np.ones(len(values))
    both = np.linalg.lstsq(weighted, ones, rcond=None)[0]
    if both[0] >= 0 and both[1] > 0:
        return float(both[0]), float(both[1])
    slope = float(weighted[:, 1] @ ones / (weighted[:, 1] @ weighted[:, 1]))
    return 0.0, max(slope, 1e-15)


def to_link(measured: MeasuredLink) -> Link:
    """Return it as the simulator takes it."""
    return Link(
        latency=measured.latency_seconds,
        bandwidth=measured.bytes_per_second,
        message_cpu=measured.message_cpu_seconds,
        byte_cpu=measured.byte_cpu_seconds,
    )
