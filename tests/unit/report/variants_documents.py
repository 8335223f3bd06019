"""A search with everything filled in, as one of a small classifier would give it; every test of its page draws this.

Loaded by path from the `conftest.py` of the unit and of the integration tests: test folders are not packages.
"""

from __future__ import annotations

import base64
from typing import Any

import cv2
import msgspec
import numpy as np

from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import (
    Artifact,
    Attempt,
    Business,
    EndToEnd,
    Layout,
    OptimizationDocument,
    Skipped,
    Whole,
)
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, LayerError, SliceResult, ValidationDocument, VariantSide, WorstItem

MODEL = "ab" * 32
SIDE = VariantSide(name="scenes.onnx@onnx", variant={"engine": "onnx"}, open_seconds=0.12, call_seconds=0.005,
                   memory_bytes=110_000_000)  # fmt: skip


def attempt(technique: str, engine: str = "onnx", **fields: Any) -> Attempt:
    """Return an accepted attempt; keywords replace fields, `validation` its own fields."""
    gates = tuple(
        Gate(name=name, outcome="passed", says=f"{name} says that all is well, at some length, with 64 items")
        for name in ("static", "parity", "speed", "accuracy")
    )
    side = VariantSide(
        name=f"{technique}.onnx@{engine}", variant={"engine": engine}, open_seconds=0.4, call_seconds=0.003,
        memory_bytes=None if fields.get("verdict") == "reject" else 88_000_000,
    )  # fmt: skip
    validation: dict[str, Any] = {
        "a": SIDE, "b": side, "verdict": "accept", "says": "yes", "gates": gates, "batch": 8, "golden": "held_out",
        "num_items": 3000, **fields.pop("validation", {}),
    }  # fmt: skip
    known: dict[str, Any] = {
        "id": f"a{1 + len(technique)}", "created_unix_seconds": 1.79e9, "model": MODEL, "technique": technique, "kind": "lossy",
        "hypothesis": "integers are faster", "candidate": f"{technique}.onnx@{engine}", "settings": {"engine": engine},
        "verdict": "accept", "says": "1.65 times as fast, no drop", "seconds": 3.0,
        "artifact": Artifact(sha256="cd" * 32, file=f"{technique}.onnx", num_bytes=138_000, parameters={"pairs": 3}),
        "speedup": Estimate(1.57, 1.65, 1.75), "drop": Estimate(-0.0045, 0.0007, 0.0063),
        "validation": ValidationDocument(**validation),
    }  # fmt: skip
    return Attempt(**{**known, **fields})


def full_search() -> OptimizationDocument:
    """Return a search with a recommended variant, a tie, rejected and open ones, layouts, and a measured pipeline."""
    attempts = _attempts()
    chosen, bf16 = attempts[3].candidate, attempts[4].candidate
    layouts = (_laid_out(chosen, Estimate(1.75, 1.85, 1.97)), _laid_out(bf16, Estimate(1.60, 1.68, 1.78)))
    return OptimizationDocument(
        baseline=SIDE, model=Artifact(sha256=MODEL, file="scenes.onnx", num_bytes=370_000), objective="throughput",
        max_drop=0.01, batch=8, golden="held_out", golden_uses=4, attempts=attempts,
        skipped=(Skipped(technique="qat", why="int8 on openvino is accepted: int8 at its full speed, without training"),),
        layout=layouts[0], laid_out=layouts, front=(chosen, bf16, "baseline"), recommended=chosen,
        says="int8 on openvino is 1.65 times as fast (1.57 to 1.75); 97.43% right against 97.50%, a drop of +0.07 points",
        warnings=("of the recommended variant: 2 parts of the golden set could not show a drop: class 3 (12)",),
        end_to_end=_end_to_end(), business=_business(),
    )  # fmt: skip


def _attempts() -> tuple[Attempt, ...]:
    layers = tuple(
        LayerError(name=f"/features/{place}/conv/Conv_output_0", operator="Conv", relative_l2=0.002 * 1.25**place,
                   sqnr_db=50.0 - 2 * place)
        for place in range(20)
    )  # fmt: skip
    refused = {"gates": (Gate(name="parity", outcome="rejected", says="relative L2 0.9, that is no rounding"),)}
    slower = {"verdict": "reject", "gate": "speed", "drop": None}
    return (
        attempt("openvino", "openvino", id="a1", kind="lossless", speedup=Estimate(0.79, 0.83, 0.86), **slower),
        attempt("int8", id="a2", speedup=Estimate(0.78, 0.84, 0.90), **slower),
        attempt("int8-raw", id="a3", verdict="reject", gate="accuracy", speedup=Estimate(2.2, 2.3, 2.4),
                drop=Estimate(0.40, 0.43, 0.46), validation={**refused, "layers": layers, "diverges_at": layers[12].name,
                                                             "worst": _worst(12)}),
        attempt("int8-equalized", "openvino", id="a4",
                validation={"worst": _worst(3), "layers": layers[:15], "slices": slices(), "num_slices": 70}),
        attempt("bf16", "openvino", id="a5", kind="numeric", speedup=Estimate(1.45, 1.51, 1.56),
                drop=Estimate(-0.003, -0.001, 0.001),
                artifact=Artifact(sha256="ef" * 32, file="scenes.onnx", num_bytes=370_000)),
        attempt("input-160", "openvino", id="a6", verdict="inconclusive", gate="accuracy", speedup=Estimate(1.9, 2.0, 2.1),
                drop=Estimate(-0.002, 0.009, 0.02)),
    )  # fmt: skip


