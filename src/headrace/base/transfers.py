"""Many requests of libcurl in one thread: its multi interface, driven by the carrier's epoll.

References:
    curl_multi_socket_action(3).
"""

from __future__ import annotations

import math
import select
import time
from typing import Any, Generic, TypeVar

import pycurl

from headrace.base.calls import Transfer
from headrace.base.sockets import Sockets

W = TypeVar("W")

_EVENTS = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_READABLE = ~select.EPOLLOUT  # an end and an error are found by reading
#: Connections that are kept: as many as transfers at a time so far, times this, but at least the other.
_KEPT_PER_TRANSFER = 2
_LEAST_KEPT = 64
#: How often the progress of transfers with a pulse is told, as `curl_easy_perform` does it.
_PULSE_SECONDS = 1.0
_OUT_OF_MEMORY = 3  # CURLM_OUT_OF_MEMORY


class Transfers(Generic[W]):
    """Transfers that share their connections; one thread.

    Attributes:
        due_at: When `act_on_time` has something to do, seconds of `time.monotonic`.

    Args:
        sockets: Of the carrier.

    Raises:
        pycurl.error: If there is no memory or file handle for it.
    """

    def __init__(self, sockets: Sockets[Transfers[W]]) -> None:
        self._sockets = sockets
        self._under_way: dict[Any, tuple[W, Transfer]] = {}
        self._most = 0
        self._num_with_pulse = 0
        self._timer_at = math.inf
        self._pulse_at = math.inf
        self._ended_at = math.inf
        self.due_at = math.inf
        self._multi = multi = _make_multi()
        # Several requests in one connection (HTTP/2) would wait for one another, and break off together.
        multi.setopt(pycurl.M_PIPELINING, 0)
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def begin(self, who: W, transfer: Transfer) -> None:
        """Begin a transfer.

        Raises:
            pycurl.error: If there is no memory for it.
        """
        transfer.opener.on_open = self._sockets.note_opened
        if len(self._under_way) >= self._most:
            self._most = len(self._under_way) + 1
            self._multi.setopt(pycurl.M_MAXCONNECTS, max(_KEPT_PER_TRANSFER * self._most, _LEAST_KEPT))
        try:
            self._multi.add_handle(transfer.curl)
        except pycurl.error as error:
            raise _as_easy(error) from None
        self._under_way[transfer.curl] = (who, transfer)
        self._count_pulse(transfer, 1)
        if transfer.is_first:
            # Those that follow are to find the addresses that libcurl takes over from this one as it begins.
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            self._ended_at = 0.0  # perhaps it has: of that libcurl tells nobody
            self._set_due()

    def cancel(self, transfer: Transfer) -> None:
        """Break a transfer off; its connection is closed."""
        self._remove(transfer)

    def act(self, descriptor: int, events: int) -> None:
        """Do what events of a descriptor allow."""
        mask = (pycurl.CSELECT_IN if events & _READABLE else 0) | (
            pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
        )
        self._multi.socket_action(descriptor, mask)

    def act_on_time(self, now: float) -> None:
        """Do what is due."""
        self._ended_at = math.inf
        if self._timer_at <= now:
            self._timer_at = math.nan
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            if math.isnan(self._timer_at):
                # Asked a moment too soon, libcurl does nothing, and does not tell the same time again.
                self._set_timer(self._multi.timeout())
        if self._pulse_at <= now:
            self._pulse_at = now + _PULSE_SECONDS
            for descriptor in self._sockets.descriptors_of(self):
                self._multi.socket_action(descriptor, 0)
        self._set_due()

    def take_ended(self) -> list[tuple[W, pycurl.error | None]]:
        """Return who waits no longer, with the error of a transfer that failed."""
        ended: list[tuple[W, pycurl.error | None]] = []
        num_left = 1
        while num_left:
            num_left, succeeded, failed = self._multi.info_read()
            for curl, error in [(curl, None) for curl in succeeded] + [
                (curl, pycurl.error(code, message)) for curl, code, message in failed
            ]:
                who, transfer = self._under_way[curl]
                self._remove(transfer)
                ended.append((who, error))
        return ended

    def close(self) -> None:
        """Close the connections."""
        self._multi.close()

    def _remove(self, transfer: Transfer) -> None:
        del self._under_way[transfer.curl]
        self._multi.remove_handle(transfer.curl)
        self._count_pulse(transfer, -1)

    def _count_pulse(self, transfer: Transfer, change: int) -> None:
        if transfer.has_pulse:
            self._num_with_pulse += change
            if not self._num_with_pulse:
                self._pulse_at = math.inf
            elif self._pulse_at == math.inf:
                self._pulse_at = time.monotonic() + _PULSE_SECONDS
            self._set_due()

    def _watch(self, what: int, descriptor: int, multi: Any, data: Any) -> None:
        if what == pycurl.POLL_REMOVE:
            self._sockets.want_no_more(descriptor)
        else:
            self._sockets.want(descriptor, _EVENTS[what], self)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer_at = math.inf if milliseconds < 0 else time.monotonic() + milliseconds / 1000
        self._set_due()

    def _set_due(self) -> None:
        self.due_at = min(self._timer_at, self._pulse_at, self._ended_at)


def _make_multi() -> Any:
    try:
        return pycurl.CurlMulti()
    except pycurl.error as error:
        raise pycurl.error(pycurl.E_FAILED_INIT, str(error)) from None


def _as_easy(error: pycurl.error) -> pycurl.error:
    """Return an error of the multi interface with the code that a single request would have failed with."""
    code, message = (*error.args, "", "")[:2]
    return pycurl.error(pycurl.E_OUT_OF_MEMORY if code == _OUT_OF_MEMORY else pycurl.E_FAILED_INIT, message)
