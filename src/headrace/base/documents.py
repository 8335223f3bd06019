"""Writes and reads every document of headrace as JSON.

One converter writes, so that a NumPy scalar in a document ends no command. One function reads, since files may come from
anybody: however they are damaged, the caller has one error to explain.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_Document = TypeVar("_Document")

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()


def plain(value: Any) -> Any:
    """Return a NumPy scalar or array as Python's own numbers and lists; for use where a library asks how to encode a value.

    Raises:
        TypeError: If it is something else.
    """
    # By its method and not its type, so that writing a small document does not load NumPy.
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(
            f"a document holds a value of type {type(value).__name__}; it takes numbers, text, lists and dicts"
        )
    return to_list()


def _plain_or_text(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return str(value)


_encoder, _lenient_encoder = msgspec.json.Encoder(enc_hook=plain), msgspec.json.Encoder(enc_hook=_plain_or_text)


def encode_document(document: Any, *, indent: bool = False, or_text: bool = False) -> bytes:
    """Return a document as JSON; NaN and infinity become null, "not measured".

    Args:
        document: A struct of `headrace.runs.formats`, or dicts and lists.
        indent: For people's eyes: one value a line.
        or_text: Write what JSON cannot carry as text.

    Raises:
        TypeError: If it holds something that JSON cannot carry.
    """
    encoded = (_lenient_encoder if or_text else _encoder).encode(document)
    return msgspec.json.format(encoded, indent=2) if indent else encoded


def decode_document(content: bytes | str, kind: type[_Document]) -> _Document:
    """Return the document that JSON holds; from any thread.

    Args:
        content: Of anybody's making.
        kind: A struct of `headrace.runs.formats`, or another type that msgspec knows.

    Raises:
        msgspec.DecodeError: If it is no such document: broken, of another form, no UTF-8, or nested too deeply.
    """
    try:
        return _find_decoder(kind).decode(content)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def convert_document(value: Any, kind: type[_Document]) -> _Document:
    """Return a part of a document that was read as dicts and lists, as its type; from any thread.

    Raises:
        msgspec.ValidationError: If it has another form.
    """
    _find_decoder(kind)  # msgspec knows the type from then on
    return msgspec.convert(value, kind)


def _find_decoder(kind: type[_Document]) -> msgspec.json.Decoder[_Document]:
    """Return the decoder of a type, built by one thread at a time.

    Where two threads first meet a type together, msgspec 0.22 lets one use what the other has half built: the process dies.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder
