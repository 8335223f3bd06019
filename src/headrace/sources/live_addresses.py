"""What the addresses of live streams mean, and what streams are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from headrace.base.errors import SettingsError
from headrace.base.settings import check
from headrace.sources.addresses import hide_secrets

_STREAMS = "mpegts,mpegtsraw,mpjpeg,flv,mov,matroska,webm,ogg,avi,h264,hevc,av1,obu,mjpeg,mpeg,asf"
#: {scheme: (protocols that FFmpeg may use, containers that it may open)}. A playlist would name other addresses.
PROTOCOLS: dict[str, tuple[str, str]] = {
    "rtsp": ("rtsp,rtp,tcp,udp", "rtsp,sdp,rtp,mpegts"),
    "rtsps": ("rtsps,rtsp,rtp,tcp,udp,tls", "rtsp,sdp,rtp,mpegts"),
    "http": ("http,tcp", _STREAMS),
    "https": ("https,http,tls,tcp", _STREAMS),
    "tcp": ("tcp", _STREAMS),
    "udp": ("udp", _STREAMS),
}
_LONGEST_NAME = 200


def read_streams(streams: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return {name: address}; raises SettingsError if one is no address of a live stream, or two have one name."""
    if isinstance(streams, Mapping):
        pairs = list(streams.items())
    else:
        check(
            isinstance(streams, str | Sequence),
            "streams",
            streams,
            "an address such as rtsp://camera/stream, or {name: address}",
        )
        given = [streams] if isinstance(streams, str) else list(streams)
        pairs = [(_name_of(address), address) for address in given]
    check(bool(pairs), "streams", streams, "an address such as rtsp://camera/stream, or {name: address}")
    for name, address in pairs:
        _check_address(address)
        is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
        check(is_name, "the name of a stream", name, f"1 to {_LONGEST_NAME} printable characters")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise SettingsError(f'two streams are called {twice}: give each a name, {{"gate": "rtsp://..."}}')
    return found


def _check_address(address: object) -> None:
    scheme = address.partition("://")[0].lower() if isinstance(address, str) else ""
    if scheme not in PROTOCOLS:
        known = ", ".join(f"{one}://" for one in PROTOCOLS)
        shown = hide_secrets(address) if isinstance(address, str) else repr(address)
        raise SettingsError(f"{shown} is no address of a live stream: expected one of {known}; files are for hr.video")


def _name_of(address: object) -> str:
    """Return an address without its scheme, user, password and parameters."""
    try:
        parts = urlsplit(str(address))
        return (parts.netloc.rpartition("@")[2] + parts.path).strip("/") or hide_secrets(str(address))
    except ValueError:
        return hide_secrets(str(address))
