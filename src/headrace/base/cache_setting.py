"""The Plan's `[stages.NAME] cache`: where the results of a stage are kept, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.base.settings import check
from headrace.base.units import parse_size

_EXPECTED = (
    '"memory:SIZE" or "disk:FOLDER:SIZE", such as "memory:2GB", and ":immutable" behind it if what is at an address never '
    "changes"
)
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """What the text says."""

    folder: Path | None
    """None: in memory."""
    limit_bytes: int
    is_immutable: bool
    """Whether http(s) addresses are taken for versions of their content, which is never looked at again."""

    @classmethod
    def parse(cls, text: str) -> CacheSetting:
        """Read a setting; raises SettingsError if it is none."""
        check(isinstance(text, str), "cache", text, _EXPECTED)
        rest = text.removesuffix(":immutable")
        kind, _, rest = rest.partition(":")
        folder, _, size = rest.rpartition(":")
        is_place = not folder if kind == "memory" else kind == "disk" and bool(folder) and "\0" not in folder
        check(is_place, "cache", text, _EXPECTED)
        try:
            limit = parse_size(size)
        except ValueError:
            limit = 0
        check(limit >= _LEAST_BYTES, "cache", text, f"{_EXPECTED}; at least 1 MiB")
        return cls(Path(folder) if folder else None, limit, text.endswith(":immutable"))
