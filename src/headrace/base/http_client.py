"""HTTP by libcurl: connections kept alive, limits on time, rate, size and redirects.

How this works: a client makes a handle of libcurl for each request that is under way at a time (`http_exchange`), and keeps
it for the next. A worker that waits for its requests (`get`, `post`) has one. Where one thread carries many requests
(`getting`, `posting`; see `headrace.base.calls`), their handles share connections and what is known of names.

Chosen by CPU cost per request (see `docs/decisions/0004-http-client.md`): libcurl runs a transfer without the GIL, so many
downloads do not queue for it. A client is not thread-safe: open one per thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import pycurl

from headrace.base.calls import Call, run_call
from headrace.base.dialing import Dialer
from headrace.base.errors import SettingsError
from headrace.base.http_answer import Response
from headrace.base.http_exchange import Exchange, OnConnect
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules

#: (8, 4, 0): before that, MAXFILESIZE does not hold for a body that comes without its length.
_OLDEST_LIBCURL = 0x080400


class HttpClient:
    """Sends requests.

    Args:
        settings: Limits.
        on_connect: Called after each request that could not use a connection that was open, whether it succeeded or not.
        rules: Who may be contacted; None: public servers on their usual ports.
    """

    def __init__(
        self, settings: HttpSettings, on_connect: OnConnect | None = None, rules: NetworkRules | None = None
    ) -> None:
        version = pycurl.version_info()
        if version[2] < _OLDEST_LIBCURL:
            raise SettingsError(
                f"pycurl uses libcurl {version[1]}, which cannot limit every download; it takes 8.4 or newer: "
                "pip install --force-reinstall --only-binary :all: pycurl"
            )
        self._settings = settings
        self._on_connect = on_connect
        self._dialer = Dialer(rules or NetworkRules(NetworkPlan()))
        self._connections = object()
        self._resting: list[Exchange] = []

    def get(self, url: str) -> Response:
        """Return the answer to a GET, redirects followed.

        Raises:
            HttpError: If there is none, it breaks a limit, or an address on the way may not be contacted.
            OSError, MemoryError, Shortage: If this machine has no file handle, no memory or no thread for it.
            DeadlinePassed: If the job in this thread's hands was wanted before any answer came.
        """
        return run_call(self.getting(url))

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Return the answer to a POST, redirects not followed.

        The status and the headers are the answer. Of the body at most 64 KB are read, for a second or two, and one that is
        longer, stalls or breaks off is cut, and the connection closed: whoever posts a result wants to know that it was
        taken, and must not be held up by the rest. A server that changes the protocol (101) has answered, too.

        Raises:
            HttpError: If no status came, or not all headers, or the address may not be contacted.
            OSError, MemoryError, Shortage: If this machine has no file handle, no memory or no thread for it.
            DeadlinePassed: If the job in this thread's hands was wanted before any answer came.
        """
        return run_call(self.posting(url, body, headers))

    def getting(self, url: str) -> Call[Response]:
        """Return a call that ends as `get` does, to be begun at once; any number may be under way in one thread."""
        return self._take().getting(url, self._resting)

    def posting(self, url: str, body: bytes, headers: Mapping[str, str]) -> Call[Response]:
        """Return a call that ends as `post` does, to be begun at once; any number may be under way in one thread."""
        return self._take().posting(url, body, headers, self._resting)

    def close(self) -> None:
        """Close the connections, once no request is under way."""
        for exchange in self._resting:
            exchange.close()
        self._resting.clear()

    def _take(self) -> Exchange:
        if self._resting:
            return self._resting.pop()
        return Exchange(self._settings, self._on_connect, self._dialer, self._connections)
