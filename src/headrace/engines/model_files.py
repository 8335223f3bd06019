"""The gate before every model file: what a model may read, and nothing of it opened before that is known.

A model file is data from elsewhere. ONNX files and OpenVINO's XML name other files that hold their weights; a name that leads
out of the model's folder (`..`, an absolute path, a symbolic or hard link) would make the contents of any file part of the
model, and what the file does not bound is allocated or read by native code. Engines check much of this themselves, each
version other things: ONNX Runtime 1.31 follows hard links, and OpenVINO 2026.4 takes an address in memory from the file and
reads there. So one gate stands before all of them.

The model's own folder may be a link, and so may the files in it as long as they stay beside the model's real file: a hub's
cache keeps names in `snapshots` that are links into `blobs`.

Between this check and the engine's own opening, whoever may write into the model's folder can still exchange files: the folder
must belong to somebody trusted, or be read-only.
"""

from __future__ import annotations

import hashlib
import math
import stat
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.base.errors import EngineError, SettingsError
from headrace.engines.onnx_references import ExternalTensor, external_tensors
from headrace.engines.safetensors_header import safetensors_fault

#: Bits of one element by TensorProto.DataType. Text (8) has no fixed size and is never external.
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16, 17: 8, 18: 8,
    19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip
#: Formats that run what is in them when they are opened: exported and compiled programs, engines of TensorRT, libraries.
RUNS_CODE = frozenset({".pt2", ".ts", ".engine", ".plan", ".trt", ".so", ".pkl", ".pickle", ".joblib"})
#: Below this, `weights_only` can be got around (CVE-2025-32434).
LEAST_TORCH = (2, 6)
#: ONNX Runtime's mark, between its own parts, of a tensor that is in memory at the address `offset`.
_IN_MEMORY = "_ORT_MEM_ADDR_"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model that passed the gate."""

    artifact: Path
    sidecars: tuple[tuple[str, Path], ...] = ()
    """Name as the model has it, and real path, of each other file that it reads; sorted by name."""

    @property
    def num_bytes(self) -> int:
        """Size of all of them."""
        return sum(path.stat().st_size for path in (self.artifact, *(path for _, path in self.sidecars)))

    def sha256(self) -> str:
        """Return the hash that stands for the model: its file's, or with other files, that of the list of all.

        The list is what `sha256sum MODEL OTHER...` prints in the model's folder, the others in the order of their names.
        """
        own = _sha256(self.artifact)
        if not self.sidecars:
            return own
        listed = [(own, self.artifact.name)] + [(_sha256(path), name) for name, path in self.sidecars]
        return hashlib.sha256("".join(f"{digest}  {name}\n" for digest, name in listed).encode()).hexdigest()


def check_onnx(artifact: Path) -> ModelFiles:
    """Return the files of an ONNX model.

    Raises:
        EngineError: If the file is missing, no ONNX file, or refers to anything but whole regular files in its own folder.
    """
    _check_regular(artifact)
    if artifact.suffix.lower() == ".ort":
        raise _refused(artifact, "it has ONNX Runtime's own format, which cannot be checked; expected an ONNX file")
    sidecars: dict[str, Path] = {}
    sizes: dict[Path, int] = {}
    regions: dict[Path, list[tuple[int, int, str]]] = {}
    try:
        for tensor in external_tensors(artifact):
            location = _only(artifact, tensor, "location")
            if location not in sidecars:
                path = sidecars[location] = _sidecar(artifact, location)
                sizes[path] = path.stat().st_size
            path = sidecars[location]
            regions.setdefault(path, []).append(_region(artifact, tensor, path.name, sizes[path]))
    except OSError as error:
        raise EngineError(f"model file {artifact} cannot be read: {error.strerror}") from error
    for path, used in regions.items():
        _check_overlaps(artifact, path, used)
    return ModelFiles(artifact, tuple(sorted(sidecars.items())))


def check_openvino(artifact: Path) -> ModelFiles:
    """Return the files of a model that OpenVINO may open: ONNX, or its own XML with the weights beside it.

    OpenVINO chooses a reader by what it finds in a file; others than these two are not checked here, and so not opened.

    Raises:
        EngineError: As `check_onnx` does, or if the file is neither.
    """
    suffix = artifact.suffix.lower()
    if suffix == ".onnx":
        return check_onnx(artifact)
    if suffix != ".xml":
        _check_regular(artifact)
        raise _refused(artifact, "the openvino engine opens files that end in .onnx or .xml")
    _check_regular(artifact)
    weights = artifact.with_suffix(".bin")
    if not weights.is_symlink() and not weights.exists():
        return ModelFiles(artifact)
    return ModelFiles(artifact, ((weights.name, _sidecar(artifact, weights.name)),))


def check_torch_weights(artifact: Path, torch_version: str) -> ModelFiles:
    """Return the file of PyTorch weights that may be loaded: safetensors, or a file for `torch.load(weights_only=True)`.

    A caller loads `.safetensors` with the safetensors package, everything else with `weights_only=True` and nothing else.

    Args:
        artifact: The file.
        torch_version: `torch.__version__`.

    Raises:
        EngineError: If it is missing, holds a program (TorchScript, an exported or compiled one), is a pickle of the old form,
            or this PyTorch cannot keep its promise of loading weights only.
    """
    _check_regular(artifact)
    if artifact.suffix.lower() == ".safetensors":
        reason = safetensors_fault(artifact)
        if reason:
            raise _refused(artifact, reason)
        return ModelFiles(artifact)
    if tuple(int(part) for part in torch_version.split(".")[:2]) < LEAST_TORCH:
        raise EngineError(
            f"PyTorch {torch_version} runs code from weight files even with weights_only (CVE-2025-32434); "
            f"expected {'.'.join(map(str, LEAST_TORCH))} or newer: pip install -U 'headrace[torch]', or save as .safetensors"
        )
    if not zipfile.is_zipfile(artifact):
        raise _refused(
            artifact, "it is no file of torch.save (a pickle of the old form can run code); save as .safetensors"
        )
    try:
        with zipfile.ZipFile(artifact) as archive:
            parts = {part for name in archive.namelist() for part in PurePosixPath(name).parts}
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError(f"model file {artifact} cannot be read: {error}") from error
    programs = parts & {"code", "constants.pkl", "aotinductor", "archive_format"}
    if programs or "data.pkl" not in parts:
        what = "it holds a program (TorchScript or torch.export)" if programs else "it holds no weights (data.pkl)"
        raise _refused(artifact, f"{what}; expected weights: save model.state_dict() as .safetensors")
    return ModelFiles(artifact)


def check_trust(artifact: Path, sha256: str | None) -> None:
    """Raise unless a model is the one that the Plan pins; what runs code when it is opened has to be pinned.

    Args:
        artifact: The model's file.
        sha256: Of `[model]`; None: not pinned.

    Raises:
        EngineError: If it is another model, or not pinned although opening it runs code.
        SettingsError: If the pin is no SHA-256.
    """
    suffix = artifact.suffix.lower()
    if sha256 is None:
        if suffix in RUNS_CODE:
            _check_regular(artifact)
            raise _refused(
                artifact,
                f"{suffix} files can run code when they are opened. If you made it or trust who did, pin it in the Plan: "
                f'[model] sha256 = "{_sha256(artifact)}"; else use ONNX or .safetensors',
            )
        return
    if len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef"):
        raise SettingsError(
            f"model.sha256 is {sha256!r}; expected 64 hexadecimal digits as in the variants of run.json"
        )
    found = model_files(artifact).sha256()
    if found != sha256.lower():
        raise EngineError(
            f"model file {artifact} has the SHA-256 {found}, and the Plan pins {sha256.lower()}: it is another model, or was "
            "changed. It was not opened; bring back the old file, or pin the new one with model.sha256"
        )


def model_files(artifact: Path) -> ModelFiles:
    """Return the files of a model, whichever engine it is for.

    Raises:
        EngineError: If one is missing, or refers to what it must not.
    """
    suffix = artifact.suffix.lower()
    if suffix == ".xml":
        return check_openvino(artifact)
    if suffix == ".onnx":
        return check_onnx(artifact)
    _check_regular(artifact)
    return ModelFiles(artifact)


def _check_regular(artifact: Path) -> None:
    try:
        mode = artifact.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise EngineError(
                f"model file {artifact} does not exist; relative paths start at the module's own folder, those of a Plan's "
                "model.artifact at the working folder"
            ) from None
        raise EngineError(f"model file {str(artifact)!r} cannot be read: {error}") from None
    if not stat.S_ISREG(mode):
        raise _refused(artifact, "it is a folder, device or pipe; expected a regular file")


def _sidecar(artifact: Path, location: str) -> Path:
    """Return the real path of a file that a model refers to."""
    shown = repr(location[:200])
    parts = location.replace("\\", "/").split("/")
    leads_away = parts[0] in ("", "~") or ":" in parts[0] or ".." in parts
    if leads_away or "\0" in location or _IN_MEMORY in location:
        raise _refused(artifact, f"it refers to {shown}; expected the name of a file in the model's own folder")
    try:
        real = (artifact.parent / location).resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        raise _refused(artifact, f"it refers to {shown}, which is not there; put the file beside the model") from None
    homes = {artifact.parent.resolve(), artifact.resolve().parent}
    if not any(real.is_relative_to(home) for home in homes):
        raise _refused(
            artifact, f"it refers to {shown}, a link that leads out of the model's folder; copy the file there"
        )
    if not stat.S_ISREG(status.st_mode):
        raise _refused(artifact, f"it refers to {shown}, which is a folder, device or pipe; expected a regular file")
    if status.st_nlink > 1:
        raise _refused(
            artifact,
            f"it refers to {shown}, a file with {status.st_nlink} names (hard links), which may be anybody's; replace it by a "
            f"copy: cp {real.name} copy && mv copy {real.name}",
        )
    return real


def _region(artifact: Path, tensor: ExternalTensor, file: str, size: int) -> tuple[int, int, str]:
    """Return from where to where a tensor reads in a file of that name and size, and its own name."""
    offset = _number(artifact, tensor, "offset", 0)
    needed = (math.prod(tensor.dims) * _BITS.get(tensor.data_type, 8) + 7) // 8
    length = _number(artifact, tensor, "length", needed)
    if offset + length > size:
        raise _refused(
            artifact,
            f"tensor {_shown(tensor)} reads {length:,} bytes at {offset:,} of {file}, which has {size:,}; it was cut off",
        )
    if needed > length or any(dim >= 1 << 63 for dim in tensor.dims):
        raise _refused(
            artifact,
            f"tensor {_shown(tensor)} of shape {list(tensor.dims)[:8]} needs {needed:,} bytes, and {file} has {length:,} "
            "for it",
        )
    return offset, offset + length, _shown(tensor)


def _check_overlaps(artifact: Path, path: Path, used: Iterable[tuple[int, int, str]]) -> None:
    """Tensors may share one region, as tied weights do, and not parts of regions."""
    before = (0, 0, "")
    for region in sorted(region for region in used if region[0] < region[1]):
        if region[0] < before[1] and region[:2] != before[:2]:
            raise _refused(artifact, f"tensors {before[2]} and {region[2]} overlap in {path.name}")
        before = region


def _only(artifact: Path, tensor: ExternalTensor, key: str) -> str:
    values = tensor.values(key)
    if len(values) != 1:
        raise _refused(artifact, f"tensor {_shown(tensor)} has {len(values)} entries for {key}; expected one")
    return values[0]


def _number(artifact: Path, tensor: ExternalTensor, key: str, default: int) -> int:
    if not tensor.values(key):
        return default
    text = _only(artifact, tensor, key)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise _refused(artifact, f"tensor {_shown(tensor)} has {key} {text[:40]!r}; expected a whole number")
    return int(text)


def _refused(artifact: Path, reason: str) -> EngineError:
    return EngineError(f"model file {artifact} is refused: {reason}")


def _shown(tensor: ExternalTensor) -> str:
    return repr(tensor.name[:80])


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EngineError(f"model file {path} cannot be read: {error.strerror}") from error
