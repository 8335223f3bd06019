"""What counts of a canary that is drawn by a key."""

from __future__ import annotations

from headrace.base.policies.arms import Draw
from headrace.base.policies.evidence import Counts
from headrace.base.policies.keyed_watch import KeyedWatch

TENTH = 0.1


def end(watch: KeyedWatch, key: str, epoch: int, *, canary: bool, failed: bool = False, number: int = 0) -> None:
    """Let one job of a key come and end."""
    draw = Draw(key, epoch)
    watch.note_drawn(TENTH, canary=canary, draw=draw)
    if failed:
        watch.note_failed(TENTH, f"{key}-{epoch}-{number}", canary=canary, why="broken", draw=draw)
    else:
        watch.note_good(TENTH, canary=canary, draw=draw)


def test_a_key_counts_once_in_an_epoch() -> None:
    """A camera whose fifty jobs fail is one draw and one event, known when the epoch is over."""
    watch = KeyedWatch()
    for number in range(50):
        end(watch, "fog", 7, canary=True, failed=True, number=number)
        end(watch, "sun", 7, canary=False)
    assert watch.seen().drawn == {TENTH: Counts(stable=1, canary=1)}
    assert watch.seen().jobs == {}
    end(watch, "sun", 8, canary=False)
    assert watch.seen().jobs == {TENTH: Counts(stable=1, canary=1, bad_canary=1)}
    assert watch.seen().drawn == {TENTH: Counts(stable=2, canary=1)}


def test_what_was_drawn_in_an_epoch_that_is_over_is_no_evidence() -> None:
    """It would be counted for the arm of the next one."""
    watch = KeyedWatch()
    late = Draw("fog", 7)
    watch.note_drawn(TENTH, canary=True, draw=late)
    end(watch, "sun", 8, canary=False)
    watch.note_failed(TENTH, "late", canary=True, why="broken", draw=late)
    end(watch, "sun", 9, canary=False)
    assert watch.seen().jobs == {TENTH: Counts(stable=1)}


def test_a_row_is_one_of_different_keys() -> None:
    """One broken camera fails as often as it likes; six keys in a row are the canary's fault."""
    watch = KeyedWatch()
    for number in range(2_000):
        end(watch, "sun", 7, canary=False, number=number)
        end(watch, "fog", 7, canary=True, failed=True, number=number)
    assert not watch.has_tripped
    for number in range(5):
        end(watch, f"camera-{number}", 7, canary=True, failed=True)
    assert watch.has_tripped
    assert watch.seen().trips[0].startswith("failures: ")


def test_the_first_word_of_a_key_counts() -> None:
    """A user who likes no answer says so once in an epoch."""
    watch = KeyedWatch()
    for bad in (True, True, False):
        end(watch, "ada", 7, canary=True)
        watch.note_feedback(TENTH, canary=True, bad=bad, draw=Draw("ada", 7))
    watch.note_feedback(TENTH, canary=True, bad=True, draw=Draw("ada", 6))
    watch.note_feedback(TENTH, canary=True, bad=True, draw=None)
    assert watch.seen().feedback == {TENTH: Counts(canary=1, bad_canary=1)}
