"""Python runs this when a program begins that `headrace train` started: waits until PyTorch is imported, and does nothing else.

It waits for Keras on PyTorch as well, which trains by functions of its own.

This folder, which holds nothing but this file, stands before `PYTHONPATH` in such a program and in its children. It takes
itself off `sys.path` and goes on to the `sitecustomize` of whoever else has one. A program that never imports PyTorch pays for
one look at the name of each module that it imports, and nothing is imported for it. What goes wrong here is printed; the
program goes on as it would without headrace.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
#: What is asked of this process; a script may clear its environment before it imports PyTorch.
_ASKED = {name: value for name, value in os.environ.items() if name.startswith("HEADRACE_")}


class _Waits:
    """A finder of modules that finds none; behind the import of one it lets a function of ours arm this process.

    Args:
        waited: Module.
        ours: Ours, whose function `arm` is called.
    """

    is_looking = False

    def __init__(self, waited, ours):  # type: ignore[no-untyped-def]
        self.waited, self.ours = waited, ours

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the module's own spec with a loader that arms afterwards; None for every other module.

        Many only look whether PyTorch is there (`importlib.util.find_spec`) and import it later, so every look is answered.
        """
        if name != self.waited or self.is_looking:
            return None
        from importlib.util import find_spec

        self.is_looking = True
        try:
            spec = find_spec(name)
        finally:
            self.is_looking = False
        if spec is not None and spec.loader is not None:
            _arm_after(spec.loader, self)  # type: ignore[no-untyped-call]
        return spec


def _arm_after(loader, finder):  # type: ignore[no-untyped-def]
    """Let this one loader object call `arm` once it has executed its module; no other one will."""
    execute = loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        del loader.exec_module
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        execute(module)
        try:
            from importlib import import_module

            import_module("headrace.train.current").set_asked(_ASKED)
            import_module(finder.ours).arm()
        except Exception as error:
            print(
                f"headrace train: {sys.executable} cannot record this process: {type(error).__name__}: {error}; "
                "the program goes on. Is headrace installed for this Python?",
                file=sys.stderr,
            )

    loader.exec_module = exec_module


def _go_on() -> None:
    """Import the `sitecustomize` that would have been imported without this one, if there is one."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != _FOLDER or not one]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if os.environ.get("HEADRACE_TRAIN"):
    sys.meta_path[:0] = [
        _Waits("torch", "headrace.train.arming"),  # type: ignore[no-untyped-call]
        _Waits("keras.src.backend.torch.trainer", "headrace.train.keras_arming"),  # type: ignore[no-untyped-call]
    ]
_go_on()
