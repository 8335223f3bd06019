"""When a worker counts as stalled."""

from headrace.base.policies.stalls import LONGEST_LOOK_SECONDS, StallPolicy


def looks(policy: StallPolicy, *hands: dict[str, int], every: float = 1.0) -> list[list[str]]:
    """Return what the policy says at looks that are so many seconds apart."""
    return [policy.find_stalled(number * every, hand) for number, hand in enumerate(hands)]


def test_the_same_hand_for_too_long() -> None:
    """A worker is named once, when its hand has lasted as long as the limit; others are not."""
    hands = [{"a": 1, "b": number} for number in range(6)]
    assert looks(StallPolicy(3.0), *hands) == [[], [], [], ["a"], [], []]


def test_a_new_hand_begins_anew() -> None:
    """Neither another hand nor idling is added to what came before."""
    assert looks(StallPolicy(3.0), {"a": 1}, {"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}, {}, {"a": 2}, {"a": 2}) == [[]] * 8


def test_time_in_which_nobody_looked_hardly_counts() -> None:
    """After a long gap the process was stopped, and so were its workers."""
    policy = StallPolicy(3 * LONGEST_LOOK_SECONDS)
    assert policy.find_stalled(0, {"a": 1}) == []
    assert policy.find_stalled(1e6, {"a": 1}) == []
    assert policy.find_stalled(2e6, {"a": 1}) == []
    assert policy.find_stalled(3e6, {"a": 1}) == ["a"]


def test_no_limit() -> None:
    """With 0 nobody is ever late."""
    assert looks(StallPolicy(0), *[{"a": 1}] * 9, every=1000.0) == [[]] * 9
