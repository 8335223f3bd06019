"""The objects of a bucket, or the samples of the tar shards in it, as jobs."""

from __future__ import annotations

import fnmatch
import importlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.base.errors import SettingsError, SourceError
from headrace.base.pieces import RemotePiece
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.settings import check
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.folder import IMAGE_PATTERNS
from headrace.sources.shards import number_ids
from headrace.store.file_systems import Store, open_store
from headrace.store.object_shards import list_object_shard, list_with_index
from headrace.store.objects import Bucket, Listed, ObjectAddress
from headrace.store.samples import TEXT_PARTS


class Objects(FiniteSource):
    """One job per object below a prefix; where there are tar shards, one per sample in them.

    The id is the name below the prefix, or the name in the shard. An object that is replaced while the run lasts is rejected.
    Shards need the index that `headrace pack` writes beside them.

    Attributes:
        patterns: Names of objects that count, in any case; `headrace pack` takes all.

    Args:
        url: `s3://bucket/prefix`, `gs://...` or `az://...`; credentials come from the environment or the machine's role. With
            `fs` a path in that file system: a folder, or one file.
        fs: A file system of fsspec that reads it instead, with the settings it was made with; its addresses need no obstore.
        patterns: Names of objects that count, in any case.
        drain: Unused: the source has an end.
        max_receives: Tries of one job.
    """

    def __init__(
        self,
        url: str,
        *,
        fs: Any = None,
        patterns: Sequence[str] = IMAGE_PATTERNS,
        drain: bool = False,
        max_receives: int = 3,
    ) -> None:
        super().__init__(max_receives=max_receives)
        self._given: Store | None = None
        prefix = ""
        if fs is not None:
            self._given, prefix = open_store(url, fs)
        self._address = ObjectAddress(self._given.store, prefix) if self._given else ObjectAddress.parse(url)
        self.patterns = tuple(pattern.lower() for pattern in patterns)
        self._listed = {"source.listed_objects": 0, "source.list_microseconds": 0, "source.index_microseconds": 0}

    @property
    def where(self) -> str:
        """The address, and the patterns if they are not the default."""
        patterns = "" if self.patterns == IMAGE_PATTERNS else f", only {', '.join(self.patterns)}"
        return f"the objects {self._shown}{patterns}"

    @property
    def _shown(self) -> str:
        return f"{self._address.store}/{self._address.prefix}"

    def entries(self) -> Iterator[Entry]:
        """Return what is there now, in order of the alphabet.

        Raises:
            SourceError: If the bucket cannot be listed, there is nothing, or a shard has no index.
        """
        bucket = self._given or Bucket(self._address.store)
        began = time.monotonic()
        found = list_with_index(bucket, self._address.prefix)
        self._listed["source.list_microseconds"] += round(1e6 * (time.monotonic() - began))
        self._listed["source.listed_objects"] += len(found)
        shards = [one for one in found if one.path.endswith(".tar")]
        if shards:
            began = time.monotonic()
            entries = [entry for shard in shards for entry in self._of_shard(bucket, shard, found)]
            self._listed["source.index_microseconds"] += round(1e6 * (time.monotonic() - began))
            return number_ids(entries)
        wanted = [one for one in found if self._counts(one.path)]
        if not wanted:
            raise SourceError(
                f"{self._shown} has no object named {', '.join(self.patterns)} among {len(found):,}, and no tar shard"
            )
        # Two are listed under one name where one of them begins with a slash.
        return number_ids(Entry(self._name(one.path), self._piece(one, 0, one.size)) for one in wanted)

    def notes(self) -> dict[str, int]:
        """Return what listing came to, beside what every such source counts: `source.list_microseconds` and the like."""
        return {**super().notes(), **{name: number for name, number in self._listed.items() if number}}

    def _counts(self, path: str) -> bool:
        name = self._name(path).rpartition("/")[2].lower()
        return not name.startswith(".") and any(fnmatch.fnmatch(name, one) for one in self.patterns)

    def _name(self, path: str) -> str:
        # Empty where a file system was given with the path of one file.
        return (
            path.removeprefix(f"{self._address.prefix}/") or self._address.store.partition("::")[0].rpartition("/")[2]
        )

    def _piece(self, one: Listed, offset: int, length: int, crc32: int | None = None) -> RemotePiece:
        return RemotePiece(self._address.store, one.path, offset, length, one.size, one.etag, crc32, self._given)

    def _of_shard(self, bucket: Store, shard: Listed, found: Sequence[Listed]) -> Iterator[Entry]:
        for sample in list_object_shard(bucket, shard, found):
            chosen = sample.choose()
            assert chosen is not None
            texts = {
                name: one.text.strip()
                for name in TEXT_PARTS
                if (one := sample.parts.get(name)) and one.text is not None
            }
            yield Entry(chosen.name, self._piece(shard, chosen.offset, chosen.length, chosen.crc32), texts)


def open_address(address: str, *, drain: bool = False) -> Objects:
    """Return the source at `fsspec://ADDRESS`, where fsspec opens the address: `fsspec://sftp://nas/photos`.

    Args:
        address: With `fsspec://` before what fsspec knows: also chains, such as `fsspec://zip://2026::photos.zip`. Settings
            come from fsspec's own files and variables of the environment.
        drain: Unused: the source has an end.

    Raises:
        SettingsError: If fsspec or what it needs for this kind is not installed, or it knows no such kind.
        SourceError: If it cannot open the address.
    """
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise SettingsError("an address fsspec://... needs the package fsspec: pip install fsspec") from None
    inner = address.partition("://")[2]
    check(
        bool(inner),
        "--source",
        address,
        "an address that fsspec opens behind fsspec://, such as fsspec://sftp://nas/photos",
    )
    try:
        fs, path = core.url_to_fs(inner)
    except (ImportError, ValueError) as error:  # of a kind that is not installed, or that nobody knows
        raise SettingsError(f"fsspec opens no such address: {hide_secrets_in_text(str(error))}") from None
    except Exception as error:  # each kind has its own
        raise SourceError(f"fsspec cannot open the address ({type(error).__name__})") from None
    return Objects(path, fs=fs, drain=drain)