def _worst(num: int) -> tuple[WorstItem, ...]:
    return tuple(
        WorstItem(item=place, file=f"held_out/crops/region-{place}/photo_{place:04}.jpg", label="brick wall", a="brick wall",
                  b="cat", loss=1.0)
        for place in range(num)
    )  # fmt: skip


def _laid_out(candidate: str, ratio: Estimate) -> Attempt:
    timed = (
        Layout(workers=1, threads=1, batch=8, items_per_second=2658.0, chosen=True),
        Layout(workers=2, threads=1, batch=8, items_per_second=2722.0, ratio=Estimate(0.82, 0.93, 1.07),
               against="1 x 1 thread, batch 8"),
    )  # fmt: skip
    whole = Whole(
        ratio=ratio, before_per_second=892.0, after_per_second=892.0 * ratio.mid, before="1 x 1 thread, batch 8",
        after="1 x 1 thread, batch 8",
    )  # fmt: skip
    return attempt(
        "layout", "openvino", verdict="reject", gate="speed", of=candidate, layouts=timed, whole=whole, speedup=None, drop=None,
        says="no layout is surely faster than 1 x 1 thread, batch 8", stages={"workers": 1, "batch": 8},
        settings={"engine": "openvino", "threads": 1},
    )  # fmt: skip


def _end_to_end() -> EndToEnd:
    return EndToEnd(
        pipeline="jobs:pipeline", source="3,000 files in photos", prediction="p3", predicted=Estimate(1.15, 1.22, 1.31),
        measured=Estimate(1.12, 1.18, 1.25), error=0.034, before_per_second=411.0, after_per_second=485.0, num_pairs=12,
        verdict="better", ceiling=1.9, run="runs/today", says="the pipeline is 1.18 times as fast (1.12 to 1.25)",
    )  # fmt: skip


def _business() -> Business:
    return Business(
        of="pipeline", before_per_hour=1_479_600.0, after_per_hour=Estimate(1_657_000.0, 1_746_000.0, 1_849_000.0),
        more=Estimate(0.12, 0.18, 0.25), fewer_right=Estimate(-0.0045, 0.0007, 0.0063),
        says="18 % more (12 to 25) images an hour for 0.068 % fewer (-0.45 to 0.63) right answers",
    )  # fmt: skip


def decisions() -> list[Decision]:
    """Return two decisions, the newest first."""
    return [
        Decision(2, 1.79e9, "plan.toml", "rollback", 1, "anna", "wrong at night", None, "x"),
        Decision(1, 1.789e9, "plan.toml", "accept", 1, "anna", "int8 is 1.65 times as fast", None, "x"),
    ]


def pictures() -> dict[WorstItem, str]:
    """Return a small picture for each item that some variant lost."""
    found = {}
    for item in {item for one in full_search().attempts for item in one.validation.worst}:
        drawn = np.full((84, 112, 3), 40 + 12 * item.item, np.uint8)
        _, data = cv2.imencode(".jpg", cv2.circle(drawn, (56, 42), 30, (40, 90, 220), -1))
        found[item] = f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
    return found


def slices() -> tuple[SliceResult, ...]:
    """Return parts of a golden set, the one that lost most first."""
    names = ("brick wall", "cat", "hen", "shelf", "tree", "road", "water")
    drops = [(name, 0.1 - 0.015 * place) for place, name in enumerate(names)]
    return tuple(
        SliceResult(
            name=f"class {name}", num_items=40 + 30 * place, a=0.97, b=0.97 - drop, drop=drop, low=drop - 0.04,
            high=drop + 0.04, outcome="rejected" if drop > 0.09 else "inconclusive" if place == 3 else "passed",
        )
        for place, (name, drop) in enumerate(drops)
    )  # fmt: skip


def comparison() -> ValidationDocument:
    """Return one variant held against another, with parts, lost items and layers."""
    found = full_search().attempts[3].validation
    return msgspec.structs.replace(found, slices=slices(), num_slices=70, warnings=("one class is small",))
