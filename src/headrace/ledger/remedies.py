"""What would have to be otherwise for an attempt to come out otherwise: the answer to "and what can I do?"."""

from __future__ import annotations

from headrace.runs.formats.optimization import SHADOW, Attempt

_BY_GATE = {
    "static": "a file or an engine without what is named there; see `headrace optimize MODEL --portability`",
    "census": "another way to quantize, or another engine; see `headrace optimize VARIANT --explain`",
    "parity": "another precision or engine; whether it matters `headrace validate` tells, with a golden set",
    "batches": "ranges that do not come from each batch (static quantization, --data), or an export in evaluation mode",
    "extremes": "an export that keeps what guards against dividing by 0, or another precision or engine",
    "speed": "another processor, or another version of the engine, on which it is tried anew by itself; after a noisy minute "
    "`headrace optimize --again`",
    "accuracy": "a larger --max-drop if so much may be lost",
    "robustness": "training on such images, or a search without --robustness if they do not occur",
    "pipeline": "a pipeline that the model holds up: `headrace diagnose RUN` says what does; --anyway takes it all the same",
}
#: What more there is for int8.
_OF_INT8 = {
    "parity": "what mends its numbers (int8-equalized, int8-reverted, qat, tried by themselves), or calibration data like the "
    "data in use (--data)",
    "accuracy": "what mends its numbers (int8-equalized, int8-reverted, qat, tried by themselves), or a larger --max-drop if "
    "so much may be lost",
}
_OF_SHADOW = {
    "reject": "another variant, or a larger --max-disagreement if so many answers may change",
    "inconclusive": "more traffic with `headrace run --shadow`, or both timed alike and a golden set with `headrace validate`",
}
#: How an attempt begins about which the golden set was not asked.
UNASKED = "not asked on the golden set: "


def would_change(attempt: Attempt) -> str:
    """Return what would change the outcome, in words; empty for what was accepted."""
    if attempt.verdict == "accept":
        return ""
    if attempt.technique == SHADOW:
        return _OF_SHADOW[attempt.verdict]
    if attempt.says.startswith(UNASKED):
        return "more --budget if that was used up; else a search in which fewer are as fast: each judges it anew"
    if attempt.verdict == "inconclusive" and attempt.drop is None:
        had_golden = attempt.asked is not None and attempt.asked.golden_sha256
        golden = "" if had_golden else "a golden set that may decide (--golden), and "
        return f"{golden}a gain in speed that is sure; the next search judges it anew"
    if attempt.verdict == "inconclusive":
        return "more golden items, or a larger --max-drop"
    remedies = {**_BY_GATE, **_OF_INT8} if "int8" in attempt.technique else _BY_GATE
    return remedies.get(attempt.gate or "", "another file, engine or machine")
