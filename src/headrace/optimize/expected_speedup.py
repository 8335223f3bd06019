"""The speed-up that a technique is expected to give before it is tried: what it gave elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

#: Of ranges that name no other source: one and two threads, batch 1, against ONNX Runtime in float32. The lower ends are
#: MobileNetV2's, with VNNI or AMX, the upper ones ResNet-18's with AMX.
MEASURED = "ResNet-18 and MobileNetV2 with VNNI and with AMX, python -m benchmarks.model_variants"
WITH_VNNI = MEASURED.replace(" and with AMX", "")


@dataclass(frozen=True, slots=True)
class ExpectedSpeedup:
    """How many times as fast a technique makes a model by itself, before anything is known of this one."""

    low: float
    high: float
    source: str = MEASURED
    """Where the range comes from."""


#: Of int8 at its full speed.
INT8 = ExpectedSpeedup(1.6, 8.3)
