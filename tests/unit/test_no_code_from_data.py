"""Nothing that others wrote is run: every place that could is listed here with its reason, and a new one fails.

Read from the code by `ast`. Not seen: what libraries do inside, and code that hides what it calls.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headrace"

#: Modules whose reading runs code, or whose safe use depends on an argument.
_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "code",
    "codeop",
    "runpy",
    "imp",
}
_BUILTINS = {"eval", "exec", "compile", "__import__", "execfile"}
_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
#: Calls that are safe with this argument alone.
_NEEDS = {
    "np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False), "torch.load": ("weights_only", True),
    "self._torch.load": ("weights_only", True), "_torch.load": ("weights_only", True),
}  # fmt: skip
#: Calls that run code from a file whatever their arguments; their files are checked or pinned before.
_OPENS_CODE = (
    "export.load",
    "jit.load",
    "load_pt2",
    "register_custom_ops_library",
    "add_extension",
    "load_library",
    "CDLL",
)

#: (file, what) -> why it is there.
ALLOWED = {
    ("tune/space.py", "import pickle"): "asks whether the user's own stage can be sent to a process; reads nothing",
    ("store/loading_work.py", "import pickle"): "sends the user's own functions to a child of this process, over its own pipe",
    ("pipeline/remote.py", "import pickle"): "names the error of sending the user's own stage to a child; reads nothing",
    ("profiler/nvtx.py", "ctypes.CDLL"): "the driver's own library, by a fixed name",
    ("stages/nvidia_driver.py", "ctypes.CDLL"): "the driver's own library, by a fixed name: asks whether it is there",
    ("profiler/experiment/native_threads.py", "ctypes.CDLL"): "a library that this process has loaded already (RTLD_NOLOAD)",
    ("profiler/layers/torch_profile.py", "self._torch.export.load"): "behind `check_trust`: open_model, take_census",
}  # fmt: skip


def found_in(tree: ast.AST) -> set[str]:
    """Return everything in a module that could run what it reads."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in _MODULES}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in _MODULES:
            found.add(f"import {node.module}")
        elif isinstance(node, ast.Call):
            found |= _in_call(node)
    return found


def _in_call(call: ast.Call) -> set[str]:
    name = ast.unparse(call.func)
    given = {word.arg: word.value for word in call.keywords}
    found = set()
    if ast.unparse(call).startswith("ctypes.CDLL(None"):
        return found  # the C library that Python itself runs on
    if name in _BUILTINS or name in _SHELLS or name.endswith(_OPENS_CODE):
        found.add(name)
    if name in _NEEDS:
        argument, value = _NEEDS[name]
        if not (isinstance(given.get(argument), ast.Constant) and given[argument].value is value):  # type: ignore[attr-defined]
            found.add(f"{name} without {argument}={value}")
    shell = given.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        found.add(f"{name} with shell")
    return found


def test_no_code_from_data() -> None:
    """Each use of pickle, eval, exec, a shell or an unsafe loader is one that is listed, and each listed one is there."""
    found = {
        (str(file.relative_to(SOURCE)), what)
        for file in sorted(SOURCE.rglob("*.py"))
        for what in found_in(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found - set(ALLOWED) == set(), (
        "new: is it data of others? then read it another way, else list it with the reason"
    )
    # PyTorch's profiler may move: what is gone needs no reason any more.
    assert set(ALLOWED) - found == set(), "listed and not there any more"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import yaml", "eval(text)", "exec(text)", "__import__(name)",
        "os.system(command)", "subprocess.run(command, shell=True)", "subprocess.Popen(command, shell=is_shell)",
        "np.load(path)", "np.load(path, allow_pickle=True)", "torch.load(path)", "torch.load(path, weights_only=False)",
        "torch.jit.load(path)", "options.register_custom_ops_library(path)", "ctypes.CDLL(path)",
    ],
)  # fmt: skip
def test_the_search_finds_each_kind(code: str) -> None:
    """What is looked for is found, so that an empty answer says something."""
    assert found_in(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "re.compile(text)", "model.eval()", "np.load(path, allow_pickle=False)", "torch.load(path, weights_only=True)",
        "subprocess.run(command)", "subprocess.run(command, shell=False)", "import msgspec",
    ],
)  # fmt: skip
def test_the_search_leaves_the_rest_alone(code: str) -> None:
    """What is safe is not reported."""
    assert not found_in(ast.parse(code))
