"""What tells a user's function from another one that gives other results: its code as it was loaded, and all that it reads.

How this works. One walk from the function: code objects with their constants, defaults, closures, the values of globals that
the code reads, classes with all that is in them, objects with their attributes. What is installed (the standard library, and
packages with a list of their files) counts as its name and that list. The kinds of values that are known are listed here;
whatever is not, or may change unseen, is refused with its name: a cache that is wrong once is worse than none.

Not seen, and promised by `deterministic=True`: files, the environment, the clock, chance, and settings of libraries.
"""

from __future__ import annotations

import abc
import dis
import enum
import functools
import hashlib
import importlib.util
import logging
import os
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePath
from typing import Any, NoReturn, cast

import numpy as np

from headrace.base.errors import SettingsError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
#: Without a content of its own.
_EMPTY = (object, type(threading.Lock()), type(threading.RLock()))
#: Builtins with which code reads or makes what cannot be seen.
_UNSEEN = {"eval", "exec", "compile", "globals", "__import__", "open", "input"}
#: Of classes, what says nothing of what they do.
_OF_CLASSES = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__"),
    *(
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__type_params__",
        "__dataclass_fields__",
        "__dataclass_params__",
    ),
}
_OF_C = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.BuiltinFunctionType),
)
_SKIPPED = {"EXTENDED_ARG", "PUSH_NULL", "CACHE", "NOP", "PRECALL", "RESUME"}
_LARGEST_GLOBAL_ARRAY = 1 << 16
_MOST_VALUES = 100_000

Held = list[tuple[str, Any]]


def hash_code(function: Any, where: str, unless_named: Collection[str] = ()) -> str:
    """Return the hash of a function's code and of all that it reads.

    Args:
        function: Or anything else that can be called.
        where: Named in errors.
        unless_named: Methods of its object that do not count where no code names them.

    Raises:
        SettingsError: If something is among it whose content cannot be told.
    """
    walk = _Walk(where, function, unless_named)
    try:
        walk.add("", function)
        walk.add_named()
    except RecursionError:
        raise SettingsError(f"{where}: its code holds values within values, too deep to be told from others") from None
    return walk.digest.hexdigest()


