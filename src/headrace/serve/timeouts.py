"""How long the client of a request waits, by the headers in which clients and proxies say so.

    Request-Timeout-Ms: 250                  clients of inference servers (Baseten's sends it, openai-python #3277 proposes it)
    X-Request-Timeout-Ms: 250                the same
    X-Envoy-Expected-Rq-Timeout-Ms: 250      Envoy, and meshes built on it, say what they allow
    Grpc-Timeout: 250m                       gRPC and its gateways; H, M, S, m, u, n after at most eight digits

Of several the shortest counts. The time begins with the request's first byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from headrace.base.errors import BadMessage

#: Longer times are cut to this one: nobody waits for a day.
_LONGEST_NS = 86_400 * 10**9
_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])")
_NANOSECONDS = {"H": 3_600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_MILLISECONDS = re.compile(r"([0-9]{1,12})(?:\.[0-9]*)?")


def read_deadline(headers: Mapping[str, str], received_ns: int) -> int | None:
    """Return when a request's client waits no longer, ns of the clock of `received_ns`; None: it does not say.

    Args:
        headers: {name in lower case: value}.
        received_ns: When its first byte came.

    Raises:
        BadMessage: If a header is no such time (`message.timeout`).
    """
    if _HEADERS.keys().isdisjoint(headers):
        return None
    times = [read(name, headers[name]) for name, read in _HEADERS.items() if name in headers]
    return received_ns + min(_LONGEST_NS, *times)


def _read_milliseconds(name: str, text: str) -> int:
    found = _MILLISECONDS.fullmatch(text.strip())
    return _positive(name, text, round(float(found[0]) * 1e6) if found else 0, "milliseconds such as 250")


def _read_grpc(name: str, text: str) -> int:
    found = _GRPC.fullmatch(text.strip())
    return _positive(name, text, int(found[1]) * _NANOSECONDS[found[2]] if found else 0, "a time such as 250m or 2S")


def _positive(name: str, text: str, nanoseconds: int, expected: str) -> int:
    if nanoseconds <= 0:
        raise BadMessage(
            f"message.timeout: the header {name} is {text!r:.40}; expected {expected}, more than 0; "
            "leave it out to have the service's own deadline"
        )
    return nanoseconds


_HEADERS: Mapping[str, Callable[[str, str], int]] = {
    "request-timeout-ms": _read_milliseconds,
    "x-request-timeout-ms": _read_milliseconds,
    "x-envoy-expected-rq-timeout-ms": _read_milliseconds,
    "grpc-timeout": _read_grpc,
}
