"""JPEG bytes to the model's input, in the two ways every peer offers.

* "usual": OpenCV decodes the full image, as most code does.
* "scaled": libjpeg decodes at 1/2, 1/4 or 1/8 where that leaves 256 px, with its fast transforms. Cheaper, and the
  pixels differ slightly, so its labels are compared only with labels of the same kind.

Both then resize the short side to 256 (bilinear), crop the centre to 224 and normalise with numpy.
"""

from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

from benchmarks.peers.protocol import Decode

SHORT_SIDE, SIDE = 256, 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
INVERSE_DEVIATION = 1 / (np.array([0.229, 0.224, 0.225], np.float32) * 255)

Preprocess = Callable[..., np.ndarray]


def preprocessor(decode: Decode) -> Preprocess:
    """Return the function ``(jpeg, out=None) -> float32 (3, 224, 224)`` of the named way.

    ``out``, if given, receives the result; otherwise a new array does. OpenCV is held to one thread per call, because
    all peers work on several images at once. The functions are thread-safe.
    """
    cv2.setNumThreads(1)
    return {"usual": preprocess_usual, "scaled": preprocess_scaled}[decode]


def preprocess_usual(jpeg: bytes, out: np.ndarray | None = None) -> np.ndarray:
    """Decode at full size, resize, crop, normalise."""
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    return _normalise(cv2.cvtColor(_resize_and_crop(image), cv2.COLOR_BGR2RGB), out)


def preprocess_scaled(jpeg: bytes, out: np.ndarray | None = None) -> np.ndarray:
    """Decode at a reduced size, resize, crop, normalise."""
    height, width = simplejpeg.decode_jpeg_header(jpeg)[:2]
    factor = next((factor for factor in (8, 4, 2) if min(height, width) >= factor * SHORT_SIDE), 1)
    image = simplejpeg.decode_jpeg(
        jpeg,
        "RGB",
        min_height=-(-height // factor),
        min_width=-(-width // factor),
        min_factor=1,
        fastdct=True,
        fastupsample=True,
    )
    return _normalise(_resize_and_crop(image), out)


def read(path: str) -> bytes:
    """Return a file's bytes."""
    with open(path, "rb") as file:
        return file.read()


def warm_up_jpeg() -> bytes:
    """Return a JPEG of noise, 640 x 480: something to preprocess before the clock starts."""
    noise = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    return cv2.imencode(".jpg", noise)[1].tobytes()


def _resize_and_crop(image: np.ndarray) -> np.ndarray:
    """Return uint8 (224, 224, 3), channels as they came."""
    height, width = image.shape[:2]
    scale = SHORT_SIDE / min(height, width)
    width, height = max(SHORT_SIDE, round(width * scale)), max(SHORT_SIDE, round(height * scale))
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    top, left = (height - SIDE) // 2, (width - SIDE) // 2
    return image[top : top + SIDE, left : left + SIDE]


def _normalise(image: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    channels_first = ((image.astype(np.float32) - MEAN) * INVERSE_DEVIATION).transpose(2, 0, 1)
    if out is None:
        return np.ascontiguousarray(channels_first)
    np.copyto(out, channels_first)
    return out
