"""Lazy global state of native libraries is made before threads start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
#: Folders whose code runs in several threads at once.
THREADED = ("base", "sources", "stages", "engines", "delivery", "pipeline")


def _calls(file: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]


def test_types_of_messages_are_compiled_when_a_module_is_imported() -> None:
    """Threads decode with decoders that exist already: msgspec crashes where two compile one type at the same time."""
    found = [
        f"{file.relative_to(SOURCE)}:{call.lineno} {ast.unparse(call)}"
        for folder in THREADED
        for file in sorted((SOURCE / folder).rglob("*.py"))
        if file.name != "documents.py"
        for call in _calls(file)
        if (
            ast.unparse(call.func).endswith((".decode", ".convert"))
            and any(word.arg == "type" for word in call.keywords)
        )
        or ast.unparse(call.func) == "decode_document"
    ]
    assert not found, "build a msgspec Decoder at the module's level"


def test_documents_are_read_in_one_place() -> None:
    """JSON of others is decoded by `decode_document`, which knows every way in which it can be broken."""
    found = [
        f"{file.relative_to(SOURCE)}:{call.lineno}"
        for file in sorted(SOURCE.rglob("*.py"))
        if file.name != "documents.py"
        for call in _calls(file)
        if ast.unparse(call.func) == "msgspec.json.decode"
    ]
    assert not found, "use headrace.base.documents.decode_document"


_RACE = """
import sys, threading
from headrace.pipeline import remote, shared_values
from headrace.base import worker_slot
import msgspec
sys.setswitchinterval(1e-6)
answer = msgspec.msgpack.encode(remote._Answer(b"1", "x", [], [None], {"a": 1}, None, [{"b": 2}], [None]))
start = threading.Barrier(8)
def work():
    start.wait()
    remote._answers.decode(answer)
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("whole")
"""


@pytest.mark.parametrize("number", range(3))
def test_the_first_message_may_come_to_several_threads_at_once(number: int) -> None:
    """A fresh process whose threads decode their first answer together lives."""
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "whole\n", done.stderr


_FIRST_CALLS = """
import sys, threading
import numpy as np
from headrace import engines
from headrace.samples.catalogue import SCENES_MODEL_PATH
model = engines.engine(sys.argv[1]).open(SCENES_MODEL_PATH, threads=1, options={}, calls=2)
sys.setswitchinterval(1e-6)
start = threading.Barrier(4)
def work():
    start.wait()
    model(np.zeros((1, 3, 224, 224), np.float32))
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("whole")
"""


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_the_first_calls_of_an_engine_may_come_at_once(engine: str, number: int) -> None:
    """Workers that share a model call it together in a fresh process, and all of them get their answers."""
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_CALLS, engine], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "whole\n", done.stderr
