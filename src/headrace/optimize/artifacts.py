"""Model files kept by their content: what was accepted once is there to go back to.

    FOLDER/3fa94c01b2d6e7f8/scenes.onnx     named by the first digits of its SHA-256
    FOLDER/3fa94c01b2d6e7f8/artifact.json   where it came from

A folder appears as a whole or not at all, and nothing in it is changed afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import EngineError
from headrace.runs.formats.optimization import Artifact

_DIGITS = 16
_RECORD = "artifact.json"


class ArtifactStore:
    """A folder of model files. Any number of processes may use one.

    Args:
        folder: Made with the first file.
    """

    def __init__(self, folder: Path) -> None:
        # Absolute: Plans and the ledger name these files, and are used from other folders too.
        self.folder = folder.resolve()

    def add(
        self,
        file: Path,
        *,
        parent: Artifact | None = None,
        technique: str = "",
        parameters: Mapping[str, Any] | None = None,
        data_sha256: str = "",
    ) -> Artifact:
        """Keep a copy of a file and return its record; a file that is there already keeps the record it has.

        Raises:
            EngineError: If the file, or the folder, cannot be read or written.
        """
        try:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            place = self.folder / digest[:_DIGITS]
            if (place / _RECORD).is_file():
                return self._read(place)
            artifact = Artifact(
                sha256=digest,
                file=str(place / file.name),
                num_bytes=len(content),
                parent=parent.sha256 if parent else "",
                technique=technique,
                parameters=dict(parameters or {}),
                data_sha256=data_sha256,
            )
            self._place(artifact, content)
        except OSError as error:
            raise EngineError(f"model file {file} cannot be kept in {self.folder}: {error}") from error
        return artifact

    def _place(self, artifact: Artifact, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        target = Path(artifact.file)
        try:
            (made / target.name).write_bytes(content)
            (made / _RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(artifact), indent=2))
            made.chmod(0o755)
            os.rename(made, target.parent)
        except OSError:
            if not (target.parent / _RECORD).is_file():  # else another process was faster, with the same content
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @staticmethod
    def _read(place: Path) -> Artifact:
        try:
            kept = msgspec.json.decode((place / _RECORD).read_bytes(), type=Artifact)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"{place / _RECORD} cannot be read: {error}; remove the folder, and it is made anew"
            ) from None
        return msgspec.structs.replace(kept, file=str(place / Path(kept.file).name))  # the store may have been moved
