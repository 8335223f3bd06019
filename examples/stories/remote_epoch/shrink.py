"""Writes the photographs as the store has them: 128 x 128, in the folder `bucket`."""

from pathlib import Path

from PIL import Image

Path("bucket").mkdir(exist_ok=True)
for path in sorted(Path("photos").glob("*.jpg")):
    Image.open(path).convert("RGB").resize((128, 128)).save(Path("bucket", path.name), quality=90)
