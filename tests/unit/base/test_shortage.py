"""What is missing on a machine is told from what is wrong with an item."""

from __future__ import annotations

import errno

import pytest

from headrace.base.errors import DecodeRejected, DeliveryFailed, Shortage, StageFailed, as_item_error
from headrace.base.shortage import shortage_of


class ClientError(Exception):
    """As the AWS library raises it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


@pytest.mark.parametrize(("error", "code"), [
    (OSError(errno.ENOSPC, "x"), "shortage.disk"),
    (OSError(errno.EDQUOT, "x"), "shortage.disk"),
    (OSError(errno.EMFILE, "x"), "shortage.files"),
    (OSError(errno.ENOMEM, "x"), "shortage.memory"),
    (MemoryError(), "shortage.memory"),
    (RuntimeError("can't start new thread"), "shortage.threads"),
    (ClientError("ExpiredToken"), "shortage.credentials"),
    (ClientError("NoSuchKey"), None),
    (OSError(errno.ENOENT, "x"), None),
    (ValueError("no space left on device"), None),
])  # fmt: skip
def test_kinds(error: Exception, code: str | None) -> None:
    """The type and the number decide, not the words."""
    assert shortage_of(error) == code


def test_causes_count() -> None:
    """What was raised because of a shortage is one, also where the cause is not shown."""
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError:
            raise DeliveryFailed("results.jsonl cannot be written") from None
    except DeliveryFailed as error:
        failure = as_item_error(error.locate("deliver", "a"))
    assert isinstance(failure, Shortage)
    assert str(failure) == "deliver: item a: shortage.disk: results.jsonl cannot be written"
    assert failure.code == "shortage.disk"


def test_what_is_rejected_stays_rejected() -> None:
    """An image that would take too much memory is the image's fault."""
    error = DecodeRejected("decode.bomb: too many pixels")
    error.__cause__ = MemoryError()
    assert as_item_error(error) is error
    assert isinstance(as_item_error(ValueError("x")), StageFailed)
