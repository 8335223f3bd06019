"""Who is blamed for the end of a process."""

from headrace.base.policies.suspects import Suspects


def test_nobody_is_blamed_in_company() -> None:
    """However often an item was in hand beside others, it is only a suspect."""
    suspects = Suspects()
    for _ in range(9):
        suspects.note_crash(["a", "b"], alone=False)
    assert suspects.sort_suspects(["c", "b", "a"]) == ["b", "a"]
    assert not suspects.is_guilty("a", 3)


def test_the_crashes_that_make_guilty() -> None:
    """It takes as many crashes as tries, one of them alone; with a single try still one alone."""
    suspects = Suspects()
    suspects.note_crash(["a", "b"], alone=False)
    assert not suspects.is_guilty("a", 1)
    suspects.note_crash(["a"], alone=True)
    assert (suspects.is_guilty("a", 3), suspects.is_guilty("a", 2), suspects.is_guilty("a", 1)) == (False, True, True)
    suspects.note_crash(["a"], alone=True)
    assert suspects.is_guilty("a", 3)
    assert not suspects.is_guilty("b", 1)


def test_the_least_suspected_come_first() -> None:
    """So kills from outside, soon after each start, do not hit the same item again and again."""
    suspects = Suspects()
    suspects.note_crash(["a", "b", "c"], alone=False)
    suspects.note_crash(["a"], alone=True)
    assert suspects.sort_suspects(["a", "b", "c"]) == ["b", "c", "a"]
