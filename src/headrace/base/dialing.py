"""Holds libcurl to the addresses that were judged: a name is resolved once, and what is dialled is what was looked at.

How this works. Before a request, `Dialer.find` or `Dialer.judging` judges where it goes: once per origin and minute, so that a
request over a connection that is open costs a look into a dictionary. The addresses are given to libcurl (CURLOPT_RESOLVE),
and wherever it opens a connection, `Gate.open_socket` (CURLOPT_OPENSOCKETFUNCTION) compares the address it is about to dial
with them, before a packet is sent. A second answer of the name server therefore has no effect.

The handles of one client share what was resolved, as they share libcurl's own memory of it where one thread carries their
requests: else the addresses that one handle brings would be strange to the next.
"""

from __future__ import annotations

import errno
import os
import socket
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pycurl

from headrace.base.address_ranges import Address
from headrace.base.calls import Call, LookUp
from headrace.base.network_rules import NOT_PLAIN, NetworkRules, Refusal, Target, origin, parse_addresses, parse_target

#: How long a judgement holds; libcurl's own default for what it has resolved.
JUDGED_SECONDS = 60
#: Origins remembered by one client.
_MOST_ORIGINS = 1024
STRAYED = Refusal("ssrf.pin", "the connection would have gone to another address than the one judged")


