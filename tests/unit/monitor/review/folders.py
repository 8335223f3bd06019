"""Review folders for tests."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from headrace.monitor.review.hour_sample import HourSample, Limits, Offer
from headrace.monitor.review.store import SampleWriter, open_folder
from headrace.runs.formats.review import AnswerBox, ReviewSample, SampledAnswer


def make_folder(
    folder: Path,
    names: dict[str, int],
    *,
    seed: int = 1,
    arm: str = "",
    blur: bool = False,
    boxes: Sequence[AnswerBox] = (),
) -> Path:
    """Write the sample of an hour with so many answers of each class, each with a picture of 32 x 24, and with these boxes."""
    sample, chance = HourSample(Limits(per_cell=40, least_certain=4)), random.Random(seed)
    began = time.time()
    writer = SampleWriter(open_folder(folder), began)
    for name, num in names.items():
        for number in range(num):
            offer = Offer(chance.randbytes(16).hex(), name, arm, chance.random())
            item = SampledAnswer(
                key=offer.key, job=f"{name}-{number}", name=name, arm=arm, certainty=offer.certainty, answer=name,
                source=f"photos/{number}.jpg", unix_seconds=began,
            )  # fmt: skip
            writer.drop(sample.add(offer, item))
    items = []
    for item, why in sample.items():
        picture = np.full((24, 32, 3), int(item.key[:2], 16), np.uint8)
        _, data = cv2.imencode(".jpg", picture)
        file = writer.put(data.tobytes() + item.key.encode(), ".jpg")
        items.append(
            SampledAnswer(
                key=item.key, job=item.job, name=item.name, arm=arm, certainty=item.certainty, answer=item.answer, why=why,
                file=file, num_bytes=len(data), source=item.source, unix_seconds=began, boxes=tuple(boxes),
            )
        )  # fmt: skip
    writer.write(
        ReviewSample(
            id=writer.id, began_unix_seconds=began, ended_unix_seconds=began, cells=sample.cells(), items=tuple(items),
            blur=blur,
        )
    )  # fmt: skip
    writer.close()
    return folder
