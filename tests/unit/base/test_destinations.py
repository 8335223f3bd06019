"""Which servers are left alone, on a clock that is only a number."""

from __future__ import annotations

import pytest

from headrace.base.destinations import Destinations, host_of
from headrace.base.policies.breaker import BreakerPolicy

POLICY = BreakerPolicy(failures=3, open_seconds=5.0)


def fail(known: Destinations, *urls: str, whole_host: bool = False) -> list[bool]:
    """Let calls fail one after another at time 0; return which of them opened a breaker."""
    return [known.find(url).note_failure(0.0, "answered 500", whole_host=whole_host) for url in urls]


def test_an_address_that_fails_is_left_alone_by_itself() -> None:
    """Failures in a row open the address, with any query; its neighbours on the host are called."""
    known = Destinations(POLICY)
    assert fail(known, *["http://h/a/bad"] * 3) == [False, False, True]
    bad = known.find("http://h/a/bad?x=1")
    assert bad.admit(1.0) == 4.0
    assert bad.last_failure == "answered 500"
    assert known.find("http://h/a/good").admit(1.0) is None
    assert known.find("http://h/").admit(1.0) is None


def test_different_addresses_that_fail_open_what_they_share() -> None:
    """Where each address is called once, a tenant is known by the beginning of the path, a host by its name."""
    known = Destinations(POLICY)
    fail(known, *(f"http://h/tenant/{number}" for number in range(3)))
    assert known.find("http://h/tenant/99").admit(0.0) == 5.0
    assert known.find("http://h/neighbour/1").admit(0.0) is None
    fail(known, "http://h/b", "http://h/c")
    assert known.find("http://h/neighbour/1").admit(0.0) == 5.0
    assert known.find("http://other/").admit(0.0) is None


def test_one_success_tells_that_the_host_works() -> None:
    """Parts that fail count in a row only: one that answers in between starts it again."""
    known = Destinations(POLICY)
    for number in range(10):
        fail(known, f"http://h/bad/{number}", f"http://h/worse/{number}")
        known.find("http://h/good").note_answer()
    assert known.find("http://h/another").admit(0.0) is None
    assert known.find("http://h/bad/99").admit(0.0) == 5.0


def test_a_host_that_cannot_be_reached_is_left_alone_as_a_whole() -> None:
    """It does not matter which of its addresses were called."""
    known = Destinations(POLICY)
    assert fail(known, "http://h/a", "http://h/a", "http://h/b", whole_host=True) == [False, False, True]
    assert known.find("http://h:80/c").admit(0.0) == 5.0
    assert known.find("https://h/c").admit(0.0) is None


def test_one_probe_at_a_time_and_only_where_all_levels_let_it() -> None:
    """A call that is refused by one level leaves the probe of another to the next caller."""
    known = Destinations(POLICY)
    fail(known, *["http://h/a"] * 3)
    fail(known, *["http://h/x"] * 3, whole_host=True)
    fail(known, "http://h/b", "http://h/b")
    assert known.find("http://h/b").admit(5.0) is None  # the host's probe
    assert known.find("http://h/b").admit(5.0) is not None
    known.find("http://h/b").note_answer()
    assert [known.find("http://h/b").admit(5.0) for _ in range(3)] == [None] * 3


def test_a_tenant_cannot_use_up_its_neighbours_retries() -> None:
    """An address that fails has the reserve of one and a tenth of its own calls; the host's budget goes on for others."""
    known = Destinations(BreakerPolicy(failures=10**6), retry_ratio=0.1)
    bad = good = 0
    for _ in range(1000):
        for url, is_bad in (("http://h/bad", True), ("http://h/good", False)):
            one = known.find(url)
            assert one.admit(0.0) is None
            if is_bad:
                one.note_failure(0.0, "answered 500")
                bad += one.retry_in(0.0) is None
            else:
                one.note_answer()
    for _ in range(5):
        one = known.find("http://h/good")
        one.note_failure(0.0, "answered 500")
        good += one.retry_in(0.0) is None
    assert 100 <= bad <= 111
    assert good == 5


def test_strangers_addresses_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hosts and addresses jobs name, so many are remembered."""
    monkeypatch.setattr("headrace.base.destinations.MOST_REMEMBERED", 5)
    known = Destinations(POLICY)
    for number in range(50):
        known.find(f"http://host-{number}/").admit(0.0)
        fail(known, f"http://host-{number}/a/b/c")
        known.disable(f"http://host/{number}")
    assert len(known._places) == len(known._budgets) == len(known._gone) == 5
    assert known.is_disabled("http://host/49")


@pytest.mark.parametrize("url", ["http://H:80/a", "http://h/b?c", "http://user@h"])
def test_a_host_has_one_name(url: str) -> None:
    """Spellings that lead to the same server are the same destination; what is no address has none."""
    assert host_of(url) == "http://h:80"
    assert host_of("http://[") == ""
