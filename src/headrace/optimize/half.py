"""float16, where the processor computes in it and it holds every number of the model.

float16 ends at 65,504. How large tensors get is looked up on the calibration data, layer by layer, before anything is tried;
the gates look again at what became of them (`validate.half_precision`). bfloat16 needs no such look: it reaches as far as
float32.
"""

from __future__ import annotations

from headrace.optimize.techniques import Subject, Technique, Why, in_precision, is_quantized_already, why_no_precision
from headrace.runs.cpu_features import FLOAT16_FLAGS
from headrace.validate.half_precision import LARGEST, find_beyond, format_reaches


def why_no_float16(subject: Subject) -> Why | None:
    """Return why a model cannot run in float16 here; None if it can."""
    missing = why_no_precision(subject, "f16") or is_quantized_already(subject)
    if missing is not None:
        return missing
    if not subject.flags.intersection(FLOAT16_FLAGS):
        return (
            f"this processor does not compute in float16 (none of {', '.join(FLOAT16_FLAGS)} among its flags): 0.66 times the "
            "speed of float32 was measured, and OpenVINO takes bfloat16 in its place without a word"
        )
    if subject.calibration is None:
        return f"how large its numbers get is not known, and float16 ends at {LARGEST['f16']:,.0f}: give --data"
    found = find_beyond(subject.baseline(), subject.calibration.inputs, "f16")
    if found:
        return f"float16 ends at {LARGEST['f16']:,.0f}: {format_reaches(found)}"
    return None


FP16 = Technique(
    name="fp16", kind="numeric", needs="calibration data",
    says="float16 where the processor computes in it and it holds every number (0.66 times measured where it does not)",
    why_not=why_no_float16, candidates=lambda subject: in_precision(subject, subject.original, "f16"),
)  # fmt: skip
