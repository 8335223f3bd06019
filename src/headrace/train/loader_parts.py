"""Tells a batch's clock when decoding, augmenting or tokenising begins and ends.

How this works: decoders and tokenisers are wrapped once in a process that loads, when their package is there; `release` puts
them back. A wrapped function passes calls on, unless its thread is loading a batch just then (`inside.clock`), so that other
threads and the model are not timed. What the data set calls as its transform is wrapped only while one of its batches is being
made: an object by its class's `__call__`, so that its type and attributes stay; a function or method by the attribute. Between
two batches the data set is what the user made.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.runs.training_phases import LoaderWork

#: `clock` is the one of the batch that this thread is loading; None or absent: none.
inside = threading.local()

#: Functions that decode, by their module.
_DECODERS = {
    "cv2": ("imread", "imdecode"),
    "simplejpeg": ("decode_jpeg",),
    "torchvision.io": ("decode_image", "read_image", "decode_jpeg", "decode_png", "decode_webp", "decode_gif"),
}
#: Methods of `PreTrainedTokenizerBase` and of what derives from it.
_TOKENISER_METHODS = ("__call__", "encode", "encode_plus", "batch_encode_plus", "__encode_plus", "_batch_encode_plus")
#: Methods of `tokenizers.Tokenizer`, which is used without `transformers` too.
_RUST_METHODS = ("encode", "encode_batch", "encode_batch_fast")
_TRANSFORMS = ("transform", "transforms", "target_transform", "augment")
#: Instructions that load what `is` compares.
_OPERANDS = 4
#: Data sets within data sets are followed so far.
_MOST_LEVELS = 5

_lock = threading.Lock()
_wrapped: list[tuple[Any, str, Any, Any, bool]] = []
_seen: set[Any] = set()


def watch_decoders() -> None:
    """Wrap the decoders and tokenisers that were imported since the last call; half a microsecond if there is nothing new."""
    modules = sys.modules
    for name, functions in _DECODERS.items():
        if name in modules and name not in _seen:
            _seen.add(name)
            for function in functions:
                if callable(getattr(modules[name], function, None)):
                    _wrap(modules[name], function, _timed(LoaderWork.DECODE, getattr(modules[name], function)))
    if "PIL.ImageFile" in modules and "PIL.ImageFile" not in _seen:
        _seen.add("PIL.ImageFile")
        _watch_pillow(modules["PIL.ImageFile"], modules["PIL.Image"])
    name = "transformers.tokenization_utils_base"
    if name in modules and name not in _seen and hasattr(modules[name], "PreTrainedTokenizerBase"):
        _seen.add(name)
        _watch_methods(modules[name].PreTrainedTokenizerBase, _TOKENISER_METHODS, LoaderWork.TOKENISE)
    kind = getattr(modules.get("tokenizers"), "Tokenizer", None)
    if kind is not None and kind not in _seen:
        _seen.add(kind)
        for method in _RUST_METHODS:
            if method in vars(kind):
                _wrap(kind, method, _timed(LoaderWork.TOKENISE, vars(kind)[method]))


def release() -> None:
    """Put back what was wrapped; what somebody else wrapped in the meantime is left alone."""
    with _lock:
        for owner, name, original, ours, is_own in reversed(_wrapped):
            if vars(owner).get(name) is ours:
                if is_own:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)
        _wrapped.clear()
        _seen.clear()


def _wrap(owner: Any, name: str, ours: Any) -> None:
    with _lock:
        is_own = name in vars(owner)
        _wrapped.append((owner, name, vars(owner).get(name), ours, is_own))
        setattr(owner, name, ours)


def _timed(part: LoaderWork, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        clock = getattr(inside, "clock", None)
        if clock is None or not clock.is_split:
            return original(*args, **kwargs)
        return clock.around(part, original, args, kwargs)

    return timed


def _watch_methods(base: type, names: tuple[str, ...], part: LoaderWork) -> None:
    """Wrap methods where a class, or one that derives from it, defines them."""
    classes = [base]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        for name in names:
            if isinstance(vars(kind).get(name), types.FunctionType):
                _wrap(kind, name, _timed(part, vars(kind)[name]))


def _watch_pillow(files: Any, images: Any) -> None:
    """Wrap `load` of what `Image.open` gives: Pillow decodes where the pixels are first needed."""

    def watch(kind: type) -> None:
        for owner in kind.__mro__:
            if owner not in _seen and issubclass(owner, files.ImageFile):
                _seen.add(owner)
                if "load" in vars(owner):
                    _wrap(owner, "load", _timed_load(vars(owner)["load"]))

    original = images.open

    @functools.wraps(original)
    def opened(*args: Any, **kwargs: Any) -> Any:
        image = original(*args, **kwargs)
        if getattr(inside, "clock", None) is not None and type(image) not in _seen:
            watch(type(image))
        return image

    watch(files.ImageFile)
    _wrap(images, "open", opened)


def _timed_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(image: Any, *args: Any, **kwargs: Any) -> Any:
        clock = getattr(inside, "clock", None)
        # Every operation calls `load`; most find the pixels there.
        if clock is None or (getattr(image, "_im", None) is not None and not image.tile):
            return original(image, *args, **kwargs)
        return clock.around(LoaderWork.DECODE, original, (image, *args), kwargs)

    return load


class _TimedFunction:
    """A function in its place in a data set, timed; where the data set is copied or pickled, it calls that function alone.

    It equals that function and has its class. It is not that object, so where the data set asks with `is`, it is not used.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        clock = getattr(inside, "clock", None)
        if clock is None or not clock.is_split:
            return self.__wrapped__(*args, **kwargs)
        return clock.around(LoaderWork.AUGMENT, self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # a copy in the making
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for `isinstance`
        return type(self.__wrapped__)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self.__wrapped__,)


