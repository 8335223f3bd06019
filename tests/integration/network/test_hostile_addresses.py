"""Addresses that a worker must not contact, in a network of its own with a real name server and a trap at every address."""

from __future__ import annotations

import os

import pytest

from benchmarks import closed_network
from benchmarks.hostile_addresses import SPECIAL, SPELLINGS, Tried, run_cases


@pytest.fixture(scope="module", params=["waiting", "carried"])
def tried(request: pytest.FixtureRequest) -> list[Tried]:
    """Try every case once by each way to wait; all tests look at the same outcomes."""
    lacking = closed_network.missing()
    if lacking is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no network of its own can be made: {lacking}")
    return run_cases(carried=request.param == "carried")


def by_way(tried: list[Tried], *ways: str) -> list[Tried]:
    """Return the cases of these ways, of which there are some."""
    found = [one for one in tried if one.way in ways]
    assert found
    return found


def test_the_trap_hears_what_is_let_through(tried: list[Tried]) -> None:
    """With everything allowed, the same client reaches the trap at private addresses, and without rules the public server."""
    controls = by_way(tried, "control")
    heard = {address for one in controls for address, _ in one.arrived}
    assert {"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fd12:3456::1"} <= heard
    assert {one.outcome for one in controls} == {"public", "let through"}


def test_nothing_arrives_anywhere_but_at_the_public_server(tried: list[Tried]) -> None:
    """No case opens a connection to an address that is not allowed, and every error has a code."""
    cases = [one for one in tried if one.way != "control"]
    assert len(cases) > 500
    assert [one for one in cases if one.arrived or one.outcome in ("let through", "untyped")] == []


@pytest.mark.parametrize(
    "way", ["address", "name", "redirect to address", "redirect to name", "callback", "callback by name"]
)
def test_every_special_address_is_refused(tried: list[Tried], way: str) -> None:
    """Written out, by name, behind a redirect and as a callback, each kind of address is refused for good."""
    cases = by_way(tried, way)
    assert len(cases) == len(SPECIAL)
    assert [one for one in cases if one.outcome != "refused" or not one.reason.startswith("ssrf.address: ")] == []


@pytest.mark.parametrize("way", ["name", "redirect to name", "callback by name"])
def test_a_reason_does_not_tell_what_a_name_resolved_to(tried: list[Tried], way: str) -> None:
    """The message names the rule and the host, never the address behind it."""
    for one, address in zip(by_way(tried, way), SPECIAL, strict=True):
        assert address not in one.reason.removeprefix("ssrf.address: ").partition(": ")[2]


def test_spellings_of_an_address_do_not_help(tried: list[Tried]) -> None:
    """Numbers, other digits, tricks with @ and backslashes: refused, not resolved, or read as the public server they name."""
    cases = by_way(tried, "spelling", "redirect to spelling", "callback by spelling")
    assert len(cases) == 3 * len(SPELLINGS)
    assert {one.outcome for one in cases} == {"refused", "failed", "public"}
    direct = {one.address: one for one in by_way(tried, "spelling")}
    assert [address for address, one in direct.items() if one.outcome == "public"] == ["http://public.test#@127.0.0.1/"]
    assert direct["http://public.test:22/"].reason.startswith("ssrf.port: ")
    assert direct["http://user:password@public.test/"].reason.startswith("ssrf.credentials: ")
    assert all("password" not in one.reason for one in cases)


def test_other_schemes_are_refused(tried: list[Tried]) -> None:
    """Nothing but http and https is fetched or posted to, redirects included, and no file is read."""
    assert {one.outcome for one in by_way(tried, "scheme", "callback by scheme")} == {"refused"}
    redirected = by_way(tried, "redirect to scheme")
    assert {one.outcome for one in redirected} == {"refused", "failed"}
    assert all(one.reason.startswith(("ssrf.", "http.resolve: ")) for one in redirected)


def test_one_private_answer_among_public_ones_is_enough(tried: list[Tried]) -> None:
    """A name with a public and a private address is refused, whichever comes first and of whichever family."""
    assert {one.reason.partition(":")[0] for one in by_way(tried, "mixed answer")} == {"ssrf.address"}


def test_a_second_answer_of_the_name_server_changes_nothing(tried: list[Tried]) -> None:
    """A name that resolves to a private address the second time is refused, or not dialled where libcurl asked by itself."""
    reasons = {one.address: one.reason.partition(":")[0] for one in by_way(tried, "rebinding")}
    assert reasons == {
        "http://rebind.test/": "ssrf.address",
        "http://rebind-reconnect.test/": "ssrf.address",
        "http://rebind-back.test/": "ssrf.address",
        "http://rebind-pin.test/": "ssrf.pin",
    }


def test_names_without_an_answer_are_tried_again_and_soon_given_up(tried: list[Tried]) -> None:
    """A name that does not exist, has no address, or whose server keeps silent for 30 s fails within the time for it."""
    cases = by_way(tried, "no answer")
    assert {(one.outcome, one.reason.partition(":")[0]) for one in cases} == {("failed", "http.resolve")}
    assert max(one.seconds for one in cases) < 15  # 2 s, and a busy machine


def test_redirects_end(tried: list[Tried]) -> None:
    """More than three redirects are refused although each of them is allowed."""
    assert {one.reason.partition(":")[0] for one in by_way(tried, "redirects")} == {"http.redirects"}
