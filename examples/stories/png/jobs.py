"""Scores photographs that are kept as PNG, or the same as JPEG.

headrace run jobs.py:png --plan slow.toml
"""

from pathlib import Path

import headrace as hr

WANTED = hr.ImageInput(short_side=256, crop=224)


def read_png(name):
    """Return the bytes of a photograph without loss."""
    return Path("kept", f"{name}.png").read_bytes()


def read_jpeg(name):
    """Return the bytes of the same one as JPEG."""
    return Path("packed", f"{name}.jpg").read_bytes()


class Scores(hr.Module):
    """Scores a photograph."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a score for each photograph."""
        return self.network(batch)[:, 0].tolist()


def make_pipeline(read):
    """Return the pipeline with a way to read a photograph."""
    return hr.Pipeline(
        hr.items(sorted(file.stem for file in Path("photos").glob("*.jpg"))),
        stages=[
            hr.stage("fetch", read, kind="io"),
            hr.decode("decode", WANTED),
            hr.resize("resize", WANTED),
            *Scores().stages(),
        ],
        delivery=hr.jsonl("scores.jsonl"),
    )


png = make_pipeline(read_png)
jpeg = make_pipeline(read_jpeg)
