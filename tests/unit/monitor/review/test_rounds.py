"""Rounds: the population of the samples, and the random order of reviewing."""

from __future__ import annotations

import random
from collections import Counter

from headrace.monitor.review.hour_sample import HourSample, Limits, Offer
from headrace.monitor.review.rounds import make_round
from headrace.runs.formats.review import ReviewSample, SampledAnswer


def _sample(chance: random.Random, names: dict[str, int], limits: Limits, segment: str = "h") -> ReviewSample:
    sample = HourSample(limits)
    for name, num in names.items():
        for number in range(num):
            offer = Offer(chance.randbytes(16).hex(), name, certainty=chance.random())
            sample.add(offer, SampledAnswer(key=offer.key, job=f"{name} {number}", name=name))
    items = tuple(SampledAnswer(key=item.key, job=item.job, name=item.name, why=why) for item, why in sample.items())
    return ReviewSample(id=segment, began_unix_seconds=0, ended_unix_seconds=9, cells=sample.cells(), items=items)


def test_strata_hold_every_answer_once() -> None:
    """What is kept for what it is leaves its cell, so that no answer counts twice."""
    made = make_round(
        [_sample(random.Random(1), {"cat": 500, "dog": 30}, Limits(per_cell=10, least_certain=7))], 3, 8.0
    )
    assert made is not None
    assert sum(one.num_answers for one in made.cells) == 530
    special = [one for one in made.cells if one.why == "least_certain"]
    assert sum(one.num_answers for one in special) == 7
    assert all(one.num_answers == one.num_kept for one in special)
    assert len({one.item for one in made.draws}) == len(made.draws)
    assert (made.number, made.made_unix_seconds, made.num_uncovered) == (3, 8.0, 0)


def test_nothing_kept_makes_no_round() -> None:
    """An empty folder, or one of an hour without answers."""
    assert make_round([], 1, 0.0) is None
    assert make_round([_sample(random.Random(1), {}, Limits())], 1, 0.0) is None


def test_the_order_ends_where_a_stratum_does() -> None:
    """Beyond the last kept answer of a stratum nobody knows who would be next."""
    made = make_round(
        [_sample(random.Random(2), {"cat": 2000, "dog": 2000}, Limits(per_cell=10, least_certain=0))], 1, 0.0
    )
    assert made is not None
    drawn = Counter(one.cell for one in made.draws)
    assert max(drawn.values()) == 10
    assert len(made.draws) < 20
    small = make_round([_sample(random.Random(2), {"cat": 9, "dog": 4}, Limits(per_cell=10, least_certain=0))], 1, 0.0)
    assert small is not None
    assert len(small.draws) == 13


def test_draws_follow_the_preferences() -> None:
    """The first draw falls to a stratum as often as its answers' preferences say."""
    chance, first, expected = random.Random(3), Counter[str](), Counter[str]()
    for _ in range(300):
        made = make_round([_sample(chance, {"cat": 300, "dog": 20}, Limits(per_cell=30, least_certain=5))], 1, 0.0)
        assert made is not None
        first[made.cells[made.draws[0].cell].why] += 1
        total = sum(one.num_answers * one.preference for one in made.cells)
        for one in made.cells:
            expected[one.why] += one.num_answers * one.preference / total  # type: ignore[assignment]
    assert abs(first["least_certain"] - expected["least_certain"]) < 35  # of about 55, four standard deviations
    assert expected["least_certain"] > 50


def test_no_draw_counts_much_more_than_in_a_plain_sample() -> None:
    """The least preference is two thirds of that of a plain sample."""
    made = make_round([_sample(random.Random(4), {"cat": 5000, "dog": 10}, Limits())], 1, 0.0)
    assert made is not None
    assert min(one.preference for one in made.cells) >= 2 / 3 / 5010


def test_what_has_no_kept_answer_is_said() -> None:
    """A stratum without a kept item cannot be estimated."""
    sample = _sample(random.Random(5), {"cat": 40, "dog": 8}, Limits(per_cell=10, least_certain=0))
    without = ReviewSample(
        id="h", began_unix_seconds=0, ended_unix_seconds=9, cells=sample.cells,
        items=tuple(item for item in sample.items if item.name == "cat"),
    )  # fmt: skip
    made = make_round([without], 1, 0.0)
    assert made is not None
    assert made.num_uncovered == 8
    assert sum(one.num_answers for one in made.cells) == 40
