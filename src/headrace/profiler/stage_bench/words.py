"""What the differences between variations mean, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.units import format_rate
from headrace.runs.formats.isolation import Variation

#: Throughputs closer than this count as the same.
_SAME_SHARE = 0.05


def explain(variations: Sequence[Variation], *, emulated: bool = False) -> list[str]:
    """Return what the differences mean, one sentence each; a difference within the noise is called none.

    Args:
        variations: As measured; those that were not compared are passed over.
        emulated: The device is emulated.
    """
    by_name = {one.name: one for one in variations if one.ratio is not None}
    sentences = [say(by_name[name]) for name, say in _SAYERS.items() if name in by_name]
    if emulated and sentences:
        sentences.append("the device is emulated: its times are made up")
    return sentences


def describe_ratio(one: Variation) -> str:
    """Return a variation's throughput over that of the pipeline as it is, with its interval; `-` if it was not compared."""
    if one.ratio is None:
        return "-"
    if one.ratio_low is None or one.ratio_high is None:
        return f"x{one.ratio:.2f}"
    return f"x{one.ratio:.2f} ({one.ratio_low:.2f}-{one.ratio_high:.2f})"


def differs(one: Variation) -> bool:
    """Return whether a variation differs from the pipeline as it is: by more than 5 %, and with its whole 95 % interval."""
    if one.ratio is None or one.ratio_low is None or one.ratio_high is None:
        return False
    return abs(one.ratio - 1) > _SAME_SHARE and (one.ratio_low > 1 or one.ratio_high < 1)


def _cached(one: Variation) -> str:
    rate, ratio = format_rate(one.throughput), describe_ratio(one)
    if differs(one):
        if (one.ratio or 0.0) > 1:
            return f"fed perfectly the device would give {rate}, {ratio} of now"
        return (
            f"from memory the device gives {rate}, {ratio} of now: less than with all stages before it, so feeding is no limit "
            "(the kept inputs may be a harder mix, or their copies cost more)"
        )
    if one.ratio_high is not None and one.ratio_high <= 1 + 2 * _SAME_SHARE:
        return f"the device is fed well: from memory it gives {rate}, {ratio} of now"
    return f"from memory the device gives {rate}, {ratio} of now: a difference that could not be told from noise"


def _emulated(one: Variation) -> str:
    accelerator = "an accelerator as fast as this device, which leaves the CPU to the other stages,"
    if differs(one):
        return f"{accelerator} would give {format_rate(one.throughput)}, {describe_ratio(one)} of now"
    return f"{accelerator} made no difference that could be told from noise: {describe_ratio(one)} of now"


def _cold(one: Variation) -> str:
    if differs(one) and (one.ratio or 0.0) < 1:
        return f"with files that are not in memory it gives {format_rate(one.throughput)}, {describe_ratio(one)} of now"
    return (
        f"files that are not in memory made no difference that could be told from noise: {describe_ratio(one)} of now"
    )


_SAYERS = {"cached_items": _cached, "emulated_model": _emulated, "cold_files": _cold}
