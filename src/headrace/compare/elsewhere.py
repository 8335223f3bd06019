"""Compares pipelines of other folders, such as two checkouts of one repository, each in a process of its own.

How this works: a process is started for each side (`spawn`), changes to its folder and imports the pipeline from there, so that
two modules of one name do not meet. It answers each request for a block with what the block measured, or with why it could not
run, and ends when its pipe is closed. While one side runs a block the other waits in `recv`. Each side reads its own source;
that both run over the same items is checked by a hash of ids and payloads.

The folder is not searched for headrace: both sides run on the headrace that compares them.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.base.error_origin import text_of
from headrace.base.errors import HeadraceError, RunFolderError, SettingsError
from headrace.base.observer import Observer
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.signals import start_sheltered
from headrace.compare.blocks import Block, Contender, SameItems, measure_block, quiet
from headrace.sources.finite import Entry, FiniteSource

#: Time to import a pipeline, with its libraries.
_START_SECONDS = 300.0
#: Time for a process to end by itself.
_END_SECONDS = 5.0

Open = Callable[[], tuple[Contender, FiniteSource]]
"""Makes what is measured, and where its items come from; can be pickled; called in the folder."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why a block, or the pipeline, cannot run."""

    message: str
    is_misuse: bool


@dataclass(frozen=True, slots=True)
class _Measured:
    block: Block
    num_distinct: int
    ids: tuple[str, ...]
    digest: str
    """Of the items' ids and what they name."""


class Elsewhere:
    """A pipeline in a process of its own, with the methods of `Measurable`; a context manager.

    Args:
        name: As the user wrote it.
        folder: Where its modules are.
        opened: Makes it.

    Attributes:
        digests: {items of a block: hash of them}.
        num_distinct: Different items that blocks used so far.
        ids: Of the items that were read.
    """

    def __init__(self, name: str, folder: Path, opened: Open) -> None:
        self.name = name
        self.pipeline_name = ""
        self.digests: dict[int, str] = {}
        self.num_distinct = 0
        self.ids: tuple[str, ...] = ()
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        # Not a daemon: a pipeline may have worker processes.
        self._process = context.Process(target=_serve, args=(self._theirs, str(folder), opened), daemon=False)

    def __enter__(self) -> Elsewhere:
        """Start the process, and wait until the pipeline is imported.

        Raises:
            HeadraceError: If it cannot be; a SettingsError if the user is to change something.
        """
        start_sheltered(self._process)
        self._theirs.close()
        try:
            if not self._connection.poll(_START_SECONDS):
                raise HeadraceError(f"{self.name}: the pipeline was not imported within {_START_SECONDS:g} s")
            self.pipeline_name = self._receive()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def measure(
        self, items: SameItems, num_items: int, *, deliver: bool = False, observers: Sequence[Observer] = ()
    ) -> Block:
        """Run it once over a number of items of its own source and return what that measured."""
        try:
            self._connection.send((num_items, deliver))
        except OSError:
            raise self._explain_end() from None
        found: _Measured = self._receive()
        items.num_items = num_items
        self.num_distinct, self.ids = found.num_distinct, found.ids
        if not found.block.interrupted:  # it may have come to fewer
            self.digests[num_items] = found.digest
        return found.block

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._explain_end() from None
        if isinstance(answer, _Refused):
            raise (SettingsError if answer.is_misuse else HeadraceError)(answer.message)
        return answer

    def _explain_end(self) -> HeadraceError:
        self._process.join(_END_SECONDS)
        status = self._process.exitcode
        how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        return HeadraceError(f"{self.name}: the process that runs it {how}; its last words are above")


@dataclass
class ItemsElsewhere(SameItems):
    """The items that two processes read, which have to be the same."""

    a: Elsewhere
    b: Elsewhere
    num_items: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Be a source without items of its own."""
        FiniteSource.__init__(self, max_receives=1)

    @property
    def num_distinct(self) -> int:
        """How many different items the blocks used so far."""
        return self.a.num_distinct

    @property
    def ids(self) -> list[str]:
        """Ids of the items that were read, in order."""
        return list(self.a.ids)

    def entries(self) -> Iterator[Entry]:
        """Return none: the processes have them."""
        return iter(())

    def check_same(self) -> None:
        """Raise SettingsError if the two ran over other items."""
        for number in self.a.digests.keys() & self.b.digests.keys():
            if self.a.digests[number] != self.b.digests[number]:
                raise SettingsError(
                    f"{self.a.name} and {self.b.name} take other items from their sources, such as {self.a.ids[:1]} and "
                    f"{self.b.ids[:1]}; give both the same with --source"
                )


def _serve(connection: Connection, folder: str, opened: Open) -> None:
    """Run in the process: answer requests until the pipe is closed."""
    os.dup2(2, 1)  # what a pipeline prints is no part of the command's result
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        try:
            _enter(folder)
            contender, source = opened()
            items = SameItems(source)  # looks for the folder, if it is one
        except Exception as error:
            connection.send(_refuse(error))
            return
        connection.send(contender.pipeline_name)
        while True:
            num_items, deliver = connection.recv()
            connection.send(_measure(contender, items, num_items, deliver))


def _measure(contender: Contender, items: SameItems, num_items: int, deliver: bool) -> _Measured | _Refused:
    try:
        with quiet():
            block = measure_block(contender, items, num_items, deliver=deliver)
    except Exception as error:
        return _refuse(error)
    # Those of a source that works for each are not kept: their ids tell.
    taken = items.read[:num_items] or [Entry(one, b"") for one in items.ids[:num_items]]
    return _Measured(block, items.num_distinct, tuple(items.ids), _digest(taken))


def _digest(entries: Sequence[Entry]) -> str:
    """Return a hash of items: of ids, addresses, bytes, and of paths as seen from the folder."""
    found = hashlib.sha256()
    here = f"{os.getcwd()}/"
    for entry in entries:
        payload = entry.payload
        text = payload if isinstance(payload, bytes) else str(payload).removeprefix(here).encode("utf-8", "replace")
        found.update(f"{entry.id.removeprefix(here)} {len(text)} ".encode("utf-8", "replace") + text)
    return found.hexdigest()


def _refuse(error: Exception) -> _Refused:
    is_ours = isinstance(error, HeadraceError | OSError)
    message = hide_secrets_in_text(str(error)) if is_ours else text_of(error)
    return _Refused(message, isinstance(error, SettingsError | RunFolderError))


def _enter(folder: str) -> None:
    """Change to a folder, and look for modules there and no longer where the command was typed."""
    before = os.getcwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise SettingsError(f"the folder {folder} cannot be entered: {error.strerror}") from error
    if os.path.realpath(before) != os.path.realpath(folder):
        sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != os.path.realpath(before)]
    sys.path.insert(0, os.getcwd())
