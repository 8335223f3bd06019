"""What the addresses of live streams mean, and what streams are called."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.base.errors import SettingsError
from headrace.base.settings import check

_STREAMS = "mpegts,mpegtsraw,mpjpeg,flv,mov,matroska,webm,ogg,avi,h264,hevc,av1,obu,mjpeg,mpeg,asf"
#: {scheme: (protocols that FFmpeg may use, containers that it may open)}. A playlist would name other addresses.
PROTOCOLS: dict[str, tuple[str, str]] = {
    "rtsp": ("rtsp,rtp,tcp,udp", "rtsp,sdp,rtp,mpegts"),
    "rtsps": ("rtsps,rtsp,rtp,tcp,udp,tls", "rtsp,sdp,rtp,mpegts"),
    "http": ("http,tcp", _STREAMS),
    "https": ("https,http,tls,tcp", _STREAMS),
    "tcp": ("tcp", _STREAMS),
    "udp": ("udp", _STREAMS),
    "v4l2": ("file", "video4linux2,v4l2"),
}
#: The scheme of cameras of this machine, `v4l2:///dev/video0`: FFmpeg opens the device by its path, and by no protocol.
DEVICE = "v4l2"
_LONGEST_NAME = 200


def read_streams(streams: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return {name: address}; raises SettingsError if one is no address of a live stream, or two have one name.

    No message shows what was given: where it is not what was expected, a password may be anywhere in it.
    """
    expected = "an address such as rtsp://camera/stream, a list of them, or {name: address}"
    if isinstance(streams, Mapping):
        pairs = [(name, _read_address(address)) for name, address in streams.items()]
        for name, _ in pairs:
            is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
            check(is_name, "the name of a stream", name, f"1 to {_LONGEST_NAME} printable characters")
    elif isinstance(streams, str | Sequence):
        given = [streams] if isinstance(streams, str) else list(streams)
        pairs = [(_name_of(address), address) for address in map(_read_address, given)]
    else:
        raise SettingsError(f"streams is a {type(streams).__name__}; expected {expected}")
    if not pairs:
        raise SettingsError(f"no stream is named; expected {expected}")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise SettingsError(f'two streams are called {twice}: give each a name, {{"gate": "rtsp://..."}}')
    return found


def show_address(address: str) -> str:
    """Return scheme, host and path of an address; what stands before the last @, and parameters, may be secrets."""
    scheme, _, rest = address.partition("://")
    user, at, place = rest.rpartition("@")
    place, mark, _ = place.partition("?")
    return f"{scheme}://{'...@' if at and user else ''}{_without_secrets(place)}{'?...' if mark else ''}"


def _read_address(address: object) -> str:
    """Return an address with its scheme in small letters."""
    known = ", ".join(f"{one}://" for one in PROTOCOLS)
    if not isinstance(address, str):
        raise SettingsError(f"an address is a {type(address).__name__}; expected text that begins with one of {known}")
    scheme, sign, rest = address.partition("://")
    if not sign or scheme.lower() not in PROTOCOLS:
        raise SettingsError(
            f"an address of a live stream begins with one of {known}; this one has "
            f"{f'{scheme}://' if sign and scheme.isalnum() else 'no such beginning'}. Files are for hr.video"
        )
    if "#" in rest:
        raise SettingsError(
            f"the address {scheme}://... holds a #, which is not sent: write %23 for the sign in a password; fps and the like "
            "are arguments here (behind # they stand on the command line alone)"
        )
    if scheme.lower() == DEVICE and not rest.startswith("/"):
        raise SettingsError(
            f"the address {DEVICE}://... names no device; expected {DEVICE}:///dev/video0, with three strokes"
        )
    if scheme.lower() != DEVICE:
        _check_place(scheme.lower(), rest)
    return f"{scheme.lower()}://{rest}"


def _check_place(scheme: str, rest: str) -> None:
    """Raise SettingsError for an address without a host, or with a port that cannot be."""
    place = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
    host, _, port = (
        (place, "", "") if place.endswith("]") else place.rpartition(":") if ":" in place else (place, "", "")
    )
    if not host and scheme != "udp":
        raise SettingsError(f"the address {scheme}://... names no host; expected {scheme}://HOST:PORT/PATH")
    if (port.isdecimal() and not 0 < int(port) < 1 << 16) or (not port and scheme in ("tcp", "udp")):
        raise SettingsError(
            f"the address {scheme}://... has no port that can be; expected {scheme}://HOST:PORT, 1 to 65535"
        )


def _name_of(address: str) -> str:
    """Return host and path of an address, as far as they hold no secret."""
    shown = show_address(address).partition("://")[2].removeprefix("...@").removesuffix("?...")
    return shown.strip("/")[:_LONGEST_NAME] or "stream"


def _without_secrets(place: str) -> str:
    """Return host and path up to a part that sets something: some cameras take the password there."""
    parts = place.split("/")
    kept = list(itertools.takewhile(lambda part: "=" not in part, parts))
    return "/".join(kept if len(kept) == len(parts) else [*kept, "..."])
