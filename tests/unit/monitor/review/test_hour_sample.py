"""What an hour keeps: reservoirs by class and arm, the least certain, the largest disagreement."""

from __future__ import annotations

import random
from collections import Counter

from headrace.monitor.review.hour_sample import OTHER, HourSample, Limits, Offer, halve_sample
from headrace.runs.formats.review import ReviewSample, SampledAnswer


def _key(chance: random.Random) -> str:
    return chance.randbytes(16).hex()


def _fill(sample: HourSample, num: int, name: str, chance: random.Random, arm: str = "") -> None:
    for number in range(num):
        certainty = number / num
        offer = Offer(_key(chance), name, arm, certainty)
        sample.add(offer, SampledAnswer(key=offer.key, job=str(number), name=name, arm=arm, certainty=certainty))


def test_each_class_and_arm_has_a_reservoir_of_its_own() -> None:
    """Rare classes are kept whole, frequent ones to the limit, and all are counted."""
    sample, chance = HourSample(Limits(per_cell=5, least_certain=0)), random.Random(1)
    _fill(sample, 100, "cat", chance)
    _fill(sample, 40, "cat", chance, "canary")
    _fill(sample, 3, "axolotl", chance)
    kept = Counter((item.name, item.arm) for item, _ in sample.items())
    assert kept == {("cat", ""): 5, ("cat", "canary"): 5, ("axolotl", ""): 3}
    assert {(one.name, one.arm): one.num_answers for one in sample.cells()} == {
        ("cat", ""): 100, ("cat", "canary"): 40, ("axolotl", ""): 3,
    }  # fmt: skip


def test_every_answer_is_as_likely_to_be_kept() -> None:
    """Early and late ones of 40 answers stay in a reservoir of 10 with the probability 1/4."""
    seen: Counter[str] = Counter()
    chance = random.Random(2)
    for _ in range(400):
        sample = HourSample(Limits(per_cell=10, least_certain=0))
        _fill(sample, 40, "cat", chance)
        seen.update(item.job for item, _ in sample.items())
    assert sum(seen.values()) == 4000
    assert all(65 <= seen[str(number)] <= 140 for number in range(40))  # 100, four standard deviations


def test_the_least_certain_are_kept_beside() -> None:
    """Whatever their keys; an item kept for two reasons is kept once."""
    sample, chance = HourSample(Limits(per_cell=4, least_certain=6)), random.Random(3)
    _fill(sample, 100, "cat", chance)
    least = [item for item, why in sample.items() if "least_certain" in why]
    assert sorted(int(item.job) for item in least) == [0, 1, 2, 3, 4, 5]
    assert len(list(sample.items())) <= 10


def test_a_disagreement_is_kept_and_agreement_is_not() -> None:
    """Of twins that answer alike there is nothing to see."""
    sample = HourSample(Limits(per_cell=0, disagreement=2))
    for number, amount in enumerate((0.0, 0.0, 0.9, 0.2, 0.5)):
        offer = Offer(f"{number:032x}", "cat", disagreement=amount)
        sample.add(offer, SampledAnswer(key=offer.key, job=str(number), name="cat", disagreement=amount))
    assert sorted(item.job for item, _ in sample.items()) == ["2", "4"]


def test_what_is_dropped_is_returned_so_that_its_file_can_go() -> None:
    """Every item that came is kept or was returned."""
    sample, chance = HourSample(Limits(per_cell=3, least_certain=2)), random.Random(4)
    dropped = []
    for number in range(50):
        offer = Offer(_key(chance), "cat", certainty=chance.random())
        dropped += sample.add(offer, SampledAnswer(key=offer.key, job=str(number), name="cat"))
    kept = [item for item, _ in sample.items()]
    assert sorted(int(item.job) for item in [*kept, *dropped]) == list(range(50))


def test_names_without_end_share_a_cell() -> None:
    """A model that answers free text makes no cell for each."""
    sample = HourSample(Limits())
    for number in range(500):
        offer = Offer(f"{number:032x}", f"name {number}")
        sample.add(offer, SampledAnswer(key=offer.key, job="", name=sample.cell_of(offer.name, "")[0]))
    cells = {one.name: one.num_answers for one in sample.cells()}
    assert len(cells) == 201
    assert cells[OTHER] == 300


def test_half_a_sample_is_a_sample() -> None:
    """Those with the lowest keys stay, so that the order of reviewing stays; nothing else of the document changes."""
    sample, chance = HourSample(Limits(per_cell=20, least_certain=8)), random.Random(5)
    _fill(sample, 200, "cat", chance)
    items = tuple(
        SampledAnswer(key=item.key, job=item.job, name=item.name, certainty=item.certainty, why=why)
        for item, why in sample.items()
    )
    whole = ReviewSample(id="h", began_unix_seconds=0, ended_unix_seconds=1, cells=sample.cells(), items=items)
    half, dropped = halve_sample(whole)
    at_random = sorted(item.key for item in items if "random" in item.why)
    assert sorted(item.key for item in half.items if "random" in item.why) == at_random[:10]
    assert sum("least_certain" in item.why for item in half.items) == 4
    assert {item.key for item in half.items} | {item.key for item in dropped} == {item.key for item in items}
    assert half.cells == whole.cells
    while len(halved := halve_sample(half)[0].items) < len(half.items):
        half, _ = halve_sample(half)
    assert len(halved) == 2
