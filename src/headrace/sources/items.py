"""Values in memory: a list, an array, an iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import SourceError
from headrace.base.settings import check
from headrace.sources.finite import Entry, FiniteSource


class Items(FiniteSource):
    """One job per value: the payload is the value, the id its number from 0. A run over them keeps no checkpoint.

    Args:
        values: A list, an array (one job per row), or an iterator, which is read during the run and serves one run only. The
            values are bytes of files, arrays, paths or URLs; a module with `ArrayInput` takes anything.
        texts: Whether a value that is a `str` is the text itself, for a module with `TextInput`, and not an address.
        max_receives: Tries of one job.
    """

    def __init__(self, values: Iterable[Any], *, texts: bool = False, max_receives: int = 3) -> None:
        super().__init__(max_receives=max_receives)
        is_one = isinstance(values, str | bytes | bytearray | Mapping) or not hasattr(values, "__iter__")
        check(not is_one, "values", type(values).__name__, "a list, an array or an iterator of values, such as [value]")
        self._values = values
        self._texts = texts
        self._is_used_up = False

    @property
    def gives_files(self) -> bool:
        """Whether the first of a list's values is a path; see `protocols.GivesFiles`."""
        return isinstance(self._values, Sequence) and isinstance(next(iter(self._values), None), Path)

    @property
    def serves_one_run(self) -> bool:
        """Whether the values are an iterator, which can be read once."""
        return iter(self._values) is self._values

    def entries(self) -> Iterator[Entry]:
        """Return the values in order; an iterator only once."""
        if self._is_used_up:
            raise SourceError(
                "the iterator given to headrace.items has been read by an earlier run; give a list, or a new one"
            )
        values = iter(self._values)
        self._is_used_up = self.serves_one_run
        return (Entry(str(number), self._payload(value)) for number, value in enumerate(values))

    def _payload(self, value: Any) -> Any:
        return value.encode("utf-8", "surrogatepass") if self._texts and isinstance(value, str) else value
