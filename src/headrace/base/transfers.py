"""Many requests of libcurl in one thread: its multi interface, driven by the carrier's epoll.

References:
    curl_multi_socket_action(3).
"""

from __future__ import annotations

import errno
import math
import select
import time
from typing import Any, Generic, TypeVar

import pycurl

from headrace.base.calls import Transfer
from headrace.base.sockets import Sockets

W = TypeVar("W")

#: What libcurl wants of a descriptor -> events; nothing for what it wants no more.
_EVENTS = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
#: Connections that are kept: as many as transfers at a time so far, times this, but at least the other.
_KEPT_PER_TRANSFER = 2
_LEAST_KEPT = 64
#: How often transfers are asked whether there is enough of them, as `curl_easy_perform` does it where nothing moves.
_PULSE_SECONDS = 0.5
_OUT_OF_MEMORY = 3  # CURLM_OUT_OF_MEMORY


class Transfers(Generic[W]):
    """Transfers that share their connections; one thread.

    Attributes:
        due_at: When `act_on_time` has something to do, seconds of `time.monotonic`, as far as `find_due` found out.
        payer: As below.

    Args:
        sockets: Of the carrier.
        payer: Who is charged for what they cost.

    Raises:
        OSError: If there is no memory or file handle for it.
    """

    def __init__(self, sockets: Sockets[Transfers[W]], payer: Any) -> None:
        self.payer = payer
        self._note_opened = sockets.note_opened
        self._under_way: dict[Any, tuple[W, Transfer]] = {}
        self._most = 0
        self._stopped: list[tuple[W, Exception | None]] = []
        self._refused: list[tuple[int, OSError]] = []
        self._pulse_at = math.inf
        self.due_at = math.inf
        self._multi = multi = _make_multi()
        # Several requests in one connection (HTTP/2) would wait for one another, and break off together.
        multi.setopt(pycurl.M_PIPELINING, 0)
        multi.setopt(pycurl.M_SOCKETFUNCTION, sockets.watcher(self, _EVENTS))
        self._act = multi.socket_action
        # No M_TIMERFUNCTION: libcurl would call it twice for each request, and whoever calls back waits for the GIL.

    def begin(self, who: W, transfer: Transfer) -> None:
        """Begin a transfer.

        Raises:
            pycurl.error: If there is no memory for it.
        """
        curl, under_way = transfer.curl, self._under_way
        transfer.opener.on_open = self._note_opened
        if transfer.curl_asks:
            curl.setopt(pycurl.NOPROGRESS, 1)  # each time it would take the GIL
            transfer.curl_asks = False
        if len(under_way) >= self._most:
            self._most = len(under_way) + 1
            self._multi.setopt(pycurl.M_MAXCONNECTS, max(_KEPT_PER_TRANSFER * self._most, _LEAST_KEPT))
        try:
            self._multi.add_handle(curl)
        except pycurl.error as error:
            raise _as_easy(error) from None
        under_way[curl] = (who, transfer)
        if self._pulse_at == math.inf and transfer.is_enough is not None:
            self._pulse_at = time.monotonic() + _PULSE_SECONDS
        if transfer.is_first:
            # Those that follow are to find the addresses that libcurl takes over from this one as it begins.
            self._act(pycurl.SOCKET_TIMEOUT, 0)
        self.due_at = 0.0  # it is to be begun, or has perhaps ended already

    def cancel(self, transfer: Transfer) -> None:
        """Break a transfer off; its connection is closed."""
        self._remove(transfer.curl)

    def act(self, descriptor: int, events: int) -> None:
        """Do what events of a descriptor allow."""
        if events == select.EPOLLIN:
            mask = pycurl.CSELECT_IN
        else:  # an end and an error are found by reading
            mask = pycurl.CSELECT_IN * bool(events & ~select.EPOLLOUT)
            mask |= pycurl.CSELECT_OUT * bool(events & select.EPOLLOUT)
        self._act(descriptor, mask)

    def find_due(self, now: float) -> float:
        """Find out, and return, when something is to be done if no socket has an event; infinite if nothing is."""
        milliseconds = self._multi.timeout()
        self.due_at = min(now + milliseconds / 1000 if milliseconds >= 0 else math.inf, self._pulse_at)
        return self.due_at

    def act_on_time(self, now: float) -> None:
        """Do what is due."""
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        if self._pulse_at <= now:
            self._pulse_at = now + _PULSE_SECONDS if self._stop_enough() else math.inf
        self.due_at = math.inf  # until it is found out

    def refuse(self, descriptor: int, error: OSError) -> None:
        """End the transfer that has a descriptor, which nobody watches; not at once, libcurl may be the caller."""
        self._refused.append((descriptor, error))
        self.due_at = 0.0

    def take_ended(self) -> list[tuple[W, Exception | None]]:
        """Return who waits no longer, with the error of a transfer that failed."""
        while self._refused:
            self._stop_with(*self._refused.pop())
        ended, self._stopped = self._stopped, []
        num_left = 1
        while num_left:
            num_left, succeeded, failed = self._multi.info_read()
            for curl in succeeded:
                ended.append((self._remove(curl), None))
            for curl, code, message in failed:
                ended.append((self._remove(curl), pycurl.error(code, message)))
        return ended

    def close(self) -> None:
        """Close the connections."""
        self._multi.close()

    def _remove(self, curl: Any) -> W:
        """Let go of a handle, and return whose it was."""
        who, _ = self._under_way.pop(curl)
        self._multi.remove_handle(curl)
        return who

    def _stop_enough(self) -> bool:
        """End the transfers of which there is enough; return whether there are others to ask about again."""
        has_asked = False
        for who, transfer in [*self._under_way.values()]:
            if transfer.is_enough is None:
                continue
            has_asked = True
            if transfer.is_enough():
                self._remove(transfer.curl)
                self._stopped.append((who, pycurl.error(pycurl.E_ABORTED_BY_CALLBACK, "there is enough of it")))
        return has_asked

    def _stop_with(self, descriptor: int, error: OSError) -> None:
        for who, transfer in [*self._under_way.values()]:
            used = transfer.curl.getinfo(pycurl.ACTIVESOCKET)  # -1 until it is connected
            if descriptor == (transfer.opener.opened if used < 0 else used):
                self._remove(transfer.curl)
                self._stopped.append((who, error))


def _make_multi() -> Any:
    try:
        return pycurl.CurlMulti()
    except pycurl.error as error:  # it does not say which of the two is short
        raise OSError(errno.EMFILE, f"no socket could be opened: {error}; see ulimit -n") from None


def _as_easy(error: pycurl.error) -> pycurl.error:
    """Return an error of the multi interface with the code that a single request would have failed with."""
    code, message = (*error.args, "", "")[:2]
    return pycurl.error(pycurl.E_OUT_OF_MEMORY if code == _OUT_OF_MEMORY else pycurl.E_FAILED_INIT, message)
