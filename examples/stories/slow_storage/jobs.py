"""Validates a model on photographs in a bucket, or on a disk of this machine.

headrace run jobs.py:bucket --plan slow.toml
"""

import time
from pathlib import Path

import headrace as hr

#: Before the first byte comes; both are emulated.
BUCKET_SECONDS, DISK_SECONDS = 0.04, 0.0005
WANTED = hr.ImageInput(short_side=256, crop=224)


def read_from_bucket(path):
    """Return the bytes of an object."""
    time.sleep(BUCKET_SECONDS)
    return Path(path).read_bytes()


def read_from_disk(path):
    """Return the bytes of a file."""
    time.sleep(DISK_SECONDS)
    return Path(path).read_bytes()


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
    """Return the pipeline with a place to read from."""
    return hr.Pipeline(
        hr.items(sorted(map(str, Path("photos").glob("*.jpg")))),
        stages=[
            hr.stage("fetch", read, kind="io"),
            hr.decode("decode", WANTED),
            hr.resize("resize", WANTED),
            *Scores().stages(),
        ],
        delivery=hr.jsonl("scores.jsonl"),
    )


bucket = make_pipeline(read_from_bucket)
disk = make_pipeline(read_from_disk)
