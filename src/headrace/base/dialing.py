"""Holds libcurl to the addresses that were judged: a name is resolved once, and what is dialled is what was looked at.

How this works. Before a request, `Dialer.admit` judges where it goes: once per origin and minute, so that a request over a
connection that is open costs a look into a dictionary. The addresses are given to libcurl (CURLOPT_RESOLVE), and wherever it
opens a connection, `_Gate.open_socket` (CURLOPT_OPENSOCKETFUNCTION) compares the address it is about to dial with them, before
a packet is sent. A second answer of the name server therefore has no effect.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, NamedTuple

import pycurl

from headrace.base.address_ranges import Address
from headrace.base.look_ups import look_up
from headrace.base.network_rules import NOT_PLAIN, NetworkRules, Refusal, Target, origin, parse_addresses, parse_target

#: How long a judgement holds; libcurl's own default for what it has resolved.
JUDGED_SECONDS = 60
#: Origins remembered by one client.
_MOST_ORIGINS = 1024
_STRAYED = Refusal("ssrf.pin", "the connection would have gone to another address than the one judged")


class Refused(Exception):
    """The rules forbid the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


def _heed(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise Refused(refusal)


class _Resolved(NamedTuple):
    until: float
    addresses: tuple[Address, ...]


class _Judged(NamedTuple):
    place: tuple[str, int]
    resolved: _Resolved


class Dialer:
    """Decides what one curl handle may connect to. Not thread-safe, as the handle.

    Args:
        curl: The handle; its options for names, sockets and proxies are set here and nowhere else.
        rules: Who may be contacted.
    """

    def __init__(self, curl: Any, rules: NetworkRules) -> None:
        self._curl = curl
        self._rules = rules
        # libcurl knows addresses by host and port, and several origins (http, https, with a user) may share those.
        self._resolved: dict[tuple[str, int], _Resolved] = {}
        self._judged: dict[str, _Judged] = {}
        self._gate = _Gate()
        if rules.proxy:
            curl.setopt(pycurl.NOPROXY, "")
            return
        curl.setopt(pycurl.PROXY, "")  # else libcurl takes one from the environment, and that one resolves
        # Ours must not outlive theirs: libcurl would resolve for itself (and the gate refuse what it found).
        curl.setopt(pycurl.DNS_CACHE_TIMEOUT, 2 * JUDGED_SECONDS)
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._gate.open_socket)
        curl.setopt(pycurl.SOCKOPTFUNCTION, _set_socket_options)

    def admit(self, url: str, seconds: float) -> None:
        """Let the next request go to an address, with a time limit for the name look-up in seconds.

        Raises:
            Refused: If the rules forbid it.
            Unresolved: If its name cannot be resolved in time.
        """
        beginning = origin(url)
        if beginning is None:
            target = parse_target(url)
            raise Refused(target if isinstance(target, Refusal) else NOT_PLAIN)
        now = time.monotonic()
        judged = self._judged.get(beginning)
        if judged is None or judged.resolved.until <= now or self._resolved[judged.place] is not judged.resolved:
            judged = self._judge(beginning, now, seconds)
        self._gate.admitted = judged.resolved.addresses
        self._gate.strayed = False

    def finish_request(self) -> Refusal | None:
        """Return what was refused while the request ran, and tidy up."""
        self._gate.close_sockets()
        return _STRAYED if self._gate.strayed else None

    def _judge(self, beginning: str, now: float, seconds: float) -> _Judged:
        target = parse_target(beginning)
        if isinstance(target, Refusal):
            raise Refused(target)
        _heed(self._rules.judge_name(target))
        place = (target.host, target.port)
        resolved = known = self._resolved.get(place)
        if resolved is None or resolved.until <= now:
            resolved = _Resolved(now + JUDGED_SECONDS, self._addresses(target, seconds))
        _heed(self._rules.judge(target, resolved.addresses))
        if len(self._judged) >= _MOST_ORIGINS:
            self._judged.clear()
            self._resolved.clear()
        if resolved is not known and target.address is None and resolved.addresses:
            self._curl.setopt(pycurl.RESOLVE, [_resolve_entry(target, resolved.addresses)])  # taken by the next request
        self._resolved[place] = resolved
        judged = self._judged[beginning] = _Judged(place, resolved)
        return judged

    def _addresses(self, target: Target, seconds: float) -> tuple[Address, ...]:
        if target.address is not None:
            return (target.address,)
        return () if self._rules.proxy else look_up(target.host, target.port, seconds)


class _Gate:
    """What libcurl asks before it dials. Knows nothing of the handle, so that the two are no cycle and go with their worker."""

    def __init__(self) -> None:
        self.admitted: tuple[Address, ...] = ()
        self.strayed = False
        self._sockets: list[socket.socket] = []

    def open_socket(self, purpose: int, wanted: Any) -> Any:
        """Return a socket for an address that was judged, else what tells libcurl not to connect."""
        family, kind, protocol, address = wanted
        try:
            known = family in (socket.AF_INET, socket.AF_INET6) and parse_addresses([address[0]])[0] in self.admitted
        except ValueError:
            known = False
        if not known:
            self.strayed = True
            return pycurl.SOCKET_BAD
        try:
            opened = socket.socket(family, kind, protocol)
        except OSError:  # libcurl fails with a code of its own, and who asked finds out why
            return pycurl.SOCKET_BAD
        self._sockets.append(opened)
        return opened

    def close_sockets(self) -> None:
        """Close what libcurl has made copies of."""
        while self._sockets:
            self._sockets.pop().close()


def _resolve_entry(target: Target, addresses: tuple[Address, ...]) -> str:
    # The sign: forget it like any other answer.
    texts = ",".join(f"[{address}]" if address.version == 6 else str(address) for address in addresses)
    return f"+{target.host}:{target.port}:{texts}"


def _set_socket_options(descriptor: int, purpose: int) -> int:
    # pycurl hands libcurl a plain copy of the socket, which child processes would inherit.
    os.set_inheritable(descriptor, False)
    return int(pycurl.SOCKOPT_OK)
