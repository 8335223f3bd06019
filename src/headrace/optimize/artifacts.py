"""Model files kept by their content: what was accepted once is there to go back to.

    FOLDER/3fa94c01b2d6e7f8/scenes.onnx     named by the first digits of its SHA-256
    FOLDER/3fa94c01b2d6e7f8/artifact.json   where it came from

Where a model is several files (weights beside an ONNX file, OpenVINO's .xml with .bin), all of them are kept under the names
that it has for them, and the SHA-256 is that of all (`ModelFiles.sha256`). A folder appears as a whole or not at all, and
nothing in it is changed afterwards.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import EngineError
from headrace.engines.model_files import ModelFiles, model_files
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
        """Keep a copy of a model and return its record; one that is there already keeps the record it has.

        Args:
            file: The model's own; others that it reads are found by `model_files`, and kept too.
            parent: That it was made from.
            technique: That made it.
            parameters: Of the technique.
            data_sha256: Of the calibration set.

        Raises:
            EngineError: If a file, or the folder, cannot be read or written, or the model refers to what it must not.
        """
        files = model_files(file)
        try:
            digest = files.sha256()
            if (kept := self.find(digest)) is not None:
                return kept
            artifact = Artifact(
                sha256=digest,
                file=str(self._place_of(digest) / file.name),
                num_bytes=files.num_bytes,
                parent=parent.sha256 if parent else "",
                technique=technique,
                parameters=dict(parameters or {}),
                data_sha256=data_sha256,
            )
            self._place(artifact, files)
        except OSError as error:
            raise EngineError(f"model file {file} cannot be kept in {self.folder}: {error}") from error
        return artifact

    def find(self, sha256: str) -> Artifact | None:
        """Return the record of a model that is kept; None if it is not.

        Raises:
            EngineError: If its record cannot be read.
        """
        place = self._place_of(sha256)
        return self._read(place) if (place / _RECORD).is_file() else None

    def _place_of(self, sha256: str) -> Path:
        return self.folder / sha256[:_DIGITS]

    def _place(self, artifact: Artifact, files: ModelFiles) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        target = Path(artifact.file)
        try:
            for name, path in ((target.name, files.artifact), *files.sidecars):
                if name == _RECORD:
                    raise EngineError(
                        f"model file {files.artifact} uses the name {_RECORD}, which is the record's here"
                    )
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, made / name)
            if model_files(made / target.name).sha256() != artifact.sha256:
                raise EngineError(f"model file {files.artifact} was changed while it was copied; run the same again")
            (made / _RECORD).write_bytes(encode_document(artifact, indent=True))
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
            kept = decode_document((place / _RECORD).read_bytes(), Artifact)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"{place / _RECORD} cannot be read: {error}; remove the folder, and it is made anew"
            ) from None
        return msgspec.structs.replace(kept, file=str(place / Path(kept.file).name))  # the store may have been moved
