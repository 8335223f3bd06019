"""Tests of where a job's latency goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.diagnose.evidence import collect
from headrace.diagnose.latency_parts import find_latency_parts
from headrace.runs.formats.diagnosis import LatencyPart
from headrace.runs.formats.profile import Window

ALL = Window(from_seconds=0.0, to_seconds=1e9, warm_up_seconds=0.0, is_steady=True, says="")


def parts_of(folder: Any, **fields: Any) -> dict[tuple[str | None, str], LatencyPart]:
    """Return the parts by stage and kind."""
    evidence = collect(folder.finish(**fields))
    return {(one.stage, one.kind): one for one in find_latency_parts(evidence, ALL)}


def write_service(folder: Any) -> None:
    """Write ten jobs, one each 100 ms: 2 ms until a decoder takes it, 3 ms of decoding, then a device.

    The device takes them in pairs: the first waits 100 ms for the second. A call lasts 150 ms, so that the first of the
    next pair finds it busy for 50 ms.
    """
    for name, kind, role in (("decode", "cpu", "map"), ("process", "device", "map"), ("deliver", "io", "deliver")):
        folder.stage(name, kind=kind, role=role)
    arrived = np.arange(10) * 0.1
    folder.spans("decode", arrived=arrived, started=arrived + 0.002, ended=arrived + 0.005)
    came, pair = arrived + 0.005, np.arange(10) // 2
    began = came[1::2][pair]
    folder.spans(
        "process", arrived=came, started=began, ended=began + 0.15, batch_id=pair, batch_size=2, release_reason="full"
    )
    folder.spans("deliver", arrived=began + 0.15, ended=began + 0.151)


def test_parts_add_up_to_the_latency(builder: Any) -> None:
    """Each moment of a job is in one part."""
    write_service(builder)
    found = parts_of(builder)

    assert sum(one.seconds for one in found.values()) == pytest.approx(0.005 + 0.05 + 0.15 + 0.001, rel=0.01)
    assert sum(one.share for one in found.values()) == pytest.approx(1.0, abs=0.01)


def test_waiting_for_a_device_is_not_waiting_for_a_batch(builder: Any) -> None:
    """Until the call before has ended it is the device; from then on the batch."""
    write_service(builder)
    found = parts_of(builder)

    assert found["decode", "workers"].seconds == pytest.approx(0.002)
    assert found["decode", "work"].seconds == pytest.approx(0.003)
    assert found["process", "device"].seconds == pytest.approx(4 * 0.05 / 10)
    assert found["process", "batch"].seconds == pytest.approx((0.1 + 4 * 0.05) / 10)
    assert found["process", "work"].seconds == pytest.approx(0.15)


def test_a_request_is_read_before_its_job_comes(builder: Any) -> None:
    """What answers took beyond their jobs went into reading the request and letting it in."""
    write_service(builder)
    counters = Counters(received=10, delivered=10, notes={"serve.answers": 10, "serve.answer_microseconds": 2_300_000})
    found = parts_of(builder, counters=counters, summary=SUMMARY)

    assert found[None, "request"].seconds == pytest.approx(0.024)
    assert found[None, "request"].says == "is read as a request, and let in"


SUMMARY = {"stages": [], "elapsed_seconds": 1.2, "latency_seconds": {"mean": 0.206, "num_samples": 10}}
