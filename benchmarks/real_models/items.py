"""Files to work on, made from a seed: crops of photographs, rendered text, documents of several types, sound.

Images are PNG, so that two decoders give the same pixels.
"""

import json
import wave
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from benchmarks.paths import PHOTOGRAPHS

WORDS = (
    "harbour", "signal", "eleven", "market", "copper", "window", "garden", "silver", "lantern", "bridge", "morning", "paper",
    "yellow", "engine", "castle", "thunder", "button", "island", "winter", "orange",
)  # fmt: skip


def crops(folder: Path, count: int) -> None:
    """Write crops of photographs, of several sizes and shapes."""
    random, names = np.random.default_rng(7), sorted(PHOTOGRAPHS.glob("*.jpg"))
    for number in range(count):
        photo = cv2.imread(str(names[number % len(names)]))
        height, width = (int(photo.shape[axis] * random.uniform(0.4, 0.95)) for axis in (0, 1))
        top, left = (int(random.integers(0, photo.shape[axis] - size)) for axis, size in ((0, height), (1, width)))
        cut = photo[top : top + height, left : left + width]
        scale = min(1.0, 700 / max(cut.shape[:2]))
        _save(folder / f"{number:04}.png", cv2.resize(cut, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA))


def pages(folder: Path, count: int, *, turned: bool = False) -> None:
    """Write light pages with a few lines of large text; turned: by quarters."""
    random = np.random.default_rng(8)
    for number in range(count):
        page = np.full((420, 640, 3), int(random.integers(215, 250)), np.uint8)
        for line in range(int(random.integers(2, 5))):
            text = " ".join(random.choice(WORDS, 3))
            grey = int(random.integers(0, 70))
            place = (int(random.integers(15, 60)), 70 + 85 * line)
            cv2.putText(page, text, place, cv2.FONT_HERSHEY_SIMPLEX, 1.25, (grey, grey, grey), 2, cv2.LINE_AA)
        if turned:
            page = np.rot90(page, number % 4)
        _save(folder / f"{number:04}.png", np.ascontiguousarray(page))


def captchas(folder: Path, count: int) -> None:
    """Write small pictures with a few characters and noise."""
    random = np.random.default_rng(9)
    for number in range(count):
        picture = random.integers(190, 255, (60, 160, 3)).astype(np.uint8)
        text = "".join(random.choice(list("123456789ABCDEFGHKLMNPRSTUVXYZ"), 5))
        for place, letter in enumerate(text):
            colour = tuple(int(one) for one in random.integers(0, 120, 3))
            at = (10 + 29 * place, int(random.integers(38, 50)))
            cv2.putText(picture, letter, at, cv2.FONT_HERSHEY_DUPLEX, 1.1, colour, 2, cv2.LINE_AA)
        _save(folder / f"{number:04}.png", picture)


def documents(folder: Path, count: int) -> None:
    """Write small files of several types, no two alike."""
    random = np.random.default_rng(10)

    def words(size: int) -> list[str]:
        return [str(word) for word in random.choice(WORDS, size)]

    def lines(text: Callable[[int, str], str], size: int) -> str:
        return "".join(text(number, word) for number, word in enumerate(words(size)))

    kinds: dict[str, Callable[[], str]] = {
        "py": lambda: lines(lambda n, word: f"def {word}_{n}(value):\n    return value + {n}\n\n\n", 9),
        "html": lambda: f"<!doctype html><html><body>{lines(lambda n, w: f'<p>{w}</p>', 20)}</body></html>",
        "json": lambda: json.dumps([{word: n} for n, word in enumerate(words(30))], indent=1),
        "csv": lambda: "\n".join(",".join([*words(3), str(n)]) for n in range(30)),
        "md": lambda: f"# {' '.join(words(4))}\n\n" + lines(lambda n, w: f"- [{w}](https://{w}.example)\n", 12),
        "c": lambda: "#include <stdio.h>\n" + lines(lambda n, w: f"int {w}_{n}(int x) {{ return x * {n}; }}\n", 12),
        "sh": lambda: "#!/bin/bash\nset -eu\n" + lines(lambda n, w: f'for f in *.{w}; do echo "$f"; done\n', 9),
        "xml": lambda: f"<?xml version='1.0'?>\n<all>{lines(lambda n, word: f'<{word}/>', 20)}</all>",
    }  # fmt: skip
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        (folder / f"{number:04}.{kind}").write_text(kinds[kind]())


def sounds(folder: Path, count: int) -> None:
    """Write two seconds of sound each, 16 kHz: vowels of a few formants, with pauses and noise between."""
    random, rate = np.random.default_rng(11), 16_000
    for number in range(count):
        time = np.arange(2 * rate) / rate
        pitch = 110 * 2 ** random.uniform(0, 1) * (1 + 0.03 * np.sin(2 * np.pi * 5 * time))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        formants = random.uniform(300, 3000, 3)
        voice = sum(
            np.sin(k * phase) * np.exp(-(np.abs(k * pitch[:, None] - formants).min(axis=1) / 250)) for k in range(1, 20)
        )
        voice *= np.sin(np.pi * time / 2 * random.integers(2, 6)) > 0
        mixed = 0.15 * voice + 0.01 * random.standard_normal(len(time))
        with wave.open(str(folder / f"{number:04}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((np.clip(mixed, -1, 1) * 32767).astype("<i2").tobytes())


def _save(path: Path, image: np.ndarray) -> None:
    cv2.imwrite(str(path), image)