class _Walk:
    """One walk from a function through all that it reads."""

    def __init__(self, where: str, function: Any, unless_named: Collection[str]) -> None:
        self.digest = hashlib.sha256()
        self._where = where
        self._way: list[str] = []
        self._seen: dict[int, tuple[int, Any]] = {}  # with the values, so that no other gets their ids
        self._count = 0
        self._names: set[str] = set()
        self._later: Held = []
        self._unless_named = unless_named
        self._kinds = type(getattr(function, "__self__", None)).__mro__

    def add(self, name: str, value: Any) -> None:
        """Take a value and all that it holds into the hash."""
        self._count += 1
        if self._count > _MOST_VALUES:
            self._refuse(f"more than {_MOST_VALUES:,} values")
        if type(value) in _PLAIN:
            self._say("plain", type(value).__name__, repr(value))
            return
        self._way.append(name)
        if isinstance(value, types.CodeType):
            self._add_code(value)
        elif type(value) is tuple:
            self._add_parts(("tuple",), [(f"[{place}]", one) for place, one in enumerate(value)])
        elif type(value) is frozenset:  # shared or not, as whoever made the code liked
            self._add_parts(*self._take_apart(value))
        elif id(value) in self._seen:
            self._say("again", str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._add_parts(*self._take_apart(value))
        self._way.pop()

    def add_named(self) -> None:
        """Add the methods that were left out and are named after all."""
        while named := [one for one in self._later if one[0].lstrip(".") in self._names]:
            self._later = [one for one in self._later if one not in named]
            for name, value in named:
                self._say("named", name)
                self.add(name, value)

    def _say(self, *said: str | bytes) -> None:
        for one in said:
            data = one if isinstance(one, bytes) else one.encode("utf-8", "backslashreplace")
            self.digest.update(b"%d:" % len(data) + data)

    def _add_parts(self, said: tuple[str | bytes, ...], held: Held) -> None:
        self._say(*said, str(len(held)))
        for name, value in held:
            self._say(name)
            self.add(name, value)

    def _refuse(self, what: str, instead: str = "keep it out of the function") -> NoReturn:
        way = "".join(self._way).lstrip(".")
        raise SettingsError(
            f"{self._where}: its code{f' ({way})' if way else ''} {what}, which headrace cannot tell from another; "
            f"cache a stage before it, or {instead}"
        )

    def _take_apart(self, value: Any) -> tuple[tuple[str | bytes, ...], Held]:
        """Return what tells a value from others, and what it holds."""
        if (reference := _find_reference(value)) is not None:
            return ("installed", reference), []
        if isinstance(value, types.FunctionType):
            return ("function",), self._parts_of_function(value)
        if isinstance(value, type):
            return self._take_class_apart(value)
        if isinstance(value, types.ModuleType):
            return self._take_module_apart(value)
        if (simple := _take_simple_apart(value)) is not None:
            return simple
        if isinstance(value, set | frozenset):
            if type(value) not in (set, frozenset) or not all(
                type(one) in _PLAIN or _is_plain_tuple(one) for one in value
            ):
                self._refuse(f"holds a {type(value).__name__}")
            return (type(value).__name__, *sorted(f"{type(one).__name__} {one!r}" for one in value)), []
        if isinstance(value, enum.Enum):
            return ("member", str(value.name)), [(".class", type(value)), (".value", value._value_)]
        if not _has_python_state(type(value)):
            bound = getattr(value, "__self__", None)
            of = f" of a {type(bound).__name__}" if bound is not None else ""
            self._refuse(f"holds a {type(value).__name__}{of}")
        return ("object",), [(".class", type(value)), *_attributes_of(value)]

    def _take_module_apart(self, module: types.ModuleType) -> tuple[tuple[str | bytes, ...], Held]:
        library = _find_library(module.__name__) if sys.modules.get(module.__name__) is module else None
        if library is None:
            self._refuse(f"hands on the module {module.__name__}", "read its functions where they are called")
        return ("module", library, module.__name__), []

    def _take_class_apart(self, kind: type) -> tuple[tuple[str | bytes, ...], Held]:
        held: Held = [(".metaclass", type(kind))] if type(kind) not in (type, abc.ABCMeta, enum.EnumMeta) else []
        held += [(f".base{place}", base) for place, base in enumerate(kind.__bases__)]
        if isinstance(kind, enum.EnumMeta):
            members: dict[str, Any] = dict(kind.__members__)
            held += [(f".{name}", member._value_) for name, member in members.items()]
            held += [(f".{name}", one) for name, one in vars(kind).items() if _is_beside_members(kind, name, one)]
            return ("enum", kind.__name__), held
        for name, value in vars(kind).items():
            if name in self._unless_named and kind in self._kinds and isinstance(value, types.FunctionType):
                self._later.append((f".{name}", value))
            elif name not in _OF_CLASSES and not isinstance(value, types.MemberDescriptorType):
                if (
                    isinstance(value, _OF_C)
                    and getattr(value, "__objclass__", getattr(value, "__self__", None)) is kind
                ):
                    self._refuse(f"uses {kind.__name__}, which was compiled")
                held.append((f".{name}", value))
        return ("class", kind.__name__), held

    def _parts_of_function(self, function: types.FunctionType) -> Held:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held: Held = [("", function.__code__), ("()", function.__defaults__), ("()", function.__kwdefaults__)]
        for name, cell in cells:
            try:
                held.append((f".{name}", cell.cell_contents))
            except ValueError:
                self._refuse(f"reads {name}, which has no value yet")
        held += [(f".{name}", value) for name, value in function.__dict__.items()]
        return held if _is_installed(function) else held + self._globals_of(function)

    def _globals_of(self, function: types.FunctionType) -> Held:
        held: Held = []
        own = cast(Any, function).__builtins__  # which not every typeshed knows
        for chain in sorted(set(self._reads(function.__code__, set(function.__code__.co_freevars)))):
            name, value = chain[0], None
            if name == "import":
                held.append((f".{chain[1]}", chain[2]))
                continue
            if name in function.__globals__:
                value = function.__globals__[name]
            elif name in own and name not in _UNSEEN:
                value = own[name]
            else:
                self._refuse(f"uses {name}" if name in own else f"reads {name}, which has no value yet")
            held.append(self._follow(chain, value))
        return held

    def _follow(self, chain: tuple[str, ...], value: Any) -> tuple[str, Any]:
        """Return the value of a global, or the one in a module of the program that is read through it."""
        taken = 1
        while isinstance(value, types.ModuleType) and _find_library(value.__name__) is None:
            if taken == len(chain) or chain[taken] not in vars(value):
                self._refuse(f"hands on the module {value.__name__}", "read its functions where they are called")
            value = vars(value)[chain[taken]]
            taken += 1
        name = ".".join(chain[:taken])
        if not (_is_fixed(value) or isinstance(value, types.ModuleType) or callable(value)) or (
            callable(value) and _has_python_state(type(value)) and _find_reference(value) is None
        ):
            self._refuse(
                f"reads the global {name}, a {type(value).__name__} that may change",
                "make it a tuple or another constant, or hand it over with functools.partial",
            )
        return f".{name}", value

    def _add_code(self, code: types.CodeType) -> None:
        """Take in what code does, and not where it stands."""
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._names.update(code.co_names, (one for one in code.co_consts if isinstance(one, str)))
        said = ("code", code.co_code, code.co_exceptiontable, repr(names), repr(counts))
        self._add_parts(said, [("", constant) for constant in code.co_consts])

    def _reads(self, code: types.CodeType, free: set[str]) -> Iterator[tuple[str, ...]]:
        """Yield the globals that code reads, each with the attributes that are read of it; and ("import", name, library)."""
        steps = [one for one in dis.get_instructions(code) if one.opname not in _SKIPPED]
        stored = {one.argval for one in steps if one.opname == "STORE_NAME"}
        for place, step in enumerate(steps):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
                step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in free
            ):
                self._refuse(f"changes {step.argval}, which lives on after the call")
            elif step.opname == "IMPORT_NAME":
                yield "import", step.argval, self._import(step.argval, steps[place - 2].argval)
            elif step.opname == "LOAD_GLOBAL" or (
                step.opname in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") and step.argval not in stored
            ):
                end = place + 1
                while end < len(steps) and steps[end].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    end += 1
                yield step.argval, *(one.argval for one in steps[place + 1 : end])
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self._reads(constant, free)

    def _import(self, name: str, level: object) -> str:
        """Return the library of a module that is imported in a call."""
        found = None
        if level == 0:
            try:
                spec = importlib.util.find_spec(name.partition(".")[0])
            except (ImportError, ValueError):
                spec = None
            found = spec and _find_library_of(spec.name, spec.origin)
        if not found:
            self._refuse(f"imports {name or 'modules'} while it runs", "import it at the top of the file")
        return found


