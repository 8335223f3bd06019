"""What a user's code may raise or return beyond what is expected.

In work it ends one item and never the run; while a stage is opened it ends the run, with an error that names the place.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.base.errors import WrongResultCount
from headrace.stages.module import check_results


def raise_if_of_the_run(error: BaseException) -> None:
    """Raise a Ctrl-C again: it ends the run, wherever it came.

    Python raises it in the main thread alone, and not while a run counts the signals (`EndSignals`). Any other
    KeyboardInterrupt was raised by the user's code, and is an error of that code as `SystemExit` is.
    """
    if (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        raise error


def members_of(results: Any, num_inputs: int, stage: str) -> Sequence[Any] | np.ndarray:
    """Return the results of a batch as an array, or as a list of its own: what a stage returned may change with its next call.

    Raises:
        WrongResultCount: If there are not as many as inputs.
        BaseException: What an object of the user's raises when it is asked for its members.
    """
    check_results(results, num_inputs, stage)
    if isinstance(results, np.ndarray):
        return results
    members = list(results)
    if len(members) != num_inputs:
        raise WrongResultCount(
            f"{stage} returned a {type(results).__name__} whose length is {num_inputs} and which has {len(members)} members "
            "when it is gone through; return a list with one result per input"
        )
    return members
