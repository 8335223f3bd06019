"""Failures that no job caused, because the machine lacks something: disk space, memory, file handles, credentials."""

from __future__ import annotations

import errno
import re

#: As libraries write it: ONNX Runtime's arena and C++, CUDA and cuDNN, PyTorch, OpenVINO, NumPy, Linux.
SIGNS_OF_NO_MEMORY = re.compile(
    r"out of memory|MemoryError|bad_alloc|bad allocation|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Failed to allocate memory|Available memory of \d+ is smaller|Unable to allocate|"
    r"Cannot allocate memory|OutOfMemoryError|std::length_error",
    re.IGNORECASE,
)
_BY_NUMBER = {
    errno.ENOSPC: "shortage.disk",
    errno.EDQUOT: "shortage.disk",
    errno.EMFILE: "shortage.files",
    errno.ENFILE: "shortage.files",
    errno.ENOMEM: "shortage.memory",
}
#: Types of the AWS library's errors, and the codes of those that its services answer with.
_CREDENTIALS = frozenset(
    (
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    )
)


def shortage_of(error: BaseException) -> str | None:
    """Return the code of what is short, such as `shortage.disk`, going by an exception and its causes; None: nothing is."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        code = _code(found)
        if code is not None:
            return code
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _code(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "shortage.memory"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "shortage.threads"
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return "shortage.credentials" if type(error).__name__ in _CREDENTIALS or code in _CREDENTIALS else None
