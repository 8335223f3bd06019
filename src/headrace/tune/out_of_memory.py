"""Tells whether a failure means that memory ran out, whichever library says it."""

from __future__ import annotations

import re

#: As the libraries write it: ONNX Runtime's arena and C++, CUDA and cuDNN, PyTorch, OpenVINO, NumPy, Linux.
_SIGNS = re.compile(
    r"out of memory|MemoryError|bad_alloc|bad allocation|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Failed to allocate memory|Available memory of \d+ is smaller|Unable to allocate|"
    r"Cannot allocate memory|OutOfMemoryError|std::length_error",
    re.IGNORECASE,
)


def is_out_of_memory(failure: BaseException | str) -> bool:
    """Return whether an exception, one of its causes, or a message says that memory ran out."""
    if isinstance(failure, str):
        return bool(_SIGNS.search(failure))
    seen: set[int] = set()
    error: BaseException | None = failure
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or _SIGNS.search(f"{type(error).__name__}: {error}"):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
