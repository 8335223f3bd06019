"""Which batch size comes next, where a search ends, and what it recommends."""

from __future__ import annotations

from collections.abc import Callable

from headrace.runs.formats.batch_search import SizeTrial
from headrace.train.search.sizes import HEADROOM, choose_size, model_memory, next_size, predict_peak

MB = 10**6


def _search(
    rate: Callable[[int], float],
    peak: Callable[[int], float],
    limit: int,
    largest: int = 10**6,
    dies_above: float = float("inf"),
) -> tuple[list[SizeTrial], str]:
    """Run a search on a machine of formulas; return its trials, and why it ended."""
    trials: list[SizeTrial] = []
    while True:
        size, why = next_size(trials, limit_bytes=limit, largest=largest)
        if size is None:
            return trials, why
        predicted = predict_peak(trials, size)
        if peak(size) > min(limit, dies_above):
            trials.append(SizeTrial(batch_size=size, outcome="does not fit", why="killed by SIGKILL"))
            continue
        trials.append(
            SizeTrial(
                batch_size=size,
                outcome="measured",
                samples_per_second=rate(size),
                peak_bytes=round(peak(size)),
                predicted_peak_bytes=predicted,
            )
        )


def _line(fixed: float, slope: float) -> Callable[[int], float]:
    return lambda size: (fixed + slope * size) * MB


def test_sizes_double_until_two_doublings_gain_nothing() -> None:
    """Throughput that saturates at 16 ends the search at 64, and the smallest of the equals is recommended."""
    trials, why = _search(lambda size: 100.0 * min(size, 16), _line(300, 0.1), 10**12)
    assert [trial.batch_size for trial in trials] == [1, 2, 4, 8, 16, 32, 64]
    assert "less than 3%" in why
    assert choose_size(trials, limit_bytes=10**12) == 16


def test_one_doubling_without_gain_does_not_end_the_search() -> None:
    """A dip at 4 is passed, as a kernel that suits 8 better would need."""
    rates = {1: 100.0, 2: 200.0, 4: 190.0, 8: 400.0, 16: 401.0, 32: 402.0}
    trials, _ = _search(lambda size: rates[size], _line(300, 0.1), 10**12)
    assert [trial.batch_size for trial in trials] == [1, 2, 4, 8, 16, 32]


def test_a_size_that_cannot_fit_is_not_tried_and_the_largest_that_fits_is() -> None:
    """With 100 MB + 10 MB a sample, 900 MB usable of 1 GB hold 80 samples: 64 is followed by 80, never by 128."""
    trials, why = _search(float, _line(100, 10), 1000 * MB)
    assert [trial.batch_size for trial in trials] == [1, 2, 4, 8, 16, 32, 64, 80]
    assert "does not fit into memory" in why
    assert choose_size(trials, limit_bytes=1000 * MB) == 80


def test_after_a_death_smaller_sizes_are_tried_and_what_is_recommended_was_run() -> None:
    """Memory that grows faster than the line: 64 dies, and the search ends on a size that ran and leaves the headroom."""

    def peak(size: int) -> float:
        return (100 + 0.2 * size * size) * MB

    trials, why = _search(float, peak, 800 * MB)
    assert 64 in [trial.batch_size for trial in trials if trial.outcome == "does not fit"]
    assert "does not fit" in why
    chosen = choose_size(trials, limit_bytes=800 * MB)
    ran = {trial.batch_size for trial in trials if trial.outcome == "measured"}
    assert chosen in ran
    assert peak(chosen) <= (1 - HEADROOM) * 800 * MB


def test_never_recommends_a_size_that_was_not_run_whatever_the_machine() -> None:
    """Over many lines, limits and data sets: it was run, it leaves the headroom, and no size was tried twice."""
    for fixed in (10, 300):
        for slope in (0.01, 1, 7, 60):
            for limit in (320, 500, 4000):
                for largest in (1, 3, 100, 4096):
                    trials, _ = _search(float, _line(fixed, slope), limit * MB, largest)
                    sizes = [trial.batch_size for trial in trials]
                    ran = {trial.batch_size: trial.peak_bytes or 0 for trial in trials if trial.outcome == "measured"}
                    chosen = choose_size(trials, limit_bytes=limit * MB)
                    assert len(set(sizes)) == len(sizes)
                    assert max(sizes) <= largest
                    assert chosen is None or ran[chosen] <= 0.9 * limit * MB
                    assert (chosen is None) == all(peak > 0.9 * limit * MB for peak in ran.values())


def test_the_data_set_ends_the_search() -> None:
    """A data set of 100 samples: 64 is followed by 100."""
    trials, why = _search(float, _line(100, 0.1), 10**12, largest=100)
    assert [trial.batch_size for trial in trials][-2:] == [64, 100]
    assert why == "100 is the largest that the data set or --largest allows"


def test_nothing_fits() -> None:
    """Where one sample dies, no size is recommended."""
    trials, why = _search(float, _line(900, 10), 500 * MB)
    assert [trial.outcome for trial in trials] == ["does not fit"]
    assert choose_size(trials, limit_bytes=500 * MB) is None
    assert "1 does not fit" in why


def test_the_error_of_the_memory_model_is_that_of_what_it_predicted_before() -> None:
    """A straight line is predicted exactly; one that bends at 16 is missed by what the bend adds."""
    straight, _ = _search(float, _line(100, 10), 1000 * MB)
    model = model_memory(straight)
    assert model is not None
    assert abs(model.fixed_bytes - 100 * MB) < 1
    assert abs(model.bytes_per_sample - 10 * MB) < 1
    assert model.error is not None
    assert model.error < 1e-9
    bent, _ = _search(float, lambda size: (100 + 10 * size + (50 if size > 16 else 0)) * MB, 1000 * MB)
    bent_model = model_memory(bent)
    assert bent_model is not None
    assert bent_model.error is not None
    assert bent_model.error > 0.05
