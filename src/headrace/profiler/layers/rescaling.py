"""Brings layers' times from a profiled run to the latency without the profiler.

A profiler's cost is by the event and not by the second: a product of two small vectors suffers as much from it as a large
convolution. Were all layers scaled by the same factor, small ones would keep most of what the profiler added to them. So
where the layers' times add up to more than the latency, the same amount is taken off each event, to no less than nothing.
Two cases remain for a common factor: layers that add up to less than the latency (the rest passes between them), and layers
that ran side by side, which add up to more than the profiled call itself.
"""

from __future__ import annotations

import numpy as np

#: Layers one after another cannot take longer than the call; beyond this they ran side by side.
OVERLAP_RATIO = 1.02


def rescale(
    raw_seconds: np.ndarray, num_events: np.ndarray, latency_seconds: float, profiled_latency_seconds: float
) -> np.ndarray:
    """Return each layer's time without the profiler, float64, (layers,), adding up to the latency.

    Args:
        raw_seconds: Mean per call from the profiler, (layers,), not all 0.
        num_events: How often a call runs each layer, (layers,), >= 1.
        latency_seconds: A call without the profiler, > 0.
        profiled_latency_seconds: A call with it.
    """
    total = raw_seconds.sum()
    if total > OVERLAP_RATIO * profiled_latency_seconds or total <= latency_seconds:
        return np.asarray(raw_seconds * (latency_seconds / total))
    per_event = _common_cost(raw_seconds, num_events, total - latency_seconds)
    seconds = np.maximum(raw_seconds - per_event * num_events, 0.0)
    return np.asarray(seconds * (latency_seconds / seconds.sum()))  # what rounding has left


def _common_cost(raw_seconds: np.ndarray, num_events: np.ndarray, excess: float) -> float:
    """Return what to take off each event so that the excess is gone, layers that are used up giving no more."""
    each = raw_seconds / num_events
    order = np.argsort(each)
    # With the k cheapest layers used up, the others must give what those could not.
    gone = np.concatenate(([0.0], np.cumsum(raw_seconds[order])[:-1]))
    events_left = num_events.sum() - np.concatenate(([0], np.cumsum(num_events[order])[:-1]))
    costs = (excess - gone) / events_left
    return float(costs[np.argmax(costs <= each[order])])
