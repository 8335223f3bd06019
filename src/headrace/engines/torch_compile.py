"""A network compiled by torch.compile, its weights constants, at opening and not in the middle of a run.

How this works: everything is compiled for one item, for two and for sixteen while the model is opened. PyTorch makes one
program for a batch of 1 and one for any other; its convolutions divide the latter at 16. After that no batch size compiles
anything (1 to 300 tried with PyTorch 2.13). Something else that changes, such as the size of pictures, is compiled when it
comes, eight programs for a model at most; what comes after that runs uncompiled, by PyTorch's own rule.

Two traps, both seen with PyTorch 2.13. `options={"freezing": True}` freezes nothing, for the graph is taken before it is looked
at; the setting must hold for the whole of the compilation. And programs are kept by code object: every network of one class
shares its eight, and the ninth program (the third model) would run uncompiled without a word. So each model gets its own code.

References:
    PyTorch, "torch.compile" and "Recompilation" (torch._dynamo.config.recompile_limit).
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Batch sizes that are compiled at opening: each of them leads to a program of its own.
SIZES = (1, 2, 16)
#: Settings of the compiler are the whole process's.
_compiling = threading.Lock()


@contextmanager
def compiling() -> Iterator[None]:
    """Hold the settings of the compiler while a network is `compiled` and called for the first time in each of `SIZES`.

    Afterwards they are as they were: a network that is trained on in this process must not be compiled with the weights that it
    has now.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of what it uses itself
        from torch._inductor import config

        with _compiling, config.patch(freezing=True, compile_threads=1):  # one: no processes that stay behind
            yield


def compiled(network: Callable[[Any], Any]) -> Any:
    """Return a network that is compiled in its first calls."""

    def call(tensor: Any) -> Any:
        return network(tensor)

    call.__code__ = call.__code__.replace()  # an object of its own
    return torch.compile(call)


def why_no_compiler() -> str | None:
    """Return why nothing can be compiled here; None if there is a C++ compiler."""
    wanted = os.environ.get("CXX") or "g++"
    if shutil.which(wanted):
        return None
    return (
        f"compiling is not available here, because there is no C++ compiler: {wanted} is not on PATH; install it (apt-get "
        "install g++) or name one in the environment variable CXX, or leave model.options.compile out"
    )


def explained(error: Exception) -> str | None:
    """Return what an error of the compiler means; None if it is not one."""
    if "InvalidCxxCompiler" in str(error):
        return (
            f"its C++ compiler does not work: {_short(error)}; try it, or name another in the environment variable CXX"
        )
    if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        return f"PyTorch cannot compile it: {_short(error)}; leave model.options.compile out"
    return None


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
