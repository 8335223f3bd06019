"""The images of a folder, in sorted order."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.runs.run_folder import encodable
from headrace.sources.finite import Entry, FiniteSource

#: Names that count as images, whatever their case.
IMAGE_PATTERNS = ("*.jpg", "*.jpeg", "*.png", "*.webp", "*.bmp", "*.gif", "*.tif", "*.tiff")
_WILD = frozenset("*?[")


class Folder(FiniteSource):
    """One job per file: the payload is its path, the id its path below the folder.

    Args:
        path: A folder; a file; or a pattern such as `photos/2026-*/*.jpg`, in which `**` is any number of folders.
        recursive: Also the folders below. A pattern says so itself.
        patterns: Names that count, whatever their case. A file or pattern says so itself.
        max_receives: Tries of one job.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        recursive: bool = True,
        patterns: Sequence[str] = IMAGE_PATTERNS,
        max_receives: int = 3,
    ) -> None:
        super().__init__(max_receives=max_receives)
        self._path = Path(path)
        self._recursive = recursive
        self._patterns = tuple(pattern.lower() for pattern in patterns)

    @property
    def where(self) -> str:
        """The path as an absolute one; what counts as an image, where that is not the default."""
        patterns = "" if self._patterns == IMAGE_PATTERNS else f", only {', '.join(self._patterns)}"
        return f"the folder {os.path.abspath(self._path)}{patterns}{'' if self._recursive else ', not those below'}"

    def entries(self) -> Iterator[Entry]:
        """Return the files found now, in sorted order."""
        files, root = find_files(self._path, recursive=self._recursive, patterns=self._patterns)
        # Names need not be Unicode, but ids go into JSON and Parquet.
        return (Entry(encodable(file.relative_to(root).as_posix()), file) for file in files)


def find_files(
    path: Path, *, recursive: bool = True, patterns: Sequence[str] = IMAGE_PATTERNS
) -> tuple[list[Path], Path]:
    """Return the files that a folder, file or pattern names, sorted, and the folder that their ids are relative to.

    Raises:
        SourceError: If there is nothing, or a folder cannot be read; names the path.
    """
    if path.is_file():
        return [path], path.parent
    if path.is_dir():
        names = _walk(path, recursive)
        files = sorted(file for file in names if any(fnmatch.fnmatch(file.name.lower(), one) for one in patterns))
        root, what = path, f"no file named {', '.join(patterns)}"
    else:
        root = _fixed_part(path)
        if root == path or not root.is_dir():
            raise SourceError(f"{path} does not exist; expected a folder, a file or a pattern such as photos/*.jpg")
        try:
            files = sorted(file for file in root.glob(str(path.relative_to(root))) if file.is_file())
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        what = "no file"
    if not files:
        raise SourceError(f"{path} has {what}")
    return files, root


def _walk(path: Path, recursive: bool) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(path, onerror=refuse):
        if not recursive:
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _fixed_part(path: Path) -> Path:
    """Return the folders of a pattern before its first wild part."""
    fixed: list[str] = []
    for part in path.parts:
        if _WILD & set(part):
            break
        fixed.append(part)
    return Path(*fixed)