#: What tells values of these kinds from others, and what they hold; none of them hides anything.
_SIMPLE: dict[type, Callable[[Any], tuple[tuple[str, ...], Held]]] = {
    types.MethodType: lambda one: ((), [("", one.__func__), (".self", one.__self__)]),
    staticmethod: lambda one: ((), [("", one.__func__)]),
    classmethod: lambda one: ((), [("", one.__func__)]),
    property: lambda one: ((), [("", one.fget), (".setter", one.fset), (".deleter", one.fdel)]),
    functools.cached_property: lambda one: ((), [("", one.func)]),
    functools.partial: lambda one: (
        (),
        [(".func", one.func), (".args", one.args), (".keywords", one.keywords), (".dict", one.__dict__)],
    ),
    type(functools.lru_cache(len)): lambda one: ((), [("", one.__wrapped__), (".dict", one.__dict__)]),
    types.MethodDescriptorType: lambda one: ((one.__name__,), [("", one.__objclass__)]),
    types.WrapperDescriptorType: lambda one: ((one.__name__,), [("", one.__objclass__)]),
    list: lambda one: ((), [(f"[{place}]", part) for place, part in enumerate(one)]),
    dict: lambda one: ((), list(_items_of(one))),
    range: lambda one: ((), [("", one.start), ("", one.stop), ("", one.step)]),
    slice: lambda one: ((), [("", one.start), ("", one.stop), ("", one.step)]),
    re.Pattern: lambda one: ((), [("", one.pattern), ("", one.flags)]),
    logging.Logger: lambda one: ((one.name,), []),
    **{kind: lambda one: ((), []) for kind in _EMPTY},
}


def _take_simple_apart(value: Any) -> tuple[tuple[str | bytes, ...], Held] | None:
    """Return the parts of a value of a kind that hides nothing; None: it is of none."""
    kind = type(value)
    if kind in _SIMPLE:
        said, held = _SIMPLE[kind](value)
        return (kind.__name__, *said), held
    if kind is types.BuiltinFunctionType and isinstance(value.__self__, type):
        return ("builtin", value.__name__), [("", value.__self__)]
    if isinstance(value, PurePath) and kind.__module__.startswith("pathlib"):
        return (kind.__name__, str(value)), []
    return _take_numbers_apart(value)


