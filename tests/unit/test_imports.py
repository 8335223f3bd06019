"""Imports point upstream: the order of the folders in `docs/design.md`, read from the code by `ast`.

Every import counts, also one inside a function or under `if TYPE_CHECKING`; what is imported by name at run time (the
engines' table) is not seen.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headrace"

_FIRST = "base runs"
_STORED = f"{_FIRST} store"
_FOUR = f"{_STORED} sources stages engines delivery"
_RUNNING = f"{_FOUR} pipeline compare profiler"
_ABOVE = f"{_RUNNING} diagnose ledger report"
_ALL = f"{_ABOVE} validate tune optimize monitor serve train loop deploy samples ray"
#: Folder (or module beside the folders) -> what it may import.
ALLOWED = {
    "base": "",
    "runs": "base",
    "store": _FIRST,
    **dict.fromkeys(("sources", "stages", "engines", "delivery"), _STORED),
    "pipeline": _FOUR,
    "compare": f"{_FOUR} pipeline",
    "profiler": f"{_FOUR} pipeline compare",
    "ray": f"{_FOUR} pipeline",
    **dict.fromkeys(("diagnose", "ledger", "report"), _FIRST),
    **dict.fromkeys(("validate", "monitor", "serve", "train"), _ABOVE),
    **dict.fromkeys(("tune", "optimize"), f"{_ABOVE} validate"),
    "loop": f"{_ABOVE} validate tune optimize monitor",
    "deploy": f"{_ABOVE} monitor",
    "samples": "base",
    "testing": f"{_ALL} headrace",
    "demo": f"{_ALL} testing headrace",
    "cli": f"{_ALL} testing demo headrace",
    "__main__": "base cli",
    "headrace": f"{_ALL} testing",  # the package itself: its public names
}
HEAVY = {
    "boto3", "cv2", "httptools", "numpy", "onnx", "onnxruntime", "opentelemetry", "openvino", "perfetto", "PIL", "psutil",
    "pyarrow", "pycurl", "pynvml", "ray", "redis", "rich",
    "simplejpeg", "torch",
}  # fmt: skip


def turned_arrows(source: Path) -> list[str]:
    """Return each import that points downstream, as `folder -> folder  file:line`; `source` is the package's folder."""
    turned = []
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        folder = parts[0] if parts != ("__init__",) else "headrace"
        allowed = {folder, *ALLOWED.get(folder, "").split()}
        turned += [
            f"{folder} -> {target}  {file.relative_to(source)}:{line}"
            for line, target in _imports(file, ("headrace", *parts))
            if target not in allowed
        ]
        if folder not in ALLOWED:
            turned.append(f"{folder} has no place in the order  {file.relative_to(source)}")
    return turned


def _imports(file: Path, module: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return (line, folder that is reached) for each import of a module of headrace."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return [(node.lineno, target) for node in found for target in sorted(_targets(node, module))]


def _targets(node: ast.Import | ast.ImportFrom, module: tuple[str, ...]) -> set[str]:
    """Return the folders that an import statement reaches; `headrace` stands for the package's public names."""
    if isinstance(node, ast.Import):
        names = [alias.name.split(".") for alias in node.names]
    else:
        start = list(module[: -node.level]) if node.level else []
        start += node.module.split(".") if node.module else []
        # `from headrace import pipeline` reaches a folder; `from headrace.base import plan` is decided by its start.
        names = [[*start, alias.name] for alias in node.names]
    ours = [name[1:] for name in names if name[0] == "headrace" and name[1:] != ["__version__"]]
    return {name[0] if name and name[0] in ALLOWED else "headrace" for name in ours}


def test_no_arrow_points_downstream() -> None:
    """No folder imports what stands after it in the order; prints each that does."""
    turned = turned_arrows(SOURCE)
    assert not turned, "imports that point downstream:\n" + "\n".join(turned)


def test_a_turned_arrow_is_found_however_it_is_written(tmp_path: Path) -> None:
    """Plain, from, relative, inside a function, under TYPE_CHECKING, and through the package's public names."""
    files = {
        "base/records.py": "import headrace.pipeline.runtime\nfrom headrace.base import plan\n",
        "stages/fetch.py": "from headrace import engines\n\ndef late():\n    from headrace.delivery.jsonl import JsonLines\n",
        "engines/onnx.py": "from ..stages import decode\nfrom . import emulated\nfrom headrace.base.plan import Plan\n",
        "diagnose/verdict.py": "if TYPE_CHECKING:\n    from headrace.profiler import spans\nfrom headrace.runs import reader\n",
        "tune/search.py": "from headrace.optimize import quantize\nfrom headrace.ledger import a\nimport headrace.validate\n",
        "pipeline/api.py": "from headrace import Pipeline, __version__\n",
        "stray/thing.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert turned_arrows(tmp_path) == [
        "base -> pipeline  base/records.py:1",
        "diagnose -> profiler  diagnose/verdict.py:2",
        "engines -> stages  engines/onnx.py:1",
        "pipeline -> headrace  pipeline/api.py:1",
        "stages -> engines  stages/fetch.py:1",
        "stages -> delivery  stages/fetch.py:4",
        "stray has no place in the order  stray/thing.py",
        "tune -> optimize  tune/search.py:1",
    ]


def circles(source: Path) -> list[list[str]]:
    """Return each group of files of one folder that import one another in a circle; `source` is the package's folder."""
    files = {
        ".".join(("headrace", *file.relative_to(source).with_suffix("").parts)): file
        for file in source.rglob("*.py")
        if file.name != "__init__.py"
    }
    graph = {name: _modules(file) & files.keys() for name, file in files.items()}
    inside = {name: {other for other in found if _folder(other) == _folder(name)} for name, found in graph.items()}
    reached = {name: _reach(name, inside) for name in inside}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in inside}
    return sorted(sorted(circle) for circle in found if circle)


def _folder(module: str) -> str:
    return module.split(".")[1]


def _modules(file: Path) -> set[str]:
    """Return the modules of headrace that a file imports, however it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _reach(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return what can be reached from a module; itself only through others."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reached
        reached |= new
        ahead.extend(new)
    return reached


def test_no_files_of_a_folder_import_one_another_in_a_circle() -> None:
    """A file can be read when those that it imports have been."""
    assert circles(SOURCE) == []


def test_a_circle_is_found_under_type_checking_too(tmp_path: Path) -> None:
    """It keeps a reader from a beginning as any other does."""
    files = {
        "base/one.py": "from headrace.base.two import Two\n",
        "base/two.py": "if TYPE_CHECKING:\n    from headrace.base import one\n",
        "base/three.py": "import headrace.base.one\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(tmp_path) == [["headrace.base.one", "headrace.base.two"]]


def test_import_headrace_loads_nothing_heavy() -> None:
    """A fresh interpreter that imports headrace has loaded no large library: those come with the module that needs them."""
    code = f"import json, sys, headrace; print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == []


@pytest.mark.full
def test_a_run_does_not_import_pandas() -> None:
    """Pyarrow does where it makes an array, and then every command waits for it."""
    code = "import sys, headrace.pipeline.execute; print('pandas' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
