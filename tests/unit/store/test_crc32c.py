"""CRC-32C by tables."""

from __future__ import annotations

import random

import pytest

from headrace.store.crc32c import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(256)), 0x9C44184B),  # by google-crc32c 1.9
        (bytes(range(256)) * 64, 0xE92C0DAE),
        (bytes(range(256)) * 5000, 0xC6F6FD9D),
    ],
)
def test_vectors(data: bytes, crc: int) -> None:
    """Of the standard, and of lengths that take one, two and three tables."""
    assert crc32c(data) == crc


def test_lengths_of_all_kinds() -> None:
    """As byte by byte: around the sizes of the tables, too."""

    def by_byte(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    numbers = random.Random(1)
    for length in (1, 3, 4, 255, 256, 257, 259, 511, 16_383, 16_384, 16_387):
        data = numbers.randbytes(length)
        assert crc32c(data) == by_byte(data), length


def test_masked() -> None:
    """As TFRecord stores it."""
    assert masked_crc32c(bytes(32)) == ((0x8A9136AA >> 15 | 0x8A9136AA << 17) + 0xA282EAD8) % 2**32