def _take_numbers_apart(value: Any) -> tuple[tuple[str | bytes, ...], Held] | None:
    if type(value) is bytearray:
        return ("bytearray", bytes(value)), []
    if isinstance(value, np.dtype) and _is_told(value):
        return ("dtype", repr(value)), []
    if type(value) is np.ndarray and _is_told(value.dtype):
        return ("array", repr(value.dtype), repr(value.shape), value.tobytes()), []
    if isinstance(value, np.generic) and _is_told(value.dtype):
        return ("number", repr(value.dtype), value.tobytes()), []
    return None


def _is_told(dtype: np.dtype[Any]) -> bool:
    """Return whether the bytes of such numbers are their content."""
    return not dtype.hasobject and dtype.kind in "biufcmMSUV"


def _is_fixed(value: Any) -> bool:
    """Return whether a value stays as it is, whoever has it; also small arrays, which are constants by use."""
    if type(value) in (tuple, frozenset):
        return all(_is_fixed(one) for one in value)
    if type(value) is np.ndarray:
        return value.nbytes <= _LARGEST_GLOBAL_ARRAY
    fixed = (PurePath, enum.Enum, np.dtype, np.generic, re.Pattern, range, logging.Logger)
    return type(value) in _PLAIN or isinstance(value, fixed)


def _is_plain_tuple(value: Any) -> bool:
    return type(value) is tuple and all(type(one) in _PLAIN or _is_plain_tuple(one) for one in value)


def _items_of(items: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for place, (key, value) in enumerate(items.items()):
        if type(key) is str:
            yield f".{key}", value
        else:
            yield f"[key {place}]", key
            yield f"[{place}]", value


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    yield from _items_of(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield f".{kind.__name__}.{name}", slot.__get__(value, kind)
                except AttributeError:
                    yield f".{kind.__name__}.{name} is not set", None


def _has_python_layout(kind: type) -> bool:
    """Return whether objects of a class have attributes and slots alone: nothing that only C code sees."""
    slots = sum(isinstance(one, types.MemberDescriptorType) for base in kind.__mro__ for one in vars(base).values())
    size = object.__basicsize__ + 8 * (slots + (kind.__weakrefoffset__ > 0) + (kind.__dictoffset__ > 0))
    makers = [vars(base).get("__new__") for base in kind.__mro__ if base is not object]
    is_made_by_c = any(isinstance(one, types.BuiltinFunctionType) for one in makers)
    return kind.__basicsize__ == size and kind.__itemsize__ == 0 and not is_made_by_c


def _has_python_state(kind: type) -> bool:
    return _has_python_layout(kind) and bool(kind.__flags__ & 1 << 9)  # made at run time, as those of Python are


def _is_beside_members(kind: type, name: str, value: Any) -> bool:
    """Return whether something in an Enum's class is neither a member nor made by Enum."""
    is_members = isinstance(value, kind) or (isinstance(value, enum.property) and value.fget is None)
    return _is_of_program(value) or not (is_members or name.startswith("_"))


def _is_of_program(value: Any) -> bool:
    """Return whether something in a class is a function that does not come from a library."""
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    return isinstance(inner, types.FunctionType) and not _is_installed(inner)


def _is_installed(function: types.FunctionType) -> bool:
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and vars(module) is function.__globals__ and _find_library(module.__name__) is not None


def _find_reference(value: Any) -> str | None:
    """Return the place of a value in a library; None: it is in none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
        return None
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    library = _find_library(module) if found is value else None
    return library and f"{library} {module} {name}"


def _find_library(name: str) -> str | None:
    """Return what tells the library of a module from another version of it; None: it is of the program."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    return _find_library_of(name, file or (spec and spec.origin)) if module is not None else None


@functools.lru_cache(maxsize=1_024)
def _find_library_of(name: str, file: str | None) -> str | None:
    top = name.partition(".")[0]
    if top == "__main__" or file is None:
        return None
    if top == "headrace" or (file in ("built-in", "frozen") and top in sys.stdlib_module_names):
        return top
    path = Path(os.path.abspath(file))
    folder = next((one for one in path.parents if one.name in ("site-packages", "dist-packages")), None)
    if folder is not None:
        return _find_package(folder, path.relative_to(folder).as_posix())
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return "python" if any(path.is_relative_to(one) for one in standard) and top in sys.stdlib_module_names else None


def _find_package(folder: Path, file: str) -> str | None:
    """Return name, version and hash of the list of files of the installed package that has a file."""
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        said = b"\n" + record.read_bytes()
        if b"\n" + file.encode() + b"," in said:
            return f"{record.parent.name} {hashlib.sha256(said).hexdigest()}"
    return None
