"""The folder of JPEGs as PyTorch's users read it; a module of its own, as only this needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import simplejpeg
import torch
from torch.utils.data import Dataset


class Pictures(Dataset):  # type: ignore[misc]
    """One picture by its number."""

    def __init__(self, files: list[Path]) -> None:
        self._files = [str(file) for file in files]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self._files[index], "rb") as file:
            return torch.from_numpy(simplejpeg.decode_jpeg(file.read()))
