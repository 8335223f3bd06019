"""What the benchmark of optimized networks makes of the product's documents."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import model_variants


def attempt(technique: str, kind: str, speed: float, verdict: str = "accept") -> dict[str, Any]:
    """Return an attempt as `headrace optimize --json` prints it."""
    accuracy = {"drop": 0.001, "a": 0.99, "b": 0.989, "source_low": -0.002, "source_high": 0.004}
    return {
        "technique": technique, "kind": kind, "verdict": verdict, "says": "said", "candidate": f"{technique}.onnx@onnx",
        "settings": {"engine": "onnx", "artifact": "/where/it/lay/small.onnx"}, "artifact": {"num_bytes": 10},
        "speedup": {"low": 0.9 * speed, "mid": speed, "high": 1.1 * speed},
        "validation": {"gates": [{"name": "accuracy", "values": accuracy}]},
    }  # fmt: skip


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Figures of four attempts; nothing is timed."""
    monkeypatch.setattr(
        model_variants, "race_at_two_threads", lambda first, second: {"low": 1.0, "ratio": 2.0, "high": 3.0}
    )
    document = {
        "attempts": [
            attempt("int8", "lossy", 3.0), attempt("bf16", "numeric", 2.0), attempt("pruned-2-int8", "trained", 7.0),
            attempt("pruned-3-int8", "trained", 9.0, "reject"),
        ],
        "skipped": [{"technique": "int8-reverted", "why": "no group"}], "says": "said", "baseline": {"name": "net.onnx@onnx"},
    }  # fmt: skip
    return model_variants.model_figures("net", document)


def test_the_fastest_accepted_counts_without_training_and_with(figures: dict[str, Any]) -> None:
    """What was refused is faster and counts for nothing; it is told."""
    assert (figures["untrained"], figures["trained"]) == (3.0, 7.0)
    chosen = figures["trained_variant"]
    assert chosen["technique"] == "pruned-2-int8"
    assert chosen["accuracy_change_points"] == pytest.approx(-0.1)
    assert chosen["accuracy_change_by_photograph"] == pytest.approx([-0.4, 0.2])
    assert figures["refused"] == ["pruned-3-int8 on onnx: said"]


def test_a_smaller_input_needs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers otherwise and is judged as what was trained is; a pruned network on a smaller input was trained."""
    monkeypatch.setattr(model_variants, "race_at_two_threads", lambda first, second: None)
    attempts = [
        attempt("int8", "lossy", 3.0), attempt("input-160-int8", "trained", 5.0),
        attempt("pruned-1-input-160-int8", "trained", 6.0),
    ]  # fmt: skip
    document = {"attempts": attempts, "skipped": [], "says": "said", "baseline": {"name": "net.onnx@onnx"}}
    figures = model_variants.model_figures("net", document)
    assert (figures["untrained"], figures["trained"]) == (5.0, 6.0)
    full = model_variants.as_text({
        "models": {}, "smaller": {"net": figures}, "search": None, "end_to_end": None,
        "defects": {"n": 33, "caught": 33}, "honest": {"n": 31, "refused": 0}, "false_accept": 0.03,
    })  # fmt: skip
    assert "| net | untrained, smaller inputs tried | input-160-int8 on onnx | 5.00 (4.50 to 5.50) | - |" in full


def test_the_text_tells_all_of_it_and_what_is_missing(figures: dict[str, Any]) -> None:
    """With models and search, and from a smoke run on hardware without a result."""
    search = {"found": "a", "exhaustive": "b", "best_ratio": 0.98, "combinations": 36, "trials_share": 0.11}
    whole = {"images_per_second": 100.0, "vs_naive": 4.0, "vs_best_peer": 2.0, "best_peer": "processes/usual"}
    planted = {"defects": {"n": 33, "caught": 33}, "honest": {"n": 31, "refused": 0}, "false_accept": 0.03}
    full = model_variants.as_text({"models": {"net": figures}, "search": search, "end_to_end": whole, **planted})
    assert "| net | trained | pruned-2-int8 on onnx | 7.00 (6.30 to 7.70) | 2.00 (1.00 to 3.00) |" in full
    assert "0.98 times the speed of the best of 36 combinations" in full
    nothing = dict.fromkeys(model_variants.KNOWN)
    quick = {"quick": True, "not_measured_now": list(model_variants.KNOWN), "taken_from": None}
    assert "are from nowhere" in model_variants.as_text({**nothing, **planted, **quick})


def test_steps_are_kept_until_the_run_is_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """An interrupted run does not do a step again."""
    monkeypatch.setattr(model_variants, "FOLDER", tmp_path)
    calls: list[int] = []

    def step() -> dict[str, Any]:
        calls.append(1)
        return {"value": len(calls)}

    assert model_variants._step("one", step) == model_variants._step("one", step) == {"value": 1}
    assert len(calls) == 1
