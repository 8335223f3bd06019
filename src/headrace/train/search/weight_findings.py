"""What is wrong with the weights of accumulated gradients. No PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.runs.formats.train_check import CheckFinding


def judge_weights(given: Sequence[float], right: Sequence[float], tolerance: float) -> list[CheckFinding]:
    """Return what is wrong with the weights with which micro-batches were added.

    Args:
        given: Weight of each micro-batch's gradient in the sum that the training makes.
        right: Weight with which they add up to the gradient of the large batch.
        tolerance: Relative difference that rounding explains.
    """
    count, mean = len(right), sum(right) / len(right)
    skipped = [
        number
        for number, (found, wanted) in enumerate(zip(given, right, strict=True))
        if abs(found) < tolerance * abs(mean) and abs(wanted) > 0.1 * abs(mean)
    ]
    findings = [_skipped(skipped, count)] if skipped else []
    pairs = [pair for number, pair in enumerate(zip(given, right, strict=True)) if number not in skipped]
    if not pairs:
        return findings
    scale = sum(found for found, _ in pairs) / sum(wanted for _, wanted in pairs)
    if _is_clipped(pairs, tolerance):
        return [*findings, _clipped(pairs)]
    if not _is_alike(pairs, scale, tolerance):
        findings.append(_uneven(pairs, tolerance))
        # A mean of means weighs each as 1 / k, whatever the sums of those that are left.
        scale = sum(found for found, _ in pairs) / len(pairs) / mean if findings[-1].name == "mean of means" else scale
    if abs(scale - 1) > tolerance:
        findings.append(_scaled(scale, count, tolerance))
    return findings


def _is_alike(pairs: Sequence[tuple[float, float]], scale: float, tolerance: float) -> bool:
    most = max(abs(scale * wanted) for _, wanted in pairs)
    return all(abs(found - scale * wanted) <= tolerance * most for found, wanted in pairs)


def _skipped(skipped: Sequence[int], count: int) -> CheckFinding:
    if count > 1 and list(skipped) == list(range(count - 1)):
        return CheckFinding(
            name="zeroed gradients",
            what=f"only the last of {count} micro-batches is in the sum: what the others gave was set to zero",
            advice="call zero_grad() once for an update, not before each backward()",
            is_defect=True,
        )
    which = "the last" if list(skipped) == [count - 1] else ", ".join(str(number + 1) for number in skipped)
    return CheckFinding(
        name="skipped micro-batch",
        what=f"the gradient of micro-batch {which} of {count} is not in the sum",
        advice="call backward() for every micro-batch before the update, also for the last one",
        is_defect=True,
    )


def _is_clipped(pairs: Sequence[tuple[float, float]], tolerance: float) -> bool:
    """Return whether what came earlier was made smaller more often: each clipping scales all that is there by then."""
    if any(wanted <= 0 or found <= 0 for found, wanted in pairs):
        return False
    factors = [found / wanted for found, wanted in pairs]
    slack = tolerance * factors[-1]
    is_rising = all(later >= earlier - slack for earlier, later in itertools.pairwise(factors))
    found = [one for one, _ in pairs]
    is_mean_of_means = max(found) - min(found) <= tolerance * max(found)
    return is_rising and factors[-1] - factors[0] > slack and not is_mean_of_means


def _clipped(pairs: Sequence[tuple[float, float]]) -> CheckFinding:
    factors = ", ".join(f"{found / wanted:.3g}" for found, wanted in pairs)
    return CheckFinding(
        name="clipped within",
        what=f"the earlier a micro-batch, the smaller the factor of its gradient ({factors}), as if clipping came after each "
        "backward()",
        advice="clip once, after the last backward() and before the update",
        is_defect=True,
    )


def _uneven(pairs: Sequence[tuple[float, float]], tolerance: float) -> CheckFinding:
    found = [one for one, _ in pairs]
    wanted = [other for _, other in pairs]
    shown = ", ".join(f"{other / sum(wanted):.3f}" for other in wanted)
    if max(found) - min(found) <= tolerance * max(map(abs, found)):
        return CheckFinding(
            name="mean of means",
            what=f"micro-batches count alike, and should count by what they hold: {shown}",
            advice="add the losses of all targets (reduction='sum') and divide by the number of targets in the whole batch",
            is_defect=True,
        )
    ratios = ", ".join(f"{one / other:.3g}" if other else "-" for one, other in pairs)
    return CheckFinding(
        name="wrong scale",
        what=f"gradients of micro-batches are multiplied by different factors: {ratios}",
        advice="multiply the loss of each micro-batch by its share of the large batch",
        is_defect=True,
    )


def _scaled(scale: float, count: int, tolerance: float) -> CheckFinding:
    if abs(scale / count - 1) <= tolerance:
        return CheckFinding(
            name="missing division",
            what=f"the gradient is {scale:.3g} times that of the large batch: the {count} losses are not divided by {count}",
            advice=f"divide each loss by the number of micro-batches ({count}) before backward()",
            is_defect=True,
        )
    return CheckFinding(
        name="wrong scale",
        what=f"the gradient is {scale:.3g} times that of the large batch",
        advice="divide by what the loss of the large batch divides by; a loss that is a sum needs no division",
        is_defect=True,
    )
