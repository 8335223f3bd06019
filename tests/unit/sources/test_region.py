"""Which way up a picture is, by its display matrix."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from headrace.sources.region import turns_of

ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "rotation", "turns"),
    [
        ((ONE, 0, 0, ONE), 0, 0),
        ((-ONE, 0, 0, -ONE), 180, 2),
        ((-ONE, 0, 0, ONE), -180, 0),
        ((ONE, 0, 0, -ONE), 0, 0),
        ((0, ONE, -ONE, 0), -90, 3),
        ((0, -ONE, ONE, 0), 90, 1),
        ((0, 0, 0, 0), 90, 0),
        (None, 90, 1),
    ],
    ids=["as it is", "upside down", "mirrored", "mirrored and upside down", "right", "left", "nothing", "no matrix"],
)
def test_what_is_mirrored_is_not_turned(matrix: tuple[int, ...] | None, rotation: int, turns: int) -> None:
    """FFmpeg's angle alone does not tell a picture that is mirrored from one that is upside down."""
    side_data = {}
    if matrix is not None:
        a, b, c, d = matrix
        side_data["DISPLAYMATRIX"] = struct.pack("=9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    assert turns_of(SimpleNamespace(rotation=rotation, side_data=side_data)) == turns
