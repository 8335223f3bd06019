"""What a module needs."""

from __future__ import annotations

import pytest

from headrace.base.errors import SettingsError
from headrace.stages.inputs import ImageInput


@pytest.mark.parametrize(("short_side", "crop"), [(None, None), (256, 224), (224, 224), (None, 224), (256, None)])
def test_possible_sizes(short_side: int | None, crop: int | None) -> None:
    """Either size may be left out, and the crop be as large as the resized image."""
    wanted = ImageInput(short_side=short_side, crop=crop)
    assert (wanted.short_side, wanted.crop) == (short_side, crop)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"short_side": 0}, "short_side = 0 is not possible; allowed: a whole number >= 1"),
        ({"crop": -1}, "crop = -1 is not possible; allowed: a whole number >= 1"),
        ({"short_side": 224, "crop": 256}, "crop = 256 is not possible; allowed: at most short_side = 224"),
    ],
)
def test_impossible_sizes(sizes: dict[str, int], message: str) -> None:
    """A size that cannot be is refused with what could."""
    with pytest.raises(SettingsError) as caught:
        ImageInput(**sizes)
    assert str(caught.value) == message
