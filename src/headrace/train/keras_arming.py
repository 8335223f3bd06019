"""In a program that `headrace train` started: lets each `fit` of Keras on PyTorch record itself, as with the callback.

How this works: `arm` is called once Keras has imported its PyTorch trainer. Whatever `fit` is given as callbacks, it makes one
list of them, which is told when training begins: there ours is added, if nobody gave one.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from headrace.train.arming import FOLDER
from headrace.train.current import armed_session, read_asked


def arm() -> None:
    """Follow every list of callbacks of this process."""
    from keras.src.callbacks.callback_list import CallbackList

    original = CallbackList.on_train_begin

    @functools.wraps(original)
    def begin(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _add_ours(callbacks)
        except Exception as error:  # The program goes on, whatever it is.
            print(
                f"headrace train: a training of Keras cannot be recorded: {type(error).__name__}: {error}; the program goes on",
                file=sys.stderr,
            )
        return original(callbacks, *args, **kwargs)

    CallbackList.on_train_begin = begin


def _add_ours(callbacks: Any) -> None:
    from headrace.train.keras_callback import KerasCallback

    if any(isinstance(one, KerasCallback) for one in callbacks.callbacks) or armed_session() is None:
        return
    ours = KerasCallback(read_asked(FOLDER))
    ours.set_model(callbacks.model)
    ours.set_params(callbacks.params)
    callbacks.callbacks.append(ours)
