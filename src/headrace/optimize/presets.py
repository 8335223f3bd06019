"""Which int8 fits which target: the same types are fast on one and useless, or not taken at all, on another.

References:
    ONNX Runtime, "Quantize ONNX Models", section "Data type selection": unsigned activations and signed weights on x86; without
    VNNI the instruction that adds two products does so in 16 bits, which may overflow, so weights get 7 bits.
    NVIDIA TensorRT, "Working with Quantized Types": signed, symmetric, without a zero point; biases stay in float.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.runs.cpu_features import INT8_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How int8 is written for one kind of target."""

    name: str
    says: str
    signed: bool = False
    """Signed activations."""
    reduce_range: bool = False
    """Weights of 7 bits."""
    options: dict[str, Any] = field(default_factory=dict)
    """More `extra_options` of ONNX Runtime's quantizer."""

    @property
    def largest_weight(self) -> int:
        """That int8 holds: steps are an output channel's largest weight over it."""
        return 64 if self.reduce_range else 127


X86_VNNI = Preset(name="x86-vnni", says="unsigned activations, signed weights per channel")
X86 = Preset(
    name="x86",
    says="unsigned activations, signed weights of 7 bits per channel, whose sums of two do not overflow",
    reduce_range=True,
)
TENSORRT = Preset(
    name="tensorrt",
    says="signed activations and weights around zero, biases in float; slow on ONNX Runtime's CPU",
    signed=True,
    options={"ActivationSymmetric": True, "QuantizeBias": False},
)
PRESETS = {one.name: one for one in (X86_VNNI, X86, TENSORRT)}
#: The target that is this machine.
HERE = "here"
TARGETS = (HERE, *PRESETS)


def find_preset(target: str, flags: frozenset[str]) -> Preset:
    """Return how int8 is written for a target.

    Args:
        target: One of `TARGETS`.
        flags: Of this machine's processor, which decide for `here`; empty: the system tells none.
    """
    if target != HERE:
        return PRESETS[target]
    return X86 if why_slow_int8(flags) else X86_VNNI


def why_slow_int8(flags: frozenset[str]) -> str | None:
    """Return why int8 will hardly be faster on a processor; None if it may be, or the system tells no flags."""
    if not flags or flags.intersection(INT8_FLAGS):
        return None
    return (
        f"this processor has no instructions for int8 (none of {', '.join(INT8_FLAGS)} among its flags): it will hardly be "
        "faster, and is quantized with weights of 7 bits so that sums do not overflow"
    )
