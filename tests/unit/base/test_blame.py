"""Which of the messages that were in flight at a worker's death is blamed, and what the others are spared."""

import pytest

from headrace.base.policies.blame import MOST_EXCUSED, SUSPICIOUS_WAITS, BlameBook, Death


def crash(in_work: list[str], waiting: tuple[str, ...] = ()) -> Death:
    """Return a crash with these messages."""
    return Death("SIGSEGV", True, in_work, waiting)


def kill(in_work: list[str]) -> Death:
    """Return a kill from outside."""
    return Death("SIGKILL", False, in_work, ())


def test_one_death_blames_nobody() -> None:
    """The only message in work at a first crash is a suspect, not yet blamed: it may have been alone by chance."""
    book = BlameBook()
    book.note_death(crash(["a"]))
    record = book.get("a")
    assert record is not None
    assert (record.is_suspect, record.blamed) == (True, False)


def test_alone_the_second_time_is_blamed() -> None:
    """A message that crashed a worker in company and then another one alone is blamed, its neighbour is not."""
    book = BlameBook()
    book.note_death(crash(["a", "b"]))
    book.note_death(crash(["a"]))
    a, b = book.get("a"), book.get("b")
    assert a is not None
    assert b is not None
    assert (a.blamed, b.blamed) == (True, False)
    assert "2 times (SIGSEGV)" in a.reason


def test_company_at_every_death_blames_nobody() -> None:
    """However often two messages are in work at a crash together, neither is blamed: that is what running alone is for."""
    book = BlameBook()
    for _ in range(5):
        book.note_death(crash(["a", "b"]))
    records = [book.get("a"), book.get("b")]
    assert [record.blamed for record in records if record] == [False, False]


def test_deliveries_in_company_are_excused() -> None:
    """A death does not count as a delivery for what waited, nor for what was in work beside others; alone it does."""
    book = BlameBook()
    book.note_death(crash(["a", "b"], ("c",)))
    book.note_death(crash(["a"], ("c",)))
    excused = {name: record.excused for name in "abc" if (record := book.get(name))}
    assert excused == {"a": 1, "b": 1, "c": 2}


def test_what_waited_is_no_suspect() -> None:
    """A message that no stage worked on may run beside others."""
    book = BlameBook()
    book.note_death(crash(["a"], ("b",)))
    record = book.get("b")
    assert record is not None
    assert not record.is_suspect


def test_kills_from_outside_never_blame() -> None:
    """A message alone in work at kill after kill runs alone from the second on, and is left to its receive count."""
    book = BlameBook()
    book.note_death(kill(["a"]))
    once = book.get("a")
    assert once is not None
    assert not once.is_suspect
    for _ in range(9):
        book.note_death(kill(["a"]))
    record = book.get("a")
    assert record is not None
    assert (record.is_suspect, record.blamed, record.excused) == (True, False, 0)


def test_memory_is_bounded() -> None:
    """The oldest records go first."""
    book = BlameBook(num_remembered=2)
    for name in "abc":
        book.note_death(crash([name]))
    assert [book.get(name) is None for name in "abc"] == [True, False, False]


def test_excuses_come_to_an_end() -> None:
    """What kills before any stage works on it looks like one that waits: its deliveries are counted in the end."""
    book = BlameBook()
    for _ in range(2 * MOST_EXCUSED):
        book.note_death(Death("SIGSEGV", True, [], ["a"]))
    record = book.get("a")
    assert record is not None
    assert (record.deaths, record.excused) == (2 * MOST_EXCUSED, MOST_EXCUSED)


def test_what_another_book_says_is_added() -> None:
    """Deaths before and after a supervisor's end are one history: two crashes together make a suspect and its blame."""
    before, after = BlameBook(), BlameBook()
    before.note_death(crash(["a", "b"]))
    after.note_death(crash(["a"]))
    after.learn(before.records)
    a, b = after.get("a"), after.get("b")
    assert a is not None
    assert b is not None
    assert (a.deaths, a.crashes, a.excused, a.is_suspect) == (2, 2, 1, True)
    assert (b.deaths, b.crashes, b.excused, b.is_suspect) == (1, 1, 1, True)


