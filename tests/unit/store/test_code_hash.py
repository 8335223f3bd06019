"""What tells a user's code from other code: all that it reads, and else it is refused."""

from __future__ import annotations

import collections
import functools
import importlib
import itertools
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.store.code_hash import hash_code

HEAD = """
import dataclasses, enum, functools, logging, re
from fractions import Fraction
from pathlib import Path
import cv2
import numpy as np
import headrace as hr
from numpy.linalg import norm
logger = logging.getLogger("x")
def same(value): return value
"""

#: Programs that differ in what stands for $, which is 1 or 2; `f` is the function of the stage.
PROGRAMS = {
    "constant": "def f(v): return v * $",
    "global": "K = $\ndef f(v): return v * K",
    "tuple": "K = (0, ($, 'x'))\ndef f(v): return v * K[1][0]",
    "array": "K = np.array([1, $])\ndef f(v): return v * K",
    "number": "K = np.float32($)\ndef f(v): return v * K",
    "dtype": "K = np.dtype('f4' if $ == 1 else 'f8')\ndef f(v): return v.astype(K)",
    "path": "K = Path('$')\ndef f(v): return str(K)",
    "pattern": "K = re.compile('$')\ndef f(v): return K.sub('', v)",
    "member": "class E(enum.Enum):\n    A = $\nK = E.A\ndef f(v): return K.value",
    "member by class": "class E(enum.IntEnum):\n    A = $\ndef f(v): return E.A",
    "beside members": "class E(enum.Enum):\n    A = 1\n    def g(self): return $\ndef f(v): return E.A.g()",
    "helper": "def g(v): return v + $\ndef f(v): return g(v)",
    "helper of a helper": "def h(v): return v + $\ndef g(v): return h(v)\ndef f(v): return [g(one) for one in v]",
    "default": "def f(v, k=$): return v",
    "keyword": "def f(v, *, k=$): return v",
    "attribute": "def f(v): return v * f.k\nf.k = $",
    "class attribute": "class C:\n    k = $\n    def __call__(self, v): return self.k\nf = C()",
    "method": "class C:\n    def g(self, v): return v * $\n    def __call__(self, v): return self.g(v)\nf = C()",
    "base": "class B:\n    def g(self, v): return v * $\nclass C(B):\n    def __call__(self, v): return self.g(v)\nf = C()",
    "property": "class C:\n    @property\n    def k(self): return $\n    def __call__(self, v): return self.k\nf = C()",
    "class in a class": "class C:\n    class D:\n        k = $\n    def __call__(self, v): return self.D.k\nf = C()",
    "closure of a method": (
        "def make(k):\n    class C:\n        def g(self, v): return v * k\n        def __call__(self, v): return self.g(v)\n"
        "    return C()\nf = make($)"
    ),
    "private slot": "class C:\n    __slots__ = ('__k',)\n    def __init__(s): s.__k = $\n    def g(s): return s.__k\nf = C().g",
    "dataclass": "class C:\n    k: int\n    def __call__(self, v): return self.k\nf = dataclasses.dataclass(frozen=True)(C)($)",
    "module": (
        "class M(hr.Module):\n    k = $\n    def preprocess(self, v): return v * self.k\n    def process(self, b): return b\n"
        "f = M().preprocess"
    ),
    "same object again": "def a(v): return v\ndef b(v): return v + 1\nf = functools.partial(same, (a, b, (a, b)[$ - 1]))",
    "order": "f = functools.partial(same, {1: 1, 2: 2} if $ == 1 else {2: 2, 1: 1})",
    "fraction": "f = functools.partial(same, Fraction(1, 3 + $))",
    "structured": "f = functools.partial(same, np.zeros(1, [('a$', 'i4')]))",
    "cached": "def g(v): return v + $\ng = functools.lru_cache(g)\ndef f(v): return g(v)",
    "handled": "def f(v):\n    try: return v[0]\n    except (IndexError, KeyError)[$ - 1]: return 0",
    "wrapped": (
        "def g(h):\n    @functools.wraps(h)\n    def run(v): return h(v)\n    return run\nf = g(lambda v: v + K)\nK = $"
    ),
}


