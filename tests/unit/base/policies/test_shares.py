"""Which calls may begin while others hang; time is only a number."""

from __future__ import annotations

from headrace.base.policies import shares as module
from headrace.base.policies.shares import ALONE_SECONDS, Call, Shares, Turn


def answer(shares: Shares, key: str, now: float, seconds: float = 0.01, group: str = "g", times: int = 1) -> None:
    """Let calls of a key begin and be answered, one after another."""
    for _ in range(times):
        lane = shares.lane(key, group)
        shares.note_arrival(lane, now)
        call = shares.begin(lane, key, now)
        call.ended, call.is_answered = now + seconds, True
        shares.end(call, now + seconds)


def turn(shares: Shares, lane: str, now: float) -> Turn:
    """Return whether a call of a lane may begin, once those that turn out to be slow have moved."""
    shares.look(now)
    return shares.turn(lane, now)


def hang(shares: Shares, lane: str, now: float, most: int = 100) -> list[Call]:
    """Let calls of a lane begin as long as they may, with nobody else waiting; none is ever answered."""
    calls: list[Call] = []
    while len(calls) < most and turn(shares, lane, now) is not Turn.NO:
        shares.note_arrival(lane, now)
        calls.append(shares.begin(lane, lane, now))
    return calls


def known(num_workers: int = 8) -> Shares:
    """Shares that two keys have come for, both known to answer."""
    shares = Shares(num_workers)
    for key in ("good", "bad"):
        answer(shares, key, 0.0, times=8)
    return shares


def test_one_lane_alone_has_all_workers() -> None:
    """Whatever its calls take, nothing is kept from the only one there is, and nothing beyond the workers is begun."""
    shares = Shares(8)
    calls = hang(shares, "only", 0.0)
    assert len(calls) == 8
    assert turn(shares, "only", 1000.0) is Turn.NO
    assert shares.num_slow == 0


def test_calls_that_hang_leave_their_places_to_others() -> None:
    """Within a second all workers may be taken; after it each has another beside it, and the others go on."""
    shares = known()
    assert len(hang(shares, "bad", 1.0)) == 8
    assert turn(shares, "good", 1.5) is Turn.NO
    assert turn(shares, "good", 2.0) is Turn.NOW
    assert shares.num_slow == shares.num_moved == 8


def test_a_lane_that_hangs_begins_in_slow_places_only() -> None:
    """However many of its items come, the workers of the others are never taken again."""
    shares = known()
    hang(shares, "bad", 1.0)
    assert turn(shares, "bad", 2.0) is Turn.NO
    assert shares.slow_since("bad") == 2.0
    assert len(hang(shares, "good", 2.0)) == 8


def test_two_that_hang_share_the_slow_places() -> None:
    """One that has half of them comes after the other, and takes more only where the other does not wait."""
    shares = known()
    for key in ("bad", "worse"):
        answer(shares, key, 0.0)
        for call in [shares.begin(key, key, 0.0), shares.begin(key, key, 0.0)]:
            shares.look(2.0)
            shares.end(call, 2.0)
    for _ in range(4):
        assert turn(shares, "bad", 3.0) is Turn.NOW
        shares.begin("bad", "bad", 3.0)
    assert turn(shares, "bad", 3.0) is Turn.LAST
    assert turn(shares, "worse", 3.0) is Turn.NOW


def test_a_prompt_answer_makes_good() -> None:
    """A lane that hung begins like any other as soon as it answers."""
    shares = known()
    calls = hang(shares, "bad", 1.0)
    shares.look(2.0)
    for call in calls:
        shares.end(call, 16.0)
    answer(shares, "bad", 20.0)
    assert shares.slow_since("bad") is None


def test_one_slow_call_in_ten_is_no_crime() -> None:
    """A key most of whose calls are prompt keeps all places."""
    shares = known()
    for number in range(20):
        answer(shares, "good", 10.0 * number, times=9)
        answer(shares, "good", 10.0 * number, seconds=3.0)
        shares.note_arrival("bad", 10.0 * number)
        assert shares.slow_since("good") is None


def test_a_new_name_for_each_call_buys_nothing() -> None:
    """Names of which nothing is known share their domain's lane, and what one did is held against the next."""
    shares = known()
    assert {shares.lane(f"x{number}.evil.test", ".evil.test") for number in range(100)} == {".evil.test"}
    calls = hang(shares, ".evil.test", 1.0)
    shares.look(2.0)
    assert shares.lane("another.evil.test", ".evil.test") == ".evil.test"
    assert shares.slow_since(".evil.test") is not None
    assert len(calls) == 8


def test_strangers_come_after_those_that_are_known() -> None:
    """They have half of the workers, and more only while nobody else waits."""
    shares = known()
    for _ in range(4):
        assert turn(shares, "new", 1.0) is Turn.NOW
        shares.note_arrival("new", 1.0)
        shares.begin("new", "new", 1.0)
    assert turn(shares, "new", 1.0) is Turn.LAST
    assert turn(shares, "good", 1.0) is Turn.NOW


def test_what_takes_long_is_measured_by_what_is_usual() -> None:
    """Where all calls take seconds, seconds are not long."""
    shares = known()
    for number in range(100):
        answer(shares, ("good", "bad")[number % 2], 10.0 * number, seconds=2.0)
    now = 2000.0
    shares.note_arrival("good", now)
    shares.note_arrival("bad", now)
    call = shares.begin("good", "good", now)
    shares.look(now + 3.0)
    assert call.is_prompt_place
    shares.look(now + 10.0)
    assert not call.is_prompt_place


def test_a_worker_that_cannot_hand_on_is_not_slow() -> None:
    """Once its answer is there, the time until its place is free is no fault of whom it called."""
    shares = known()
    call = shares.begin("good", "good", 1.0)
    call.ended, call.is_answered = 1.1, True
    shares.look(60.0)
    shares.end(call, 60.0)
    assert shares.num_moved == 0
    assert shares.slow_since("good") is None


def test_a_place_is_given_back_once() -> None:
    """A worker that was left behind and comes back after all has nothing to give back."""
    shares = Shares(1)
    first = shares.begin("a", "a", 0.0)
    shares.end(first, 1.0)
    shares.begin("a", "a", 1.0)
    shares.end(first, 2.0)
    assert turn(shares, "a", 2.0) is Turn.NO


def test_who_is_left_over_has_everything_again() -> None:
    """Some time after the last of the others came, one lane is alone."""
    shares = known()
    hang(shares, "bad", 1.0, most=3)
    shares.look(2.0)
    shares.note_arrival("bad", 2.0)
    assert not shares.is_alone(2.0)
    assert shares.is_alone(2.0 + ALONE_SECONDS + 1)


def test_strangers_names_do_not_fill_the_memory() -> None:
    """However many keys come, so many are remembered."""
    shares = Shares(2)
    for number in range(module.MOST_REMEMBERED + 100):
        answer(shares, f"host-{number}", float(number))
    assert len(shares._credit) == module.MOST_REMEMBERED
