"""The images of a folder, in sorted order. Files that look like images and are left out are counted and reported."""

from __future__ import annotations

import collections
import errno
import fnmatch
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.base.formatting import encodable
from headrace.base.named_paths import Named, list_paths, refuse_unreachable
from headrace.sources.addresses import suffix_of
from headrace.sources.finite import Entry, FiniteSource
from headrace.store.samples import ROW_SUFFIXES

log = logging.getLogger(__name__)

#: Names of images in the formats that a Plan can accept, TIFF included; case does not matter.
IMAGE_PATTERNS = (
    "*.jpg", "*.jpeg", "*.jpe", "*.jfif", "*.png", "*.webp", "*.bmp", "*.gif", "*.tif", "*.tiff",
)  # fmt: skip
#: Names of images that no Plan accepts.
_OTHER_IMAGES = frozenset({
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".svg", ".psd", ".ico", ".tga", ".exr", ".hdr", ".dng", ".cr2",
    ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pbm", ".pgm", ".ppm",
})  # fmt: skip
_WILD = frozenset("*?[")
#: Of what is left out, that are told: there may be a file of every ending.
_MOST_KINDS = 10


class Folder(FiniteSource):
    """One job per file: the payload is its path, the id its path below the folder.

    Args:
        path: A folder; a file; a pattern such as `photos/2026-*/*.jpg`, in which `**` is any number of folders; or a list of
            these: then ids are relative to the folder that holds them all.
        recursive: Also read the folders below. Unused if `path` is a pattern.
        patterns: Names that count, in any case. Unused if `path` is a file or a pattern.
        max_receives: Tries of one job.
    """

    def __init__(
        self,
        path: Named,
        *,
        recursive: bool = True,
        patterns: Sequence[str] = IMAGE_PATTERNS,
        max_receives: int = 3,
    ) -> None:
        super().__init__(max_receives=max_receives)
        self._paths = list_paths(path, "path", addresses="; hr.objects reads a bucket, hr.urls a list of addresses")
        self._recursive = recursive
        self._patterns = tuple(pattern.lower() for pattern in patterns)

    @property
    def where(self) -> str:
        """The absolute path, and the patterns if they are not the default."""
        patterns = "" if self._patterns == IMAGE_PATTERNS else f", only {', '.join(self._patterns)}"
        paths = ", ".join(map(os.path.abspath, self._paths))
        return f"the folder {paths}{patterns}{'' if self._recursive else ', not those below'}"

    @property
    def gives_files(self) -> bool:
        """True; see `protocols.GivesFiles`."""
        return True

    def entries(self) -> Iterator[Entry]:
        """Return the files found now, in sorted order."""
        files, root = find_all_files(self._paths, recursive=self._recursive, patterns=self._patterns)
        # Names need not be Unicode, but ids go into JSON and Parquet.
        return (Entry(encodable(file.relative_to(root).as_posix()), file) for file in files)


def find_all_files(
    paths: Sequence[Path],
    *,
    recursive: bool = True,
    patterns: Sequence[str] = IMAGE_PATTERNS,
    tells_others: bool = False,
) -> tuple[list[Path], Path]:
    """Return the sorted files of several folders, files or patterns, each once, and the folder that holds them all.

    Raises:
        SourceError: As of `find_files`.
    """
    found = [find_files(path, recursive=recursive, patterns=patterns, tells_others=tells_others) for path in paths]
    if len(paths) == 1:
        return found[0]
    root = os.path.commonpath([os.path.abspath(root) for _, root in found])
    return sorted({Path(os.path.abspath(file)) for files, _ in found for file in files}), Path(root)


def find_files(
    path: Path, *, recursive: bool = True, patterns: Sequence[str] = IMAGE_PATTERNS, tells_others: bool = False
) -> tuple[list[Path], Path]:
    """Return the sorted files of a folder, file or pattern, and the folder to which their ids are relative.

    Args:
        path: Of one of these.
        recursive: Also read the folders below.
        patterns: Names that count.
        tells_others: Whether all files of a folder that do not count are told as left out; else, images that no Plan accepts.

    Raises:
        SourceError: If there is nothing, or a folder cannot be read; names the path.
    """
    refuse_unreachable(path)
    if path.is_file():
        return [path], path.parent
    if path.is_dir():
        left_out: collections.Counter[str] = collections.Counter()
        files = sorted(_walk(path, recursive, patterns, left_out, tells_others))
        root, what = path, f"no file named {', '.join(patterns)}"
        if +left_out:  # without those of which there are none
            listed = ", ".join(f"{kind}: {number}" for kind, number in (+left_out).most_common(_MOST_KINDS))
            log.warning("%s: %d files are taken; left out are %s", path, len(files), encodable(listed))
    else:
        root = _find_fixed_part(path)
        if root == path or not root.is_dir():
            raise SourceError(f"{path} does not exist; expected a folder, a file or a pattern such as photos/*.jpg")
        try:
            files = sorted(file for file in root.glob(str(path.relative_to(root))) if file.is_file())
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        what = "no file"
    if not files:
        raise SourceError(f"{path} has {what}{_find_rows(path) if tuple(patterns) == IMAGE_PATTERNS else ''}")
    return files, root


def holds_rows(name: str) -> bool:
    """Return whether a file is one that `records` reads row by row, by its name."""
    return suffix_of(name) in ROW_SUFFIXES and not name.endswith(".idx.parquet")


def _find_rows(path: Path) -> str:
    """Return what else to write for a folder that has no images, but files of rows; empty if it has none."""
    names = (name for _, _, listed in os.walk(path) for name in listed)
    found = next((name for name in names if holds_rows(name)), None)
    return f"; {encodable(found)} holds rows, which records://{path} reads" if found else ""


def _counts(
    file: Path, patterns: Sequence[str], left_out: collections.Counter[str], tells_others: bool = False
) -> bool:
    """Return whether the name of a file counts; count the images that do not, or all that do not."""
    name = file.name.lower()
    if any(fnmatch.fnmatch(name, one) for one in patterns):
        return True
    suffix = os.path.splitext(name)[1]
    if tells_others:
        left_out[suffix or "names without an ending"] += 1
    elif tuple(patterns) == IMAGE_PATTERNS and suffix in _OTHER_IMAGES:
        left_out[f"{suffix} (no Plan accepts them)"] += 1
    return False


def _walk(
    path: Path, recursive: bool, patterns: Sequence[str], left_out: collections.Counter[str], tells_others: bool
) -> Iterator[Path]:
    """Yield the files of a folder whose names count; count what is left out, and folders that are links, not followed."""
    too_long: list[Path] = []

    def refuse(error: OSError) -> None:
        if error.errno == errno.ENAMETOOLONG:  # an item that will be rejected, as nobody can look into it
            too_long.append(Path(error.filename))
            return
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(path, onerror=refuse):
        if not recursive:
            folders.clear()
        left_out["hidden folders"] += sum(name.startswith(".") for name in folders)
        folders[:] = [name for name in folders if not name.startswith(".")]
        left_out["links to folders"] += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        hidden = [name for name in names if name.startswith(".")]
        left_out["hidden images"] += sum(_counts(Path(name), IMAGE_PATTERNS, left_out) for name in hidden)
        files = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (file for file in files if _counts(file, patterns, left_out, tells_others))
    yield from too_long


def _find_fixed_part(path: Path) -> Path:
    """Return the folders of a pattern before its first wild part."""
    fixed: list[str] = []
    for part in path.parts:
        if _WILD & set(part):
            break
        fixed.append(part)
    return Path(*fixed)
