"""Writes the photographs as they are kept, in PNG, and as JPEG of high quality."""

from pathlib import Path

import cv2

for file in sorted(Path("photos").glob("*.jpg")):
    image = cv2.imread(str(file))
    for folder, end, how in (("kept", ".png", []), ("packed", ".jpg", [cv2.IMWRITE_JPEG_QUALITY, 95])):
        Path(folder).mkdir(exist_ok=True)
        cv2.imwrite(f"{folder}/{file.stem}{end}", image, how)
