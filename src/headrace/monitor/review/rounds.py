"""A round: which answers it speaks of, and the order in which items are reviewed.

Every answer of the samples waits an exponential time that depends on its key and on the preference of its stratum, and the
order of these times is the order of reviewing: so each step draws one of the answers that are left, with a probability in
proportion to its preference. Two of three draws are as if all answers were alike. The third goes to what is kept for what it
is (least certain, largest disagreement) and to rare classes and small arms. So one draw counts at most half as much again as
in a plain random sample, which is what an interval pays for it.

Of a stratum only the answers with the first keys are kept, so that the order is known up to the time at which the first stratum
has no kept answer any more. There the draws of a round end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from headrace.monitor.review.hour_sample import place_of
from headrace.runs.formats.review import DrawCell, Drawn, ReviewRound, ReviewSample, SampledAnswer, Why

#: Of the draws, those that do not go by the number of answers alone.
PREFERRED = 1 / 3
#: Draws of a round, at most.
_MOST_DRAWS = 5_000

_Stratum = tuple[str, str, str, Why]


def make_round(samples: Sequence[ReviewSample], number: int, now_unix_seconds: float) -> ReviewRound | None:
    """Return a round over samples; None if nothing is in them.

    Args:
        samples: Of the time that it is to speak of.
        number: Of the round.
        now_unix_seconds: When it is made.
    """
    sizes, kept, num_uncovered = _stratify(samples)
    if not kept:
        return None
    preferences = _prefer(sizes)
    order = sorted(sizes)
    numbers = {stratum: index for index, stratum in enumerate(order)}
    horizon = min(
        (_wait(items[-1].key, preferences[one]) for one, items in kept.items() if len(items) < sizes[one]),
        default=math.inf,
    )
    waits = (
        (_wait(item.key, preferences[one]), numbers[one], f"{one[0]}/{item.key}")
        for one, items in kept.items()
        for item in items
    )
    draws = sorted(one for one in waits if one[0] <= horizon)[:_MOST_DRAWS]
    return ReviewRound(
        number=number,
        made_unix_seconds=now_unix_seconds,
        first_unix_seconds=min(one.began_unix_seconds for one in samples),
        last_unix_seconds=max(one.ended_unix_seconds for one in samples),
        segments=tuple(one.id for one in samples),
        cells=tuple(
            DrawCell(
                segment=one[0], name=one[1], arm=one[2], why=one[3], num_answers=sizes[one], num_kept=len(kept[one]),
                preference=preferences[one],
            )
            for one in order
        ),
        draws=tuple(Drawn(item=item, cell=cell) for _, cell, item in draws),
        num_missed=sum(one.num_missed for one in samples),
        num_uncovered=num_uncovered,
        share=min(one.share for one in samples),
    )  # fmt: skip


def _stratify(samples: Iterable[ReviewSample]) -> tuple[dict[_Stratum, int], dict[_Stratum, list[SampledAnswer]], int]:
    """Return how many answers each stratum has, the kept ones in order, and how many are in strata without a kept one.

    What is kept for what it is makes strata of which all members are kept; the rest of a cell is one without them.
    """
    sizes: Counter[_Stratum] = Counter()
    kept: dict[_Stratum, list[SampledAnswer]] = defaultdict(list)
    for sample in samples:
        for cell in sample.cells:
            sizes[sample.id, cell.name, cell.arm, "random"] += cell.num_answers
        for item in sample.items:
            why: Why = next((one for one in item.why if one != "random"), "random")
            kept[sample.id, item.name, item.arm, why].append(item)
            if why != "random":
                sizes[sample.id, item.name, item.arm, why] += 1
                sizes[sample.id, item.name, item.arm, "random"] -= 1
    for items in kept.values():
        items.sort(key=lambda item: item.key)
    uncovered = sum(num for stratum, num in sizes.items() if stratum not in kept)
    return {one: num for one, num in sizes.items() if one in kept and num}, dict(kept), uncovered


def _prefer(sizes: dict[_Stratum, int]) -> dict[_Stratum, float]:
    """Return the preference of an answer of each stratum."""
    num = sum(sizes.values())
    special = sum(size for stratum, size in sizes.items() if stratum[3] != "random")
    by_group: Counter[tuple[str, str]] = Counter()
    for (_, name, arm, why), size in sizes.items():
        by_group[name, arm] += size if why == "random" else 0
    roots = sum(math.sqrt(size) for size in by_group.values())
    to_special = 0.5 if special and roots else float(bool(special))
    found = {}
    for stratum in sizes:
        _, name, arm, why = stratum
        group = by_group[name, arm]
        # Of a class a share as the root of its size; all answers of it are alike, whichever hour they are from.
        extra = (1 - to_special) * math.sqrt(group) / roots / group if why == "random" else to_special / special
        found[stratum] = (1 - PREFERRED) / num + PREFERRED * extra
    return found


def _wait(key: str, preference: float) -> float:
    return -math.log1p(-place_of(key)) / preference
