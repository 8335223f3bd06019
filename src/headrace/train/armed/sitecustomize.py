"""Python runs this when a program begins that `headrace train` started: waits until PyTorch is imported, and does nothing else.

This folder, which holds nothing but this file, stands before `PYTHONPATH` in such a program and in its children. It takes
itself off `sys.path` and goes on to the `sitecustomize` of whoever else has one. A program that never imports PyTorch pays for
one look at the name of each module that it imports, and nothing is imported for it. What goes wrong here is printed; the
program goes on as it would without headrace.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _WaitsForTorch:
    """A finder of modules that finds none; behind the import of PyTorch it arms this process."""

    is_looking = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return PyTorch's own spec with a loader that arms afterwards; None for every other module.

        Many only look whether PyTorch is there (`importlib.util.find_spec`) and import it later, so every look is answered.
        """
        if name != "torch" or self.is_looking:
            return None
        from importlib.util import find_spec

        self.is_looking = True
        try:
            spec = find_spec("torch")
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
            from headrace.train.arming import arm

            arm()
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
    sys.meta_path.insert(0, _WaitsForTorch())
_go_on()
