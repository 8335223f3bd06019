"""The address ranges that are not the public internet, one row each.

Written out instead of asking `ipaddress.is_global`: that calls 224.0.0.1, 64:ff9b::7f00:1 (NAT64 of 127.0.0.1) and
2002:7f00:1:: (6to4 of it) global, and its answers differ between Python versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class AddressRange:
    """One range and what it is for."""

    network: Network
    name: str
    is_site: bool = False
    """Whether servers of one's own live there: a host that is allowed by name may be there. The others never, by name."""


def _rows(*rows: tuple[str, str], is_site: bool = False) -> list[AddressRange]:
    return [AddressRange(ip_network(network), name, is_site) for network, name in rows]


#: The first row that holds an address says what it is: the narrow ones stand first. IANA's special-purpose registries of IPv4
#: and IPv6 (RFC 6890 and its updates, as of 2026-11), multicast, what embeds an IPv4 address, and where clouds keep
#: credentials.
RANGES = (
    *_rows(
        ("169.254.0.0/16", "link-local and cloud metadata"),
        ("100.100.100.200/32", "cloud metadata"),  # Alibaba
        ("168.63.129.16/32", "cloud metadata"),  # Azure
        ("192.0.0.192/32", "cloud metadata"),  # Oracle
        ("fd00:ec2::/32", "cloud metadata"),  # Amazon
        ("fd20:ce::/32", "cloud metadata"),  # Google
    ),
    *_rows(
        ("127.0.0.0/8", "loopback"),
        ("::1/128", "loopback"),
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("fc00::/7", "unique local"),
        is_site=True,
    ),
    *_rows(
        ("0.0.0.0/8", "unspecified"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::/96", "IPv4-compatible"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/64", "discard"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        # All that is assigned to hosts of the public internet is in 2000::/3.
        ("::/3", "reserved"),
        ("4000::/2", "reserved"),
        ("8000::/1", "reserved"),
    ),
)


def unmap_address(address: Address) -> Address:
    """Return the IPv4 address inside an IPv4-mapped one (a connection goes there), else the address itself, without zone."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address


def special_range(address: Address) -> AddressRange | None:
    """Return the row that an address belongs to; None for one of the public internet."""
    address = unmap_address(address)
    return next((row for row in RANGES if row.network.version == address.version and address in row.network), None)
