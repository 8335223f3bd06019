"""Who may be contacted on a job's word: the operator's rules, and a judgement that has no side effects.

A job names an address, and its sender may be a stranger. `parse_target` takes from the address what will be contacted,
`NetworkRules.judge_name` looks at that before a name is resolved, `NetworkRules.judge` at all the addresses it resolves to.
`headrace.base.dialing` holds the connection to what was judged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from headrace.base.address_ranges import Address, AddressRange, Network, special_range, unmap_address
from headrace.base.settings import check

#: Ports of public servers.
DEFAULT_PORTS = (80, 443, 8080, 8443)
_DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """Which addresses jobs may name, for downloads and for callbacks.

    An entry of `allow` and `deny` is a host (`images.example.com`), every host below one (`.example.com`), an address or a
    network (`10.1.0.0/16`), each with a port or without (`10.1.2.3:9000`, `[::1]:8000`). `deny` wins over `allow`.
    """

    allow: list[str] = field(default_factory=list)
    """Targets that may be contacted although they are private or on another port; with `public = false`, the only ones."""
    deny: list[str] = field(default_factory=list)
    """Targets that may never be contacted."""
    public: bool = True
    """Whether the public internet may be contacted beyond what `allow` names."""
    ports: list[int] = field(default_factory=lambda: list(DEFAULT_PORTS))
    """Ports of the public internet that may be contacted."""
    schemes: list[str] = field(default_factory=lambda: ["http", "https"])
    """Schemes that may be used."""
    proxy: bool = False
    """Whether all goes through the proxy that the environment names (`https_proxy`, ...). The proxy then resolves names,
    and only it can judge the addresses."""
    files: list[str] | None = None
    """Folders in which jobs may name files; None: none for jobs from a queue on the network and for file: addresses, any for
    the rest. What is in /proc, /sys or /dev only where a folder in there is named."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("allow", "deny"):
            for text in getattr(self, key):
                check(isinstance(text, str), key, text, "hosts and networks, written as text")
                _Entry.parse(text, key)
        check(bool(self.ports), "ports", self.ports, "at least one; public = false leaves only what allow names")
        for port in self.ports:
            right = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
            check(right, "ports", port, "whole numbers from 1 to 65535")
        for scheme in self.schemes:
            check(scheme in _DEFAULT_PORT, "schemes", scheme, "http and https")
        for folder in self.files or ():
            check(isinstance(folder, str) and folder.startswith("/"), "files", folder, "absolute folders")

    def allowing(self, entries: Iterable[str]) -> NetworkPlan:
        """Return these rules with further entries of `allow`.

        Raises:
            SettingsError: If an entry is none.
        """
        return dataclasses.replace(self, allow=[*self.allow, *entries])

    def relax_for_operator(self) -> NetworkPlan:
        """Return the rules for an address that the operator wrote: only `deny` and `schemes` hold."""
        return self.allowing(["0.0.0.0/0", "::/0"])


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something may not be contacted."""

    code: str
    """Stable: `ssrf.url`, `ssrf.scheme`, `ssrf.denied`, `ssrf.not_allowed`, `ssrf.port`, `ssrf.address`, `ssrf.credentials`,
    `ssrf.downgrade`, `ssrf.pin`."""
    why: str


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an address."""

    scheme: str
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    address: Address | None
    """Where the host is written as an address."""
    has_credentials: bool


