"""The first few lines of a kind pass, and the others are counted."""

from headrace.monitor.log.rate_limit import RateLimit, RateLimitPolicy

POLICY = RateLimitPolicy(lines=3, window_seconds=10.0, most_kinds=2)


def test_the_first_pass_and_the_others_are_counted() -> None:
    """Nothing vanishes: what passed and what was counted is all that came."""
    limit: RateLimit[str] = RateLimit(POLICY)
    passed = [number for number in range(1_237) if limit.admit("a", f"line {number}", 0.001 * number)]
    assert passed == [0, 1, 2]
    assert list(limit.list_held(9.9)) == []
    assert list(limit.list_held(10.0)) == [("line 3", 1_234, 10.0)]


def test_a_window_that_has_passed_makes_room() -> None:
    """Each window begins with lines that pass; one in which none was held back leaves nothing."""
    limit: RateLimit[str] = RateLimit(POLICY)
    assert [limit.admit("a", "x", 0.0) for _ in range(3)] == [True] * 3
    assert list(limit.list_held(10.0)) == []
    assert limit.admit("a", "x", 10.0)


def test_kinds_have_counts_of_their_own() -> None:
    """One that is loud silences no other; beyond the limit, kinds share a count and the memory is bounded."""
    limit: RateLimit[str] = RateLimit(POLICY)
    for kind in range(1_000):
        limit.admit(kind, f"kind {kind}", 0.0)
    assert limit.admit(1, "kind 1", 0.0)
    assert list(limit.list_held(0.0, is_over=True)) == [("kind 5", 995, 0.0)]


def test_some_kinds_may_have_more() -> None:
    """As many times more pass as the caller says."""
    limit: RateLimit[str] = RateLimit(POLICY)
    assert sum(limit.admit("a", "x", 0.0, times=4) for _ in range(50)) == 12
