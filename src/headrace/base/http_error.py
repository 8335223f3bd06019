"""How requests fail: codes that stay, messages without secrets, and whose fault it was."""

from __future__ import annotations

import errno
import os
from urllib.parse import urlsplit

import pycurl

#: Causes with a name of their own, and whether no retry mends them; the others are `http.failed`, and worth one.
_CAUSES = {
    pycurl.E_URL_MALFORMAT: ("ssrf.url", True),
    pycurl.E_UNSUPPORTED_PROTOCOL: ("http.failed", True),  # what answers does not speak HTTP
    pycurl.E_FILESIZE_EXCEEDED: ("http.too_large", True),
    pycurl.E_OPERATION_TIMEDOUT: ("http.timeout", False),
    pycurl.E_COULDNT_RESOLVE_HOST: ("http.resolve", False),
    pycurl.E_COULDNT_RESOLVE_PROXY: ("http.resolve", False),
    pycurl.E_COULDNT_CONNECT: ("http.connect", False),
    pycurl.E_PARTIAL_FILE: ("http.incomplete", False),
    pycurl.E_SSL_CONNECT_ERROR: ("http.tls", False),
    pycurl.E_PEER_FAILED_VERIFICATION: ("http.tls", False),
}
#: What libcurl says, among others, where this process may open no more files: sockets are files, too.
_NO_CONNECTION = (
    pycurl.E_OUT_OF_MEMORY,
    pycurl.E_FAILED_INIT,
    pycurl.E_COULDNT_CONNECT,
    pycurl.E_COULDNT_RESOLVE_HOST,
    pycurl.E_COULDNT_RESOLVE_PROXY,
    pycurl.E_SSL_CACERT_BADFILE,
)
#: What it says nothing of.
_UNSAID = {100: "the head of the answer, or a line of it, is too large"}
#: The process, and the machine, have no more file handles.
_NO_FILES = (errno.EMFILE, errno.ENFILE)


class HttpError(Exception):
    """The request got no answer, or none that counts.

    Attributes:
        code: Stable name of the cause, with which the message begins: `http.timeout`, `ssrf.address`, ...
        permanent: Whether another try cannot help.
        is_unreachable: Whether the host as a whole could not be reached, whatever it was to be asked.
    """

    def __init__(self, code: str, url: str, message: str, *, permanent: bool) -> None:
        super().__init__(f"{code}: {strip_secrets(url)}: {message}")
        self.code = code
        self.permanent = permanent
        self.is_unreachable = code in ("http.resolve", "http.connect", "http.tls")


def failure_of(error: pycurl.error, url: str, unopened: int) -> Exception:
    """Return what libcurl's error means: HttpError, or MemoryError if this machine has no memory.

    Args:
        error: Of the request.
        url: What was called.
        unopened: Why the request had no socket, as `errno` has it; 0: it had one.

    Raises:
        OSError: If this machine has no file handle.
    """
    code, said = error.args
    message = said or _UNSAID.get(code, f"libcurl failed, error {code}")
    if code in _NO_CONNECTION:
        refuse_without_files(url, unopened)
    if code == pycurl.E_OUT_OF_MEMORY:
        return MemoryError(f"{strip_secrets(url)} was not called: {message}")
    name, permanent = _CAUSES.get(code, ("http.failed", False))
    return HttpError("http.slow" if "too slow" in message else name, url, message, permanent=permanent)


def refuse_without_files(url: str, unopened: int = 0) -> None:
    """Raise OSError if this process can open no file, and so no socket: no server is to blame, see `base.shortage`.

    Args:
        url: What was to be called.
        unopened: Why a socket was not opened before, as `errno` has it; another thread may have closed a file since.
    """
    short = unopened if unopened in _NO_FILES else _try_to_open()
    if short in _NO_FILES:
        what = f"{strip_secrets(url)} was not called: no socket could be opened, {os.strerror(short)}; see ulimit -n"
        raise OSError(short, what)


def _try_to_open() -> int:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno or 0
    return 0


def strip_secrets(url: str) -> str:
    """Return an address without user, password and query, and no longer than a line, for messages and logs."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(unreadable address)"
    start = f"{parts.scheme}:" + ("//" if parts.netloc or parts.scheme == "file" else "") if parts.scheme else ""
    path = parts.path if len(parts.path) <= 200 else f"{parts.path[:200]}..."  # a data: address holds a whole image
    return f"{start}{host}{port}{path}" + ("?..." if parts.query else "")