class Refused(Exception):
    """The rules forbid the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


def _heed(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise Refused(refusal)


@dataclass(slots=True, eq=False)
class _Resolved:
    """What a host's name was resolved to."""

    until: float
    addresses: tuple[Address, ...]
    entry: str | None
    """What libcurl is to be given before the next request; None once it was, and where there is nothing to give."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """An origin that may be contacted, and where."""

    target: Target
    place: tuple[str, int]
    """Host and port, by which libcurl knows addresses."""
    resolved: _Resolved

    def give_to(self, curl: Any) -> bool:
        """Have the next request of a handle bring libcurl the addresses; return whether that was still to be done."""
        if self.resolved.entry is None:
            return False
        curl.setopt(pycurl.RESOLVE, [self.resolved.entry])
        self.resolved.entry = None
        return True

    def give_again(self) -> None:
        """Note that the request that brought libcurl the addresses may never have begun."""
        self.resolved.entry = _resolve_entry(self.target, self.resolved.addresses)


class Dialer:
    """Decides what the handles of one client may connect to. Not thread-safe.

    Args:
        rules: Who may be contacted.
    """

    def __init__(self, rules: NetworkRules) -> None:
        self._rules = rules
        # libcurl knows addresses by host and port, and several origins (http, https, with a user) may share those.
        self._resolved: dict[tuple[str, int], _Resolved] = {}
        self._judged: dict[str, Judged] = {}

    def guard(self, curl: Any) -> Gate:
        """Return what a new handle dials through; its options for sockets and proxies are set here and nowhere else."""
        gate = Gate(self)
        curl.setopt(pycurl.SOCKOPTFUNCTION, gate.set_up_socket)
        if self._rules.proxy:
            curl.setopt(pycurl.NOPROXY, "")
            curl.setopt(pycurl.OPENSOCKETFUNCTION, gate.open_unjudged)
            return gate
        curl.setopt(pycurl.PROXY, "")  # else libcurl takes one from the environment, and that one resolves
        # Ours must not outlive theirs: libcurl would resolve for itself (and the gate refuse what it found).
        curl.setopt(pycurl.DNS_CACHE_TIMEOUT, 2 * JUDGED_SECONDS)
        curl.setopt(pycurl.OPENSOCKETFUNCTION, gate.open_socket)
        return gate

    def find(self, url: str, now: float) -> Judged | None:
        """Return the judgement of an address if it still holds; `now` is seconds of `time.monotonic`.

        Raises:
            Refused: If the address is not plain.
        """
        # An address that goes on with a slash after an origin has that origin: nothing in one contains a slash but the two
        # before the host, which `find` passes by. So most need not be matched.
        end = url.find("/", 8)
        judged = self._judged.get(url[:end]) if end > 0 else None
        if judged is None:
            beginning = origin(url)
            if beginning is None:
                target = parse_target(url)
                raise Refused(target if isinstance(target, Refusal) else NOT_PLAIN)
            judged = self._judged.get(beginning)
            if judged is None:
                return None
        resolved = judged.resolved
        if resolved.until <= now or self._resolved.get(judged.place) is not resolved:
            return None
        return judged

    def judging(self, url: str, now: float, seconds: float) -> Call[Judged]:
        """Judge an address that `find` does not know, with a time limit for the name look-up in seconds.

        Raises:
            Refused: If the rules forbid it.
            Unresolved: If its name cannot be resolved in time.
        """
        beginning = origin(url) or url
        target = parse_target(beginning)
        if isinstance(target, Refusal):
            raise Refused(target)
        _heed(self._rules.judge_name(target))
        resolved = self._current(target)
        if resolved is None or resolved.until <= now:
            resolved = yield from self._resolving(target, now, seconds)
        _heed(self._rules.judge(target, resolved.addresses))
        if len(self._judged) >= _MOST_ORIGINS:
            self._judged.clear()
            self._resolved.clear()
        place = (target.host, target.port)
        self._resolved[place] = resolved
        judged = self._judged[beginning] = Judged(target, place, resolved)
        return judged

    def admits(self, judged: Judged, address: Address) -> bool:
        """Return whether an origin that was judged may be dialled at an address.

        Its name may have been resolved again since, for another request: libcurl then dials what was found last.
        """
        if address in judged.resolved.addresses:
            return True
        current = self._current(judged.target)
        return (
            current is not None
            and address in current.addresses
            and self._rules.judge(judged.target, current.addresses) is None
        )

    def _current(self, target: Target) -> _Resolved | None:
        return self._resolved.get((target.host, target.port))

    def _resolving(self, target: Target, now: float, seconds: float) -> Call[_Resolved]:
        if target.address is not None:
            return _Resolved(now + JUDGED_SECONDS, (target.address,), None)
        if self._rules.proxy:
            return _Resolved(now + JUDGED_SECONDS, (), None)
        addresses = yield LookUp(target.host, target.port, seconds)
        current = self._current(target)
        if current is not None and current.until > now:
            return current  # another request was quicker
        return _Resolved(now + JUDGED_SECONDS, addresses, _resolve_entry(target, addresses))


class Gate:
    """What libcurl asks before it dials for one handle.

    Knows nothing of the handle, so that the two are no cycle and go with their client.

    Attributes:
        on_open: See `calls.OpensSockets`, as `opened`.
        has_strayed: Whether the request would have gone elsewhere than to what was judged.
        unopened: Why no socket could be opened the last time, as `errno` has it; 0: one could.
    """

    def __init__(self, dialer: Dialer) -> None:
        self.on_open: Callable[[int], object] | None = None
        self.has_strayed = False
        self.opened = -1
        self.unopened = 0
        self._dialer = dialer
        self._judged: Judged | None = None

    def admit(self, judged: Judged) -> None:
        """Let the next request go where an origin may go."""
        self._judged = judged
        self.has_strayed = False
        self.opened = -1
        self.unopened = 0

    def open_socket(self, purpose: int, wanted: Any) -> Any:
        """Return a socket for an address that may be dialled, else what tells libcurl not to connect."""
        family, _, _, address = wanted
        try:
            known = family in (socket.AF_INET, socket.AF_INET6) and self._admits(parse_addresses([address[0]])[0])
        except ValueError:
            known = False
        if not known:
            self.has_strayed = True
            return pycurl.SOCKET_BAD
        return self.open_unjudged(purpose, wanted)

    def open_unjudged(self, purpose: int, wanted: Any) -> Any:
        """Return a socket for any address, else what tells libcurl not to connect."""
        self.unopened = errno.EMFILE  # until libcurl has it: pycurl takes a copy, which takes a second number
        try:
            return _Lent(socket.socket(*wanted[:3]).detach())
        except OSError as error:  # libcurl fails with a code of its own
            self.unopened = error.errno or 0
            return pycurl.SOCKET_BAD

    def set_up_socket(self, descriptor: int, purpose: int) -> int:
        """Set what holds for every socket of libcurl's."""
        # pycurl hands libcurl a plain copy of the socket, which child processes would inherit.
        os.set_inheritable(descriptor, False)
        self.opened = descriptor
        self.unopened = 0
        if self.on_open is not None:
            self.on_open(descriptor)
        return int(pycurl.SOCKOPT_OK)

    def _admits(self, address: Address) -> bool:
        return self._judged is not None and self._dialer.admits(self._judged, address)


class _Lent:
    """A socket of which pycurl takes a copy, and which goes as soon as it has: an epoll keeps a socket with two descriptors."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


def encode_ascii(url: str) -> str:
    """Return an address as it is contacted: what is beyond ASCII is percent-encoded."""
    return url if url.isascii() else quote(url, safe=string.punctuation)


def _resolve_entry(target: Target, addresses: tuple[Address, ...]) -> str:
    # The sign: forget it like any other answer.
    texts = ",".join(f"[{address}]" if address.version == 6 else str(address) for address in addresses)
    return f"+{target.host}:{target.port}:{texts}"
