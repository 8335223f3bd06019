"""Writes 60 frames of 3,840 by 2,160 pixels into `frames`."""

from pathlib import Path

import cv2

from headrace.samples.generator import crops
from headrace.stages.decode import decode

folder = Path("frames")
folder.mkdir(exist_ok=True)
for number, crop in enumerate(crops(60, 1, split="held_out")):
    frame = cv2.resize(decode(crop.data), (3840, 2160), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / f"{number:03}.jpg"), cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
