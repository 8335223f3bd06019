"""The photographs, each with two regions that share no pixel: one to train on, one to score on.

How the regions were chosen: a line that gives training 55 to 65 %, along which both halves show enough of the scene to be
recognised. Between the two lies a gap of 16 pixels, the width of a JPEG block with subsampled colour, so that not even
the compression of the photograph carries a pixel from one region into the other. The boxes are written out here because a
score means something only while they stay as they are: change one, and the model has to be trained again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels of the photograph; right and bottom lie outside."""

Split = Literal["all", "train", "held_out"]

SPLITS: tuple[Split, ...] = ("all", "train", "held_out")
PHOTOGRAPHS_FOLDER = Path(__file__).with_name("photographs")
LICENCES_PATH = PHOTOGRAPHS_FOLDER / "LICENCES.md"
SCENES_MODEL_PATH = Path(__file__).with_name("models") / "scenes.onnx"


@dataclass(frozen=True)
class Photograph:
    """One photograph of the catalogue; its name is the label of every image cut from it."""

    name: str
    """The label, also the file's name without `.jpg`."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    train: Box
    """The region that training may see."""
    held_out: Box
    """The region kept for scoring; shares no pixel with `train`."""
    licence: str
    """In short; `LICENCES.md` has source, author and changes."""
    credit: str
    """Whom to name when the photograph is shown."""

    @property
    def path(self) -> Path:
        """The JPEG file."""
        return PHOTOGRAPHS_FOLDER / f"{self.name}.jpg"

    def region(self, split: Split) -> Box:
        """Return the box that images of this split are cut from."""
        if split == "all":
            return (0, 0, self.width, self.height)
        return self.train if split == "train" else self.held_out


PHOTOGRAPHS: tuple[Photograph, ...] = (
    Photograph(
        name="brick",
        width=512,
        height=512,
        train=(0, 0, 304, 512),
        held_out=(320, 0, 512, 512),
        licence="CC0 1.0",
        credit="CC0Textures",
    ),
    Photograph(
        name="chelsea",  # the right has fur, eyes and the blurred room; the left fur alone
        width=451,
        height=300,
        train=(192, 0, 451, 300),
        held_out=(0, 0, 176, 300),
        licence="CC0 1.0",
        credit="Stefan van der Walt",
    ),
    Photograph(
        name="clock",  # blurred by the camera's motion; the line passes through the face
        width=400,
        height=300,
        train=(0, 0, 224, 300),
        held_out=(240, 0, 400, 300),
        licence="public domain",
        credit="Stefan van der Walt",
    ),
    Photograph(
        name="coffee",  # the right has cup, saucer and table; the left saucer and table
        width=600,
        height=400,
        train=(240, 0, 600, 400),
        held_out=(0, 0, 224, 400),
        licence="CC0 1.0",
        credit="Rachel Michetti, Pikolo Espresso Bar",
    ),
    Photograph(
        name="deep_field",
        width=1000,
        height=872,
        train=(0, 0, 592, 872),
        held_out=(608, 0, 1000, 872),
        licence="public domain",
        credit="NASA, HubbleSite",
    ),
    Photograph(
        name="flower",  # the line passes through the bloom, a third of it on the scored side
        width=640,
        height=427,
        train=(0, 0, 352, 427),
        held_out=(368, 0, 640, 427),
        licence="CC BY 2.0",
        credit="vultilion",
    ),
    Photograph(
        name="grass",
        width=512,
        height=512,
        train=(0, 0, 304, 512),
        held_out=(320, 0, 512, 512),
        licence="CC0 1.0",
        credit="LinoLafett",
    ),
    Photograph(
        name="gravel",
        width=512,
        height=512,
        train=(0, 0, 304, 512),
        held_out=(320, 0, 512, 512),
        licence="CC0 1.0",
        credit="CC0Textures",
    ),
    Photograph(
        name="pagoda",  # the line passes through the tower, which stands left of the middle
        width=640,
        height=427,
        train=(224, 0, 640, 427),
        held_out=(0, 0, 208, 427),
        licence="CC BY 2.0",
        credit="danielbuechele",
    ),
    Photograph(
        name="retina",
        width=1200,
        height=1200,
        train=(0, 0, 704, 1200),
        held_out=(720, 0, 1200, 1200),
        licence="CC0 1.0",
        credit="Mikael Häggström",
    ),
    Photograph(
        name="rocket",
        width=640,
        height=427,
        train=(0, 0, 368, 427),
        held_out=(384, 0, 640, 427),
        licence="public domain",
        credit="SpaceX",
    ),
)

NAMES: tuple[str, ...] = tuple(photograph.name for photograph in PHOTOGRAPHS)
"""The labels in the order of the model's outputs."""


def photograph(name: str) -> Photograph:
    """Return the photograph of this name.

    Raises:
        ValueError: If there is none; the message lists the names.
    """
    for candidate in PHOTOGRAPHS:
        if candidate.name == name:
            return candidate
    raise ValueError(f"no photograph is called {name!r}; there are: {', '.join(NAMES)}")
