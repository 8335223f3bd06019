"""What the callbacks of all frameworks share: one run folder and session for each training.

How this works: a callback's `begin` makes the folder and the session when the framework says that training begins, or joins
the session of `headrace train`, which then closes it. `end` puts back what `undo` was given, newest first, and closes. A
training that ended without saying so, because it raised and the framework has no event for that, is closed as failed where the
next one begins, or where the process ends. Of two callbacks in one training, or one that is given twice, the last records: the
first one, which has seen no batch, is closed before anything is replaced a second time.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.train.current import armed_session
from headrace.train.session import Session, end_recording
from headrace.train.shared_folder import SharedFolder

logger = logging.getLogger("headrace")

#: Those that record in this process.
_open: list[FrameworkRun] = []


class FrameworkRun:
    """The run folder of a callback, and the session while it trains.

    Attributes:
        session: While a training is recorded; None otherwise.
    """

    def __init__(self, output: str | Path, *, framework: str, force: bool) -> None:
        """Keep what is needed; nothing is written before a training begins.

        Args:
            output: Run folder to write.
            framework: Whose loop it is.
            force: Replace what an earlier run left in the folder.
        """
        self.session: Session | None = None
        self._output, self._framework, self._force = Path(output), framework, force
        self._folder: SharedFolder | None = None
        self._is_joined = False
        self._num_learnt = self._thread = 0
        self._undo: list[Callable[[], None]] = []
        self._process = os.getpid()

    def begin(self) -> Session | None:
        """Return the session of the training that begins; None if this process records nothing.

        Raises:
            RunFolderError: If the folder cannot be taken.
        """
        is_empty = self.session is not None and not self._has_learnt()
        self.end(failed=True)
        for other in tuple(_open):
            other.give_way()
        self._process, self._thread = os.getpid(), threading.get_ident()
        armed = armed_session()
        self._is_joined = armed is not None
        if armed is not None:
            if self._output != armed.folder:
                logger.warning(
                    "`headrace train` records this process already, into its own run folder; %s is not written",
                    self._output,
                )
            armed.framework = self._framework
            return self._opened(armed)
        force = self._force or is_empty  # given twice: the folder is our own, of this training
        self._folder = SharedFolder(self._output, pipeline=f"train.{self._framework}", force=force)
        session = Session(self._folder.path, script=f"train.{self._framework}", framework=self._framework)
        atexit.register(self._end_of_process)
        return self._opened(session)

    def _opened(self, session: Session) -> Session:
        self.session, self._num_learnt = session, session.recorder.num_learnt
        _open.append(self)
        return session

    def give_way(self) -> None:
        """End, if there was no batch: another callback begins in this thread, of the same training or after one that failed."""
        if self._thread == threading.get_ident() and not self._has_learnt():
            logger.warning("another callback of headrace records this training; %s stays empty", self._output)
            self.end(failed=True)

    def _has_learnt(self) -> bool:
        return self.session is not None and self.session.recorder.num_learnt > self._num_learnt

    def watch(self, loader: Any) -> Any:
        """Return a loader that behaves as the given one, and is recorded; `headrace train` watches those of PyTorch itself."""
        return loader if self.session is None or self._is_joined else self.session.watch(loader)

    def undo(self, action: Callable[[], None]) -> None:
        """Do something when the training ends, however it does."""
        self._undo.append(action)

    def restore(self) -> None:
        """Put back what was replaced for this training."""
        while self._undo:
            self._undo.pop()()

    def end(self, *, failed: bool) -> None:
        """Close what `begin` made, if that is still open.

        Args:
            failed: An exception ended the training.
        """
        session, self.session = self.session, None
        if os.getpid() != self._process:  # a forked child: the session is its parent's
            return
        _open[:] = [one for one in _open if one is not self]
        self.restore()
        if session is None or self._is_joined:
            return
        atexit.unregister(self._end_of_process)
        if self._folder is not None:
            end_recording(session, self._folder, failed=failed)

    def _end_of_process(self) -> None:
        self.end(failed=True)