# Narrower than RFC 3986, so that no two parsers can read it differently: no backslash, no percent sign and nothing beyond ASCII
# in the host, one @ at most, digits in the port.
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:(?P<user>[^/?#\\@\s]*)@)?"
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::(?P<port>[0-9]{1,5}))?(?=[/?#]|\Z)",
    re.ASCII | re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=:)", re.ASCII | re.IGNORECASE)
# Such a host is an address to every resolver: 2130706433, 0x7f.1, 0177.0.0.1 are all 127.0.0.1.
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)", re.ASCII)
NOT_PLAIN = Refusal(
    "ssrf.url",
    "it is not written plainly; expected scheme://host:port/path, the host in ASCII (xn--... for others), "
    "an IP address in its usual form",
)


def origin(url: str) -> str | None:
    """Return the beginning of an address that says what is contacted; None where that is not plain."""
    found = _URL.match(url)
    return found.group() if found else None


def parse_target(url: str) -> Target | Refusal:
    """Return what an address leads to, or why that cannot be said."""
    found = _URL.match(url)
    if found is None:
        scheme = _SCHEME.match(url)
        return (
            _wrong_scheme(scheme.group().lower())
            if scheme and scheme.group().lower() not in _DEFAULT_PORT
            else NOT_PLAIN
        )
    scheme_name, host = found["scheme"].lower(), found["host"].lower()
    if scheme_name not in _DEFAULT_PORT:
        return _wrong_scheme(scheme_name)
    address: Address | None = None
    if host.startswith("[") or _ENDS_IN_NUMBER.fullmatch(host):
        try:
            address = IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(host)
        except ValueError:
            return NOT_PLAIN
        host = host.strip("[]")
    port = int(found["port"] or _DEFAULT_PORT[scheme_name])
    if not 0 < port < 65536:
        return NOT_PLAIN
    return Target(scheme_name, host, port, address, has_credentials=found["user"] is not None)


def _wrong_scheme(scheme: str) -> Refusal:
    return Refusal("ssrf.scheme", f"{scheme[:20]}: is not fetched; expected http or https")


class NetworkRules:
    """The rules, ready to judge. Immutable; any thread.

    Args:
        plan: As the operator wrote them.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._allow = [_Entry.parse(text, "allow") for text in plan.allow]
        self._deny = [_Entry.parse(text, "deny") for text in plan.deny]
        self.proxy = plan.proxy

    def judge_name(self, target: Target) -> Refusal | None:
        """Return why a target may not be contacted, as far as that can be said before its name is resolved."""
        if target.scheme not in self._plan.schemes:
            return Refusal("ssrf.scheme", f"{target.scheme}: is not among [network] schemes")
        if any(entry.names(target) for entry in self._deny):
            return Refusal("ssrf.denied", "[network] deny names it")
        if self._names(target) or any(entry.network and entry.takes(target.port) for entry in self._allow):
            return None  # known once it is resolved
        if not self._plan.public:
            return _NOT_ALLOWED
        if target.port not in self._plan.ports:
            return self._wrong_port(target)
        return _CREDENTIALS if target.has_credentials else None

    def judge_unresolved(self, url: str) -> Refusal | None:
        """Return why an address may not be contacted, as far as that can be said without looking its name up."""
        target = parse_target(url)
        if isinstance(target, Refusal):
            return target
        if target.address is not None or self.proxy:
            return self.judge(target, () if target.address is None else (target.address,))
        return self.judge_name(target)

    def judge(self, target: Target, addresses: Sequence[Address]) -> Refusal | None:
        """Return why a target that resolves to these addresses may not be contacted; one bad address spoils them all.

        No addresses: a proxy will resolve the name.
        """
        refusal = self.judge_name(target)
        if refusal is not None:
            return refusal
        is_named = self._names(target)
        if not addresses:
            return self._judge_unlisted(target, None, is_named)
        for address in map(unmap_address, addresses):
            if any(entry.holds(address, target.port) for entry in self._deny):
                return Refusal("ssrf.denied", "[network] deny names its network")
            if not any(entry.holds(address, target.port) for entry in self._allow):
                refusal = refusal or self._judge_unlisted(target, address, is_named)
        return refusal

    def _judge_unlisted(self, target: Target, address: Address | None, is_named: bool) -> Refusal | None:
        row = None if address is None else special_range(address)
        if is_named:
            return None if row is None or row.is_site else _special(target, row)
        if not self._plan.public:
            return _NOT_ALLOWED
        if row is not None:
            return _special(target, row)
        if target.port not in self._plan.ports:
            return self._wrong_port(target)
        return _CREDENTIALS if target.has_credentials else None

    def _names(self, target: Target) -> bool:
        return any(entry.names(target) for entry in self._allow)

    def _wrong_port(self, target: Target) -> Refusal:
        return Refusal(
            "ssrf.port",
            f"port {target.port} is not among [network] ports = {self._plan.ports}; to allow it: {_explain_allowing(target)}",
        )


_NOT_ALLOWED = Refusal("ssrf.not_allowed", "[network] allow does not name it, and public = false")
_CREDENTIALS = Refusal("ssrf.credentials", "it holds a user name, which only hosts in [network] allow may be sent")


def _special(target: Target, row: AddressRange) -> Refusal:
    way = "to allow it: " + _explain_allowing(target)
    if target.address is None and not row.is_site:
        way = "a host is never allowed there by name, only as a network: --allow NETWORK or [network] allow"
    return Refusal("ssrf.address", f"its host is no public one ({row.name}); {way}")


def _explain_allowing(target: Target) -> str:
    """Return how to allow a target, in the words of the job alone: its sender may read this."""
    host = f"[{target.host}]" if isinstance(target.address, IPv6Address) else target.host
    return f"--allow {host}:{target.port} or [network] allow"


_ENTRIES = "HOST, .DOMAIN, ADDRESS or NETWORK/BITS, with :PORT or without; no scheme, no path, no bit set beyond BITS"
_HOST_ENTRY = re.compile(r"\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII)
_WITH_PORT = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of `allow` or `deny`: a host, a domain (`.example.com`) or a network."""

    host: str | None
    network: Network | None
    port: int | None

    @classmethod
    def parse(cls, text: str, key: str) -> _Entry:
        found = _WITH_PORT.fullmatch(text)
        host, port = (found["bracketed"] or found["plain"], found["port"]) if found else (text, None)
        try:
            network = ip_network(host)
        except ValueError:
            name = host.lower()
            plain = _HOST_ENTRY.fullmatch(name) is not None and _ENDS_IN_NUMBER.fullmatch(name) is None
            check(plain and not (found and found["bracketed"]), key, text, _ENTRIES)
            network = None
        check(port is None or 0 < int(port) < 65536, key, text, "a port from 1 to 65535")
        if network is not None and isinstance(network.network_address, IPv6Address) and network.prefixlen >= 96:
            inner = network.network_address.ipv4_mapped
            network = ip_network(f"{inner}/{network.prefixlen - 96}") if inner is not None else network
        return cls(None if network else host.lower(), network, int(port) if port else None)

    def takes(self, port: int) -> bool:
        return self.port is None or self.port == port

    def names(self, target: Target) -> bool:
        if self.host is None or not self.takes(target.port):
            return False
        return target.host.endswith(self.host) if self.host.startswith(".") else target.host == self.host

    def holds(self, address: Address, port: int) -> bool:
        network = self.network
        return network is not None and self.takes(port) and address.version == network.version and address in network


def parse_addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """Return addresses as the system writes them, each once."""
    return tuple(dict.fromkeys(ip_address(text) for text in texts))
