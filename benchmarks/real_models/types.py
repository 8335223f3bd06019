"""magika: which type a file is, from the whole numbers of its first and last bytes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.real_models.cases import Case
from benchmarks.real_models.items import documents
from benchmarks.real_models.packages import file_of

_FOLDER = "models/standard_v3_3"
_CONFIG = json.loads(file_of("magika", f"{_FOLDER}/config.min.json").read_text())


def features(data: bytes) -> np.ndarray:
    """Bytes -> int32 (2048,): the first and the last ones, padded."""
    first, last, block = (_CONFIG[key] for key in ("beg_size", "end_size", "block_size"))
    found = np.full(first + last, _CONFIG["padding_token"], np.int32)
    start = np.frombuffer(bytes(data[:block]).lstrip()[:first], np.uint8)
    end = np.frombuffer(bytes(data[-block:]).rstrip()[-last:], np.uint8)
    found[: len(start)] = start
    if len(end):
        found[-len(end) :] = end
    return found


class Types(hr.Module):
    """Whole numbers in, shares of 214 types out."""

    model = file_of("magika", f"{_FOLDER}/model.onnx")
    input = hr.BytesInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, data: bytes) -> np.ndarray:
        return features(data)

    def process(self, batch: Any) -> list[Any]:
        shares = self.net(batch)
        return [_CONFIG["target_labels_space"][best] for best in shares.argmax(axis=1)]


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", "."), patterns=["*"]), module=Types(),
    delivery=hr.jsonl("results.jsonl"), name="types",
)  # fmt: skip


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package for what its model answers, before its rules."""
    from magika import Magika

    magika = Magika()
    return {file.name: str(magika.identify_bytes(file.read_bytes()).prediction.dl.label) for file in files}


def inputs(files: Sequence[Path]) -> np.ndarray:
    """(items, 2048) int32."""
    return np.stack([features(file.read_bytes()) for file in files])


CASE = Case(
    models={"magika": Types.model},
    make_items=documents,
    own=own,
    same=lambda ours, theirs: ours == theirs,
    inputs=inputs,
)
