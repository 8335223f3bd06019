import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.profiler.layers.rescaling import rescale


def test_a_cost_per_event_is_taken_off_each() -> None:
    """Known answer: 2 ms and 1 ms of work seen through a profiler that costs 0.5 ms an event come out exactly."""
    assert rescale(np.array([2.5, 1.5]), np.ones(2), 3.0, 5.0) == pytest.approx([2.0, 1.0])


def test_a_layer_in_a_loop_pays_once_per_round() -> None:
    """Four events of a loop's body carry four times the cost."""
    assert rescale(np.array([2.5, 3.0]), np.array([1, 4]), 3.0, 6.0) == pytest.approx([2.0, 1.0])


def test_a_layer_gives_no_more_than_it_has() -> None:
    """Where the common cost is more than a layer's whole time, the others carry the rest."""
    assert rescale(np.array([0.1, 5.0, 5.0]), np.ones(3), 8.0, 11.0) == pytest.approx([0.0, 4.0, 4.0])


def test_layers_with_gaps_between_are_scaled_up() -> None:
    """What passes between the layers is shared out in proportion."""
    assert rescale(np.array([1.0, 3.0]), np.ones(2), 8.0, 8.5) == pytest.approx([2.0, 6.0])


def test_layers_side_by_side_are_scaled_down() -> None:
    """Layers that add up to more than the call ran at the same time: that is no cost of the profiler."""
    assert rescale(np.array([1.0, 3.0]), np.ones(2), 2.0, 2.5) == pytest.approx([0.5, 1.5])


@given(
    raw=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30),
    events=st.integers(1, 5),
    ratio=st.floats(0.05, 20.0),
    inflation=st.floats(1.0, 3.0),
)
def test_layers_add_up_to_the_latency(raw: list[float], events: int, ratio: float, inflation: float) -> None:
    """Whatever was recorded, the sum is the latency, no layer is negative and the order stays."""
    latency = sum(raw) * ratio
    seconds = rescale(np.array(raw), np.full(len(raw), events), latency, latency * inflation)
    assert seconds.sum() == pytest.approx(latency)
    assert (seconds >= 0).all()
    ranked = seconds[np.argsort(raw)]
    assert (np.diff(ranked) >= -1e-9 * latency).all()
