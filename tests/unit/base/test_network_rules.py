"""The rules about who may be contacted, without a network."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.address_ranges import RANGES, special_range
from headrace.base.errors import SettingsError
from headrace.base.network_rules import NetworkPlan, NetworkRules, Refusal, Target, parse_target


def judged(url: str, *addresses: str, **plan: Any) -> str | None:
    """Return the code of a refusal; None where the address may be contacted."""
    target = parse_target(url)
    if isinstance(target, Refusal):
        return target.code
    found = tuple(map(ipaddress.ip_address, addresses)) or ((target.address,) if target.address else ())
    refusal = NetworkRules(NetworkPlan(**plan)).judge(target, found)
    return refusal.code if refusal else None


PUBLIC = ["93.184.216.34", "8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "192.0.1.1", "223.255.255.255",
          "2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888"]  # fmt: skip
SPECIAL = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255"],
    "unique local": ["fd12:3456::1", "fc00::1"],
    "link-local and cloud metadata": ["169.254.169.254", "169.254.0.1"],
    "cloud metadata": ["fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd20:ce::254"],
    "link-local": ["fe80::1", "febf::1"],
    "site-local": ["fec0::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "broadcast": ["255.255.255.255"],
    "reserved": ["240.0.0.1", "5f00::1", "4000::1", "1000::1"],
    "reserved for protocols": ["192.0.0.1", "2001:10::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255"],
    "6to4 relay": ["192.88.99.1"],
    "IPv4-compatible": ["::127.0.0.1", "::8.8.8.8"],
    "IPv4-translated": ["::ffff:0:127.0.0.1"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1"],
    "Teredo": ["2001:0:7f00:1::"],
    "discard": ["100::1"],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    """Addresses of the public internet, also those beside a special range, may be contacted."""
    assert judged("https://example.com/a.jpg", address) is None


@pytest.mark.parametrize(("name", "address"), [(name, one) for name, found in SPECIAL.items() for one in found])
def test_special_addresses_are_refused(name: str, address: str) -> None:
    """Each kind of special address is refused, with the kind and without the address."""
    target = parse_target("http://example.com/")
    assert isinstance(target, Target)
    refusal = NetworkRules(NetworkPlan()).judge(target, [ipaddress.ip_address(address)])
    assert refusal is not None
    assert refusal.code == "ssrf.address"
    assert f"({name})" in refusal.why
    assert address not in refusal.why


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0"])
def test_an_ipv4_address_in_an_ipv6_one_is_judged_as_itself(address: str) -> None:
    """An IPv4-mapped address is refused with what is inside it; a public one inside passes, for a connection goes there."""
    assert judged("http://example.com/", f"::ffff:{address}") == "ssrf.address"
    assert judged("http://example.com/", "::ffff:8.8.8.8") is None
    assert judged("http://example.com/", f"::ffff:{address}", deny=[address]) == "ssrf.denied"


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
@example(ipaddress.ip_address("192.0.0.9"))
@example(ipaddress.ip_address("2001:1::1"))
def test_nothing_that_python_calls_private_passes(address: Any) -> None:
    """The table refuses all that the standard library calls private, link-local, multicast, reserved or unspecified."""
    inner = getattr(address, "ipv4_mapped", None) or address
    special = (inner.is_private, inner.is_link_local, inner.is_multicast, inner.is_reserved, inner.is_unspecified)
    if any(special):
        assert special_range(address) is not None


@pytest.mark.parametrize("row", RANGES, ids=lambda row: f"{row.network} {row.name}")
def test_the_ends_of_each_range_are_special(row: Any) -> None:
    """First and last address of every row are refused."""
    assert special_range(row.network[0]) is not None
    assert special_range(row.network[-1]) is not None


def test_one_private_answer_spoils_the_public_ones() -> None:
    """A name that resolves to a public and a private address is refused, in either order."""
    assert judged("http://example.com/", "8.8.8.8", "10.0.0.1") == "ssrf.address"
    assert judged("http://example.com/", "10.0.0.1", "8.8.8.8") == "ssrf.address"
    assert judged("http://example.com/", "8.8.8.8", "10.0.0.1", allow=["10.0.0.1"]) is None


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "017700000001", "127.0.0.01", "127.0.0.1.",
        "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021",
        "127%2e0%2e0%2e1", "%31%32%37.0.0.1", "[::1", "[::1%lo]", "[127.0.0.1]",
        "ex\u0430mple.com",
        "example.com\\@127.0.0.1", "a@b@127.0.0.1", "example.com ", "exa mple.com", "example.com\t",
        "example..com", ".example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:8o", "",
        "[fe80::1%25lo]",
        "0x7f.0.0.0x1", "1.2.3", "256.1.1.1", "0x",
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(host: str) -> None:
    """Unusual spellings of addresses, and hosts that two parsers may read differently, are no addresses at all."""
    assert judged(f"http://{host}/a.jpg", "8.8.8.8", allow=["0.0.0.0/0", "::/0"]) == "ssrf.url"


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://8.8.8.8/_x", "ftp://8.8.8.8/a", "unix:///run/docker.sock", "ldap://8.8.8.8/",
            "dict://8.8.8.8:11211/stat", "http+unix://%2Frun%2Fdocker.sock/x", "s3://bucket/key", "data:image/png;base64,AA",
            "javascript:alert(1)", "smb://8.8.8.8/a", "HTTPX://8.8.8.8/"]
)  # fmt: skip
def test_other_schemes_are_refused(url: str) -> None:
    """Whatever is not http or https is refused for its scheme, whoever is allowed."""
    assert judged(url, allow=["0.0.0.0/0"]) == "ssrf.scheme"


@pytest.mark.parametrize(
    "url", ["http:/8.8.8.8/", "http:8.8.8.8", "http:///8.8.8.8/", "//8.8.8.8/", "8.8.8.8", "", "http://"]
)
def test_half_an_address_is_refused(url: str) -> None:
    """What libcurl would mend is refused instead."""
    assert judged(url) == "ssrf.url"


def test_what_a_plain_address_leads_to() -> None:
    """Scheme, host, port and user of an address are read as everyone reads them."""
    assert parse_target("HTTP://user:pass@Example.COM:8080/a?b#c") == Target("http", "example.com", 8080, None, True)
    assert parse_target("https://[2606:4700::1111]?x") == Target(
        "https", "2606:4700::1111", 443, ipaddress.ip_address("2606:4700::1111"), False
    )
    # The @ of a path or a query is no user.
    assert parse_target("http://1.2.3.4/@127.0.0.1") == Target(
        "http", "1.2.3.4", 80, ipaddress.ip_address("1.2.3.4"), False
    )
    assert parse_target("http://a?@127.0.0.1/") == Target("http", "a", 80, None, False)


@pytest.mark.parametrize("port", [1, 22, 25, 6379, 8000, 11211])
def test_other_ports_are_refused(port: int) -> None:
    """Public servers are contacted on the usual ports alone, unless the Plan or an entry says otherwise."""
    url = f"http://example.com:{port}/"
    assert judged(url, "8.8.8.8") == "ssrf.port"
    assert judged(url, "8.8.8.8", ports=[port]) is None
    assert judged(url, "8.8.8.8", allow=["8.8.8.8"]) is None
    assert judged(url, "8.8.8.8", allow=[f"example.com:{port}"]) is None
    assert judged(url, "8.8.8.8", allow=["8.8.8.8:443"]) == "ssrf.port"
    assert judged(url, "8.8.8.8", allow=["example.com:443"]) == "ssrf.port"


@pytest.mark.parametrize(
    ("entry", "url", "address", "passes"),
    [
        ("127.0.0.1", "http://localhost:5000/", "127.0.0.1", True),
        ("127.0.0.1", "http://localhost:5000/", "127.0.0.2", False),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/", "127.0.0.1", True),
        ("127.0.0.1:5000", "http://127.0.0.1:5001/", "127.0.0.1", False),
        ("10.0.0.0/8", "http://store/", "10.200.0.1", True),
        ("::ffff:10.0.0.0/104", "http://store/", "10.200.0.1", True),
        ("[::1]:8000", "http://[::1]:8000/", "::1", True),
        ("fd12::/32", "http://store/", "fd12::5", True),
        ("localhost", "http://localhost:5000/", "127.0.0.1", True),
        ("localhost", "http://other:5000/", "127.0.0.1", False),
        ("Store.Internal", "http://store.INTERNAL/", "10.0.0.1", True),
        (".internal", "http://store.internal/", "10.0.0.1", True),
        (".internal", "http://internal/", "10.0.0.1", False),
        (".internal", "http://evilinternal/", "10.0.0.1", False),
        ("store.internal", "http://evil.store.internal/", "10.0.0.1", False),
        # A name leads to no metadata service, whoever runs its name server; a network does.
        ("store.internal", "http://store.internal/", "169.254.169.254", False),
        ("store.internal", "http://store.internal/", "fd00:ec2::254", False),
        (".internal", "http://store.internal/", "224.0.0.1", False),
        ("169.254.169.254", "http://metadata/", "169.254.169.254", True),
    ],
)  # fmt: skip
def test_allow(entry: str, url: str, address: str, passes: bool) -> None:
    """An entry opens what it names and nothing beside it."""
    assert (judged(url, address, allow=[entry]) is None) is passes


@pytest.mark.parametrize("entry", ["bad.example.com", ".example.com", "8.8.8.0/24", "8.8.8.8:80", "bad.example.com:80"])
def test_deny_beats_allow(entry: str) -> None:
    """What deny names stays out although allow names it too."""
    url = "http://bad.example.com/"
    assert judged(url, "8.8.8.8", deny=[entry], allow=["bad.example.com", "8.8.8.8"]) == "ssrf.denied"


def test_only_what_is_allowed() -> None:
    """With public = false nothing but the entries of allow is contacted."""
    only: dict[str, Any] = {"public": False, "allow": ["img.example.com", ".cdn.example.com:443", "10.0.0.0/8"]}
    assert judged("https://img.example.com/", "8.8.8.8", **only) is None
    assert judged("https://a.cdn.example.com/", "8.8.8.8", **only) is None
    assert judged("http://a.cdn.example.com/", "8.8.8.8", **only) == "ssrf.not_allowed"
    assert judged("https://example.com/", "8.8.8.8", **only) == "ssrf.not_allowed"
    assert judged("https://store/", "10.0.0.1", **only) is None
    assert judged("https://store/", "10.0.0.1", "8.8.8.8", **only) == "ssrf.not_allowed"
    assert judged("https://example.com/", "8.8.8.8", public=False) == "ssrf.not_allowed"


def test_user_names_go_to_allowed_hosts_alone() -> None:
    """A user name in an address is refused unless the operator named the host or its network."""
    url = "https://user:secret@store.example.com/"
    assert judged(url, "8.8.8.8") == "ssrf.credentials"
    assert judged(url, "8.8.8.8", allow=["store.example.com"]) is None
    assert judged(url, "8.8.8.8", allow=["8.8.8.8"]) is None
    assert (
        judged("https://store.example.com@evil.example.com/", "8.8.8.8", allow=["store.example.com"])
        == "ssrf.credentials"
    )


def test_schemes_can_be_narrowed() -> None:
    """With schemes = ["https"] plain HTTP is refused, also to allowed hosts."""
    assert judged("http://example.com/", "8.8.8.8", schemes=["https"], allow=["example.com"]) == "ssrf.scheme"
    assert judged("https://example.com/", "8.8.8.8", schemes=["https"]) is None


def test_through_a_proxy_the_name_alone_is_judged() -> None:
    """Without addresses, scheme, host and port still hold."""
    assert judged("https://example.com/", proxy=True) is None
    assert judged("https://example.com:22/", proxy=True, allow=["10.0.0.0/8"]) == "ssrf.port"
    assert judged("https://example.com/", proxy=True, deny=["example.com"]) == "ssrf.denied"
    assert judged("https://other.example/", proxy=True, public=False, allow=["example.com"]) == "ssrf.not_allowed"
    assert judged("http://127.0.0.1/", proxy=True) == "ssrf.address"


def test_the_operators_own_word() -> None:
    """An address that the operator wrote is only held to deny and schemes."""
    ours = NetworkPlan(public=False, deny=["old.example.com"]).relax_for_operator()
    rules = NetworkRules(ours)
    for url, address in (("http://localhost:9/", "127.0.0.1"), ("http://u:p@[::1]:22/", "::1")):
        target = parse_target(url)
        assert isinstance(target, Target)
        assert rules.judge(target, [ipaddress.ip_address(address)]) is None
    denied = parse_target("http://old.example.com/")
    assert isinstance(denied, Target)
    assert rules.judge(denied, [ipaddress.ip_address("8.8.8.8")]) is not None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"allow": ["http://example.com"]}, "allow = 'http://example.com' is not possible; allowed: HOST, .DOMAIN"),
        ({"allow": ["10.0.0.1/8"]}, "no bit set beyond BITS"),
        ({"allow": ["example.com/path"]}, "no scheme, no path"),
        ({"allow": ["*.example.com"]}, "HOST, .DOMAIN"),
        ({"allow": ["2130706433"]}, "HOST, .DOMAIN"),
        ({"allow": ["host:0"]}, "a port from 1 to 65535"),
        ({"allow": ["[host]:1"]}, "HOST, .DOMAIN"),
        ({"allow": [""]}, "HOST, .DOMAIN"),
        ({"deny": [5]}, "deny = 5 is not possible; allowed: hosts and networks"),
        ({"ports": ["80"]}, "ports = '80' is not possible; allowed: whole numbers from 1 to 65535"),
        ({"ports": [True]}, "ports = True is not possible"),
        ({"ports": []}, "ports = [] is not possible; allowed: at least one"),
        ({"schemes": ["ftp"]}, "schemes = 'ftp' is not possible; allowed: http and https"),
        ({"files": ["photos"]}, "files = 'photos' is not possible; allowed: absolute folders"),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], message: str) -> None:
    """An entry that means nothing is told before the first job, with what is allowed."""
    with pytest.raises(SettingsError) as caught:
        NetworkPlan(**setting)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8000/results", "127.0.0.1"),
        ("http://store.internal/a", "10.0.0.1"),
        ("http://169.254.169.254/", "169.254.169.254"),
        ("http://[::1]:9000/", "::1"),
        ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1"),
        ("https://example.com:9443/", "8.8.8.8"),
    ],
)
def test_what_a_refusal_advises_is_enough(url: str, address: str) -> None:
    """The entry that a refusal names lets the same address pass, without a second refusal."""
    target = parse_target(url)
    assert isinstance(target, Target)
    found = [ipaddress.ip_address(address)]
    refusal = NetworkRules(NetworkPlan()).judge(target, found)
    assert refusal is not None
    entry = refusal.why.partition("--allow ")[2].split()[0]
    assert NetworkRules(NetworkPlan(allow=[entry])).judge(target, found) is None


@pytest.mark.parametrize("allow", [[], ["store.internal"]])
def test_a_host_is_not_said_to_be_allowed_where_no_name_helps(allow: list[str]) -> None:
    """A host on a metadata address cannot be allowed by name, and the refusal says so."""
    target = parse_target("http://store.internal/")
    assert isinstance(target, Target)
    refusal = NetworkRules(NetworkPlan(allow=allow)).judge(target, [ipaddress.ip_address("169.254.169.254")])
    assert refusal is not None
    assert "never allowed there by name, only as a network" in refusal.why
    assert "--allow store.internal" not in refusal.why
