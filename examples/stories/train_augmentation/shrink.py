"""Writes the photographs as the data set has them: 144 x 144, in the folder `small`."""

from pathlib import Path

from PIL import Image

Path("small").mkdir(exist_ok=True)
for path in sorted(Path("photos").glob("*.jpg")):
    Image.open(path).convert("RGB").resize((144, 144)).save(Path("small", path.name), quality=90)
