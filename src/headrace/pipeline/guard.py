"""Ends a run whose own threads break, with the error that broke them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("headrace")


class Guard:
    """Keeps the first error of a run's threads.

    Args:
        close: Lets no more jobs in.

    Attributes:
        error: What the run ends with; None: nothing broke.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._close = close

    def note(self, error: BaseException) -> None:
        """Keep an error, if it is the first."""
        self.error = self.error or error

    def broke(self, error: BaseException) -> None:
        """Note that a thread of the pipeline broke: the run ends with this error."""
        logger.debug("a thread of the pipeline broke", exc_info=error)
        self.note(error)
        self._close()

    def around(self, body: Callable[..., None]) -> Callable[..., None]:
        """Return a thread's body that ends the run where it breaks: its items would be in flight for ever."""

        def guarded(*arguments: Any) -> None:
            try:
                body(*arguments)
            except BaseException as error:
                self.broke(error)

        return guarded
