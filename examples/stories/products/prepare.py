"""Writes product images as sellers send them: of 12 megapixels."""

from pathlib import Path

import cv2

Path("products").mkdir(exist_ok=True)
for file in sorted(Path("photos").glob("*.jpg")):
    large = cv2.resize(cv2.imread(str(file)), (4000, 3000), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(f"products/{file.name}", large, [cv2.IMWRITE_JPEG_QUALITY, 85])
