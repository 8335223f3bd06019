"""Writes the clips of three cameras: 1080p, 25 frames a second; photographs that the camera pans over, with its noise."""

from pathlib import Path

import av
import cv2
import numpy as np

WIDTH, HEIGHT, RATE, SECONDS = 1920, 1080, 25, 4
NOISE = np.random.default_rng(0).integers(0, 16, (HEIGHT + 64, WIDTH + 64, 3), np.uint8)

Path("clips").mkdir(exist_ok=True)
for number, file in enumerate(sorted(Path("photos").glob("*.jpg"))):
    scene = cv2.resize(cv2.imread(str(file)), (WIDTH * 5 // 4, HEIGHT), interpolation=cv2.INTER_LINEAR)
    with av.open(f"clips/camera{number}.mp4", "w") as clip:
        stream = clip.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "g": str(2 * RATE)})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for at in range(RATE * SECONDS):
            left = at * (scene.shape[1] - WIDTH) // (RATE * SECONDS)
            noise = NOISE[at * 7 % 64 :, at * 11 % 64 :][:HEIGHT, :WIDTH]
            picture = cv2.add(scene[:, left : left + WIDTH], noise)
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="bgr24")))
        clip.mux(stream.encode())