def load(text: str) -> Any:
    """Return the function of a program, which stands in no file, as in a notebook."""
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(HEAD + text, namespace)
    return namespace["f"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_code_reads_tells_it_from_other_code(name: str) -> None:
    """And the same program has the same hash again."""
    hashes = [hash_code(load(PROGRAMS[name].replace("$", which)), "stage f", ("process",)) for which in "121"]
    assert hashes[0] == hashes[2]
    assert hashes[0] != hashes[1]


def test_what_code_does_not_read_does_not_count() -> None:
    """Other functions beside it, what runs behind a module's preprocess, and libraries, whatever they hold."""
    program = (
        "OTHER = [$]\nclass M(hr.Module):\n    def preprocess(self, v):\n        logger.info('x')\n"
        "        return cv2.resize(np.asarray(v, np.float32), (9, 9)) / norm(v)\n"
        "    def process(self, b): return OTHER\nf = M().preprocess"
    )
    hashes = {hash_code(load(program.replace("$", which)), "stage f", ("process",)) for which in "12"}
    assert len(hashes) == 1
    with pytest.raises(SettingsError, match="reads the global OTHER, a list"):
        hash_code(
            load(program.replace("$", "1").replace("logger.info('x')", "self.process(v)")), "stage f", ("process",)
        )


REFUSED = {
    "reads the global K, a list": "K = [1]\ndef f(v): return K",
    "reads the global K, a dict": "K = {}\ndef f(v): return K",
    "reads the global K, a tuple": "K = ([1],)\ndef f(v): return K",
    "reads the global K, a C ": "class C: pass\nK = C()\ndef f(v): return K.k",
    "reads K, which has no value yet": "def f(v): return K",
    "reads zz, which has no value yet": "def g():\n    def f(v): return zz\n    if 0: zz = 1\n    return f\nf = g()",
    "changes K, which lives on": "K = 0\ndef f(v):\n    global K\n    K += 1",
    "changes k, which lives on": "def g(k):\n    def f(v):\n        nonlocal k\n        k += 1\n    return f\nf = g(0)",
    "uses open": "def f(v): return open(v).read()",
    "uses eval": "def f(v): return eval('v')",
    "imports test_none while it runs": "def f(v):\n    import test_none\n    return test_none.k",
    "holds a builtin_function_or_method of a CLAHE": "K = cv2.createCLAHE(2.0).apply\ndef f(v): return K(v)",
}  # fmt: skip


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_told_is_refused_by_name(says: str) -> None:
    """Rather than guessed."""
    with pytest.raises(SettingsError, match=f"stage s: its code.*{says}"):
        hash_code(load(REFUSED[says]), "stage s")


class Own(bytearray):
    """A builtin container with a class of its own."""


HIDING = [
    *(random.Random(1), collections.defaultdict(list), Own(b"1"), (one for one in "a"), np.ma.array([1], mask=[True])),
    *(itertools.count(), collections.OrderedDict(), threading.local(), np.array([object()]), "x".join, {1}.union),
    *({(1, frozenset((2,)))}, cv2.createCLAHE(2.0), os),
]


@pytest.mark.parametrize("value", HIDING, ids=lambda one: type(one).__name__)
def test_what_hides_its_content_is_refused(value: Any) -> None:
    """Wherever it is held; a module of the standard library hides nothing."""
    held = functools.partial(len, [value])
    if value is os:
        assert hash_code(held, "s")
        return
    with pytest.raises(SettingsError, match="cannot tell from another"):
        hash_code(held, "s")


def test_values_without_end_are_refused() -> None:
    """And those that hold themselves are not without end."""
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(SettingsError, match="too deep"):
        hash_code(functools.partial(len, deep), "s")
    round_: list[Any] = []
    round_.append(round_)
    assert hash_code(functools.partial(len, round_), "s")


def test_code_counts_as_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as its file says by now; also in another module of the program, of which only what is read counts."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    texts = ["OTHER = [1]\ndef g(v): return v + 1", "OTHER = [2]\ndef g(v): return v + 1", "def g(v): return v + 300"]
    hashes = []
    for text in texts:
        (tmp_path / "helper_of_test.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("helper_of_test", None)
        function = load("import helper_of_test\ndef f(v): return helper_of_test.g(v)")
        (tmp_path / "helper_of_test.py").write_text("def g(v): return 'edited meanwhile'")
        hashes.append(hash_code(function, "s"))
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(SettingsError, match="hands on the module helper_of_test"):
        hash_code(load("import helper_of_test\ndef f(v): return getattr(helper_of_test, 'g')(v)"), "s")
    sys.modules.pop("helper_of_test")


def test_another_process_finds_the_same_hash(tmp_path: Path) -> None:
    """Whether it compiled the program, or loaded what was compiled; whatever its hashes of text are."""
    (tmp_path / "program.py").write_text(
        HEAD + "SET = frozenset(('a', 'b'))\ndef g(v): return v in {'x', 'y', 'z'} or v in SET\n"
        "def f(v): return [g(one) for one in v if one in {'x', 'y', 'z'}]"
    )
    says = "from headrace.store.code_hash import hash_code; import program; print(hash_code(program.f, 's'))"
    found = set()
    for seed in "123":
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run([sys.executable, "-c", says], env=environ, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
