"""Which arm a job falls to."""

from __future__ import annotations

import pytest

from headrace.base.errors import SettingsError
from headrace.base.policies.arms import EPOCH_SECONDS, Split, epoch_of

IDS = [f"job-{number}" for number in range(20_000)]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_realised_share_is_what_was_asked(share: float) -> None:
    """Within a point, of 20,000 jobs."""
    split = Split(salt="s", share=share)
    assert sum(map(split.is_canary, IDS)) / len(IDS) == pytest.approx(share, abs=0.01)


def test_nobody_leaves_the_canary_while_it_grows() -> None:
    """Who fell to it at 10 % is in it at 50 %: a retry after a step goes where the job went before."""
    tenth, half = (Split(salt="s", share=share) for share in (0.1, 0.5))
    assert all(half.is_canary(job) for job in IDS if tenth.is_canary(job))


def test_the_arm_is_the_same_everywhere() -> None:
    """These are the arms that any process on any machine computes; another salt draws others."""
    arms = [Split(salt="s", share=0.5).is_canary(job) for job in IDS[:12]]
    assert arms == [Split(salt="s", share=0.5).is_canary(job) for job in IDS[:12]]
    assert arms == [False, True, True, True, True, True, True, True, False, False, False, False]
    assert arms != [Split(salt="t", share=0.5).is_canary(job) for job in IDS[:12]]


def test_no_share_and_all() -> None:
    """At 0 no job falls to the canary, at 1 each does."""
    assert not any(map(Split(salt="s").is_canary, IDS[:1000]))
    assert all(map(Split(salt="s", share=1.0).is_canary, IDS[:1000]))


def test_keys_are_drawn_again_every_epoch() -> None:
    """Within an epoch a key stays; over many it is in the canary for its share of the time."""
    split = Split(salt="s", share=0.5)
    arms = [split.is_canary("camera-7", epoch_of(number * EPOCH_SECONDS + 1.0)) for number in range(1000)]
    assert arms == [split.is_canary("camera-7", epoch_of((number + 1) * EPOCH_SECONDS - 1.0)) for number in range(1000)]
    assert 400 < sum(arms) < 600


def test_an_impossible_share_is_refused() -> None:
    """With the value and what is allowed."""
    with pytest.raises(SettingsError, match=r"share = 1\.5 .* from 0 to 1"):
        Split(salt="s", share=1.5)