def test_what_waits_at_unexplained_deaths_becomes_a_suspect() -> None:
    """Three deaths with nothing in work make suspects of all that waited; deaths of others' work do not."""
    book = BlameBook()
    for _ in range(SUSPICIOUS_WAITS):
        book.note_death(Death("SIGKILL", False, [], ["a"]))
        book.note_death(Death("SIGKILL", False, ["x"], ["b"]))
    a, b = book.get("a"), book.get("b")
    assert a is not None
    assert b is not None
    assert (a.is_suspect, a.was_alone, b.is_suspect) == (True, False, False)


def test_all_that_a_crashed_worker_had_is_a_suspect() -> None:
    """Nothing was in work and one message waited: it runs alone, and is blamed only for a crash while it is in work."""
    book = BlameBook()
    seen = []
    for in_work, waiting in (([], ("a",)), ([], ("a",)), (["a"], ())):
        book.note_death(crash(in_work, waiting))
        record = book.get("a")
        assert record is not None
        seen.append((record.is_suspect, record.blamed))
    assert seen == [(True, False), (True, False), (True, True)]


def test_what_waited_in_company_or_at_a_kill_is_no_suspect_at_once() -> None:
    """Two waited at one crash, and one at a kill from outside: neither says which message does it, or that one does."""
    book = BlameBook()
    book.note_death(crash([], ("a", "b")))
    book.note_death(Death("SIGKILL", False, [], ["c"]))
    assert [record.is_suspect for record in book.records.values()] == [False, False, False]


@pytest.mark.parametrize("in_work", [[], ["x"], ["x", "y"]])
@pytest.mark.parametrize("num_waiting", [0, 1, 4, 5, 9])
def test_the_parts_of_a_death_say_what_the_whole_does(in_work: list[str], num_waiting: int) -> None:
    """A long death is told in parts, none of which is taken for a smaller death with nothing in work."""
    death = crash(in_work, tuple(f"w{number}" for number in range(num_waiting)))
    whole, told = BlameBook(), BlameBook()
    whole.note_death(death)
    parts = death.parts(4)
    for part in parts:
        told.note_death(part)
    assert dict(told.records) == dict(whole.records)
    assert len(parts) == max(1, -(-num_waiting // 4))


def test_what_another_machine_tells_is_known_and_not_added() -> None:
    """One death on each of two machines that told each other before the second makes two, however often they tell."""
    first, second = BlameBook(), BlameBook()
    first.note_death(crash(["a", "b"]))
    assert set(second.join(first.news(10))) == {"a", "b"}
    assert second.join(first.news(10)) == {}
    record = second.get("a")
    assert record is not None
    assert record.is_suspect
    second.note_death(crash(["a"]))
    first.join(second.news(10))
    for book in (first, second):
        record = book.get("a")
        assert record is not None
        assert (record.crashes, record.blamed) == (2, True)


def test_a_redriven_message_stays_forgotten_on_all_machines() -> None:
    """What a machine knows of the time before does not come back from there, and what comes after counts everywhere."""
    first, second = BlameBook(), BlameBook()
    first.note_death(crash(["a"]))
    second.join(first.news(10))
    second.forget("a")
    second.join(first.news(10))
    assert second.get("a") is None
    first.join(second.news(10))
    assert first.get("a") is None
    second.note_death(crash(["a"]))
    first.join(second.news(10))
    record = first.get("a")
    assert record is not None
    assert record.crashes == 1


def test_what_merely_waited_beside_others_is_no_news() -> None:
    """Thousands may have waited; the newest of the rest are told."""
    book = BlameBook()
    for name in "abc":
        book.note_death(crash([name], ("w",)))
    assert list(book.news(2)) == ["b", "c"]
