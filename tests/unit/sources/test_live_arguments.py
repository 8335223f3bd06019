"""What sources, deliveries and temporal stages of video are given by mistake, and refuse in one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.sources.live_addresses import read_streams


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hr.video("a.mp4", max_receives="3"), "max_receives = '3'"),  # type: ignore[arg-type]
        (lambda: hr.live_video("rtsp://a/b", ends="no"), "ends = 'no'"),  # type: ignore[arg-type]
        (lambda: hr.temporal.Smooth(labels=5), "labels = 5"),  # type: ignore[arg-type]
        (lambda: hr.temporal.Smooth(labels="abc"), "labels = 'abc'"),
        (lambda: hr.temporal.Window(10**30), "length = 1000"),
        (lambda: hr.only(hr.collect(), bool, pictures=5), "pictures = 5"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_is_named(make: Callable[[], object], says: str) -> None:
    """Not by an error from inside."""
    with pytest.raises(SettingsError, match=f"{says}.* is not possible"):
        make()


@pytest.mark.parametrize(
    "address", ["rtsp://", "rtsp://:@/", "http://:80/x", "tcp://host", "udp://", "rtsp://host:99999/a"]
)
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    """It would be tried for ever."""
    with pytest.raises(SettingsError, match=r"names no host|no port that can be"):
        read_streams(address)


@pytest.mark.parametrize(
    "address",
    [
        "rtsp://cam", "rtsp://u:p@cam:554/s", "rtsp://u:pa/s:s?w@cam/s", "http://[::1]:80/x", "rtsp://[::1]/x", "tcp://h:1",
        "udp://:5000", "udp://@239.0.0.1:5000?fifo=1", "v4l2:///dev/video0",
    ],
)  # fmt: skip
def test_addresses_that_lead_somewhere(address: str) -> None:
    """With or without user, port and path."""
    assert list(read_streams(address).values()) == [address]
