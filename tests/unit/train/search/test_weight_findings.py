"""What is wrong with the weights of accumulated gradients."""

from __future__ import annotations

import pytest

from headrace.train.search.weight_findings import judge_weights

FOURTHS = [0.25] * 4
BY_TOKENS = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("given", "right", "names"),
    [
        (FOURTHS, FOURTHS, []),
        (BY_TOKENS, BY_TOKENS, []),
        ([1.0] * 4, [1.0] * 4, []),  # a loss that is a sum
        ([1.0] * 4, FOURTHS, ["missing division"]),
        (FOURTHS, [1.0] * 4, ["wrong scale"]),  # a sum that was divided
        (FOURTHS, BY_TOKENS, ["mean of means"]),
        ([1.0] * 4, BY_TOKENS, ["mean of means", "missing division"]),
        ([0.25, 0.25, 0.25, 0.0], FOURTHS, ["skipped micro-batch"]),
        ([1.0, 1.0, 1.0, 0.0], FOURTHS, ["skipped micro-batch", "missing division"]),
        ([0.25, 0.25, 0.25, 0.0], BY_TOKENS, ["skipped micro-batch", "mean of means"]),
        ([0.1, 0.2, 0.3, 0.0], BY_TOKENS, ["skipped micro-batch"]),
        ([0.5, 0.25, 0.25, 0.25], FOURTHS, ["wrong scale", "wrong scale"]),
        ([0.0, 0.0, 0.0, 0.25], FOURTHS, ["zeroed gradients"]),
        ([0.0, 0.0, 0.0, 1.0], FOURTHS, ["zeroed gradients", "missing division"]),
        ([0.0, 0.25, 0.25, 0.25], FOURTHS, ["skipped micro-batch"]),
        ([0.05, 0.1, 0.2, 0.25], FOURTHS, ["clipped within"]),
        ([0.25, 0.25, 0.25, 0.3], FOURTHS, ["clipped within"]),
        ([0.02, 0.08, 0.2, 0.4], BY_TOKENS, ["clipped within"]),
    ],
)
def test_each_mistake_is_named_and_no_other(given: list[float], right: list[float], names: list[str]) -> None:
    """Weights that were given, and those that would be right; rounding in the sixth digit is none."""
    noisy = [weight * (1 + 1e-6 * sign) for weight, sign in zip(given, (1, -1, 1, -1), strict=True)]
    assert [finding.name for finding in judge_weights(noisy, right, 1e-4)] == names


def test_the_skipped_micro_batch_is_named() -> None:
    """The last one by that word, others by their number."""
    assert "micro-batch the last of 3" in judge_weights([0.3, 0.3, 0.0], [0.3] * 3, 1e-4)[0].what
    assert "micro-batch 1 of 3" in judge_weights([0.0, 0.3, 0.3], [0.3] * 3, 1e-4)[0].what