class TransformWatch:
    """Wraps the transforms of a data set while one of its batches is being made."""

    def __init__(self, dataset: Any) -> None:
        self._holders = _find_holders(dataset)
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Wrap them, as they are now: a program may change them between epochs."""
        for holder in self._holders:
            for name in _TRANSFORMS:
                value = vars(holder).get(name)
                method = None if value is not None else getattr(type(holder), name, None)
                if callable(value) or isinstance(method, types.FunctionType):
                    self._watch(holder, name, value)

    @property
    def has_found(self) -> bool:
        """Whether something is wrapped now."""
        return bool(self._undo)

    def end(self) -> None:
        """Put them back."""
        while self._undo:
            self._undo.pop()()

    def _watch(self, holder: Any, name: str, value: Any) -> None:
        kind: Any = type(value)
        if value is None:
            self._watch_class(type(holder), holder, name)
        elif not _can_call_other(kind):
            if _asks_who(type(holder)):  # type: ignore[arg-type]  # a class can be hashed
                return  # what it costs is part of the items
            self._swap(vars(holder), name, _TimedFunction(value))
        else:
            self._watch_class(kind, value, "__call__")

    def _swap(self, attributes: dict[str, Any], name: str, ours: Any) -> None:
        had, before = name in attributes, attributes.get(name)

        def undo() -> None:
            if attributes.get(name) is not ours:
                return  # the data set itself put something else there
            if had:
                attributes[name] = before
            else:
                del attributes[name]

        attributes[name] = ours
        self._undo.append(undo)

    def _watch_class(self, kind: Any, value: Any, name: str) -> None:
        """Wrap a method of a class for one object of it, which itself stays as it is."""
        original, is_own = getattr(kind, name), name in vars(kind)

        @functools.wraps(original)
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            clock = getattr(inside, "clock", None)
            if clock is None or not clock.is_split or this is not value:
                return original(this, *args, **kwargs)
            return clock.around(LoaderWork.AUGMENT, original, (this, *args), kwargs)

        def undo() -> None:
            if vars(kind).get(name) is call:
                if is_own:
                    setattr(kind, name, original)
                else:
                    delattr(kind, name)

        setattr(kind, name, call)
        self._undo.append(undo)


#: `Py_TPFLAGS_HEAPTYPE`: a class made in Python, whose attributes can be set.
_HEAP_TYPE = 1 << 9


@functools.cache
def _can_call_other(kind: type) -> bool:
    """Return whether a class can be given another `__call__`: one of Python can; a function, a `partial` or one in C cannot."""
    is_function = isinstance(inspect.getattr_static(kind, "__call__", None), types.FunctionType)
    return bool(kind.__flags__ & _HEAP_TYPE) and is_function


@functools.cache
def _asks_who(kind: type) -> bool:
    """Return whether a data set, or a function beside it, asks if its transform *is* an object that is no constant."""
    places: list[Any] = [*kind.__mro__, *(sys.modules.get(owner.__module__) for owner in kind.__mro__)]
    functions = [
        value for place in places if place for value in vars(place).values() if isinstance(value, types.FunctionType)
    ]
    return any(_compares_transform(one) for one in functions if set(_TRANSFORMS) & set(one.__code__.co_names))


def _compares_transform(method: types.FunctionType) -> bool:
    names, recent = set(_TRANSFORMS), deque[dis.Instruction](maxlen=_OPERANDS)
    for one in dis.get_instructions(method):
        loaded = {name for before in recent for name in _names_in(before)}
        if one.opname == "IS_OP" and recent[-1].opname != "LOAD_CONST" and names & loaded:
            return True
        if one.opname.startswith("STORE_FAST") and recent and names & _names_in(recent[-1]):
            names |= _names_in(one)  # a variable for the transform
        recent.append(one)
    return False


def _names_in(one: dis.Instruction) -> set[str]:
    """Return the names that an instruction is about; some of Python 3.13 are about two."""
    values = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    return {value for value in values if isinstance(value, str)}


def _find_holders(dataset: Any) -> list[Any]:
    """Return the data set and those within it (`Subset`, `ConcatDataset`) that have attributes of their own."""
    found: list[Any] = []
    level = [dataset]
    for _ in range(_MOST_LEVELS):
        inner: list[Any] = []
        for one in level:
            attributes = getattr(one, "__dict__", None)
            if not isinstance(attributes, dict) or any(one is other for other in found):
                continue
            found.append(one)
            inner.append(attributes.get("dataset"))
            several = attributes.get("datasets")
            inner += several if isinstance(several, list | tuple) else []
        level = inner
    return found
