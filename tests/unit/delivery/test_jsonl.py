"""One line of JSON per result."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.records import Job
from headrace.delivery.jsonl import JsonLines


def lines(path: Path) -> list[Any]:
    """Every line of a file, read by the standard library."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def write(path: Path, *names: str, result: Any = 1) -> None:
    """Open, deliver, close."""
    delivery = JsonLines(path)
    delivery.open(None)
    for name in names:
        assert delivery.deliver(Job(name, b"", task="t"), result) is True
    delivery.close()


def run_child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_one_line_per_result(tmp_path: Path) -> None:
    """Each result is a line with id, task and result, in order."""
    path = tmp_path / "out.jsonl"
    write(path, "a", "b", result={"label": "café\n"})
    assert lines(path) == [{"id": name, "task": "t", "result": {"label": "café\n"}} for name in "ab"]


def test_numpy_results(tmp_path: Path) -> None:
    """Arrays and scalars of NumPy become lists and numbers."""
    write(tmp_path / "out.jsonl", "a", result={"scores": np.array([0.5, 1]), "best": np.int64(1)})
    assert lines(tmp_path / "out.jsonl")[0]["result"] == {"scores": [0.5, 1.0], "best": 1}


def test_a_line_is_there_once_delivered(tmp_path: Path) -> None:
    """No flush and no close is needed for another reader to see it."""
    delivery = JsonLines(tmp_path / "out.jsonl")
    delivery.open(None)
    delivery.deliver(Job("a", b""), 1)
    assert [line["id"] for line in lines(tmp_path / "out.jsonl")] == ["a"]
    delivery.close()


def test_the_folder_is_made(tmp_path: Path) -> None:
    """A missing folder is made with the file."""
    write(tmp_path / "new" / "deep" / "out.jsonl", "a")
    assert len(lines(tmp_path / "new" / "deep" / "out.jsonl")) == 1


def test_earlier_lines_stay(tmp_path: Path) -> None:
    """A second run appends."""
    path = tmp_path / "out.jsonl"
    write(path, "a")
    write(path, "b")
    assert [line["id"] for line in lines(path)] == ["a", "b"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    """Lines of several workers are whole, and none is lost."""
    path = tmp_path / "out.jsonl"
    delivery = JsonLines(path)
    delivery.open(None)

    def work(worker: int) -> None:
        for number in range(50):
            delivery.deliver(Job(f"{worker}-{number}", b""), "x" * 5000)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivery.close()
    assert len({line["id"] for line in lines(path)}) == 200


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    """What was delivered before SIGKILL is in the file, without a close."""
    path = tmp_path / "out.jsonl"
    child = run_child(
        """
import os, signal, sys
from headrace.base.records import Job
from headrace.delivery.jsonl import JsonLines
delivery = JsonLines(sys.argv[1])
delivery.open(None)
for number in range(100):
    delivery.deliver(Job(str(number), b""), "x" * number)
os.kill(os.getpid(), signal.SIGKILL)
""",
        path,
    )
    assert child.returncode == -signal.SIGKILL
    assert [line["id"] for line in lines(path)] == [str(number) for number in range(100)]


def test_half_a_line_is_ended(tmp_path: Path) -> None:
    """After a kill in mid-line the next run begins a line of its own: every whole result before and after is readable."""
    path = tmp_path / "out.jsonl"
    write(path, "a")
    with path.open("ab") as file:
        file.write(b'{"id":"b","ta')
    write(path, "c")
    found = path.read_text().splitlines()
    assert [json.loads(found[0])["id"], found[1], json.loads(found[2])["id"]] == ["a", '{"id":"b","ta', "c"]


def test_half_a_line_of_another_process_is_ended(tmp_path: Path) -> None:
    """Where another process was killed in mid-line, one that lives does not glue its next line to it."""
    path = tmp_path / "out.jsonl"
    delivery = JsonLines(path)
    delivery.open(None)
    with path.open("ab") as file:
        file.write(b'{"id":"b","ta')
    delivery.deliver(Job("c", b""), 1)
    delivery.close()
    found = path.read_text().splitlines()
    assert (found[0], json.loads(found[1])["id"]) == ('{"id":"b","ta', "c")


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    """While another process is at the file, nothing is written behind what it may still have to end or to cut off."""
    path = tmp_path / "out.jsonl"
    delivery = JsonLines(path)
    delivery.open(None)
    thread = threading.Thread(target=delivery.deliver, args=(Job("mine", b""), 1))
    with path.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"id":"other","resu')
        thread.start()
        thread.join(0.1)
        other.write(b'lt":1}\n')
    thread.join(30)
    delivery.close()
    assert [line["id"] for line in lines(path)] == ["other", "mine"]


ENDLESS = """
import sys
from headrace.base.records import Job
from headrace.delivery.jsonl import JsonLines
delivery = JsonLines(sys.argv[1])
delivery.open(None)
print("open", flush=True)
while True:
    delivery.deliver(Job("endless", b""), "x" * 16_000_000)
"""


def test_a_kill_costs_others_nothing(tmp_path: Path) -> None:
    """Of two processes that write long lines to one file one is killed: what the other delivered is all readable."""
    path = tmp_path / "out.jsonl"
    delivery = JsonLines(path)
    delivery.open(None)
    for trial in range(3):
        with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with path.open("rb") as file:
                while not file.seek(0, os.SEEK_END) or (file.seek(-1, os.SEEK_END), file.read())[1] == b"\n":
                    assert child.poll() is None
            child.kill()  # in the middle of a line
            for number in range(20):
                delivery.deliver(Job(f"{trial} {number}", b""), "y" * 10_000)
    delivery.close()
    found = set()
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            found.add(json.loads(line)["id"])
    assert {f"{trial} {number}" for trial in range(3) for number in range(20)} <= found


def test_a_pipe(tmp_path: Path) -> None:
    """Results may go to somebody who reads them as they come."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path, "a")
    assert json.loads(os.read(reader, 1000))["id"] == "a"
    os.close(reader)


@pytest.mark.parametrize("before", [b"", b"{}\n"])
def test_a_whole_file_is_not_changed(tmp_path: Path, before: bytes) -> None:
    """To open an empty file, or one whose last line is whole, adds nothing."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(before)
    write(path)
    assert path.read_bytes() == before


def test_what_json_cannot_carry(tmp_path: Path) -> None:
    """The result is rejected with a clear reason, nothing is written, and the next is delivered."""
    path = tmp_path / "out.jsonl"
    delivery = JsonLines(path)
    delivery.open(None)
    with pytest.raises(DeliveryRejected, match="cannot be written as JSON: it holds a value of type object"):
        delivery.deliver(Job("a", b""), [object()])
    delivery.deliver(Job("b", b""), 1)
    delivery.close()
    assert [line["id"] for line in lines(path)] == ["b"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """Where a line does not fit it is taken back and the job may be tried again; with room again, it goes on."""
    path = tmp_path / "out.jsonl"
    child = run_child(
        """
import resource, sys
from headrace.base.errors import DeliveryFailed
from headrace.base.records import Job
from headrace.delivery.jsonl import JsonLines
delivery = JsonLines(sys.argv[1])
delivery.open(None)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
number = 0
try:
    while True:
        delivery.deliver(Job(str(number), b""), "x" * 50)
        number += 1
except DeliveryFailed as error:
    print(number, error)
with open(sys.argv[1], "rb") as file:
    assert file.read().endswith(b"\\n")
try:
    delivery.deliver(Job("still full", b""), "x" * 50)
except DeliveryFailed:
    print("still full")
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
delivery.deliver(Job("room again", b""), 1)
delivery.close()
""",
        path,
    )
    assert (child.returncode, child.stderr) == (0, "")
    number, _, rest = child.stdout.partition(" ")
    assert rest == f"{path} cannot be written: no space for the whole line\nstill full\n"
    assert int(number) > 5
    assert [line["id"] for line in lines(path)] == [*map(str, range(int(number))), "room again"]


def test_a_disk_without_any_room() -> None:
    """An error of the operating system is worth another try."""
    delivery = JsonLines("/dev/full")
    delivery.open(None)
    with pytest.raises(DeliveryFailed, match=r"/dev/full cannot be written: .*No space left"):
        delivery.deliver(Job("a", b""), 1)
    delivery.close()


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    """It is told before the first result."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"results file .*out\.jsonl cannot be written: "):
        JsonLines(tmp_path / "file" / "out.jsonl").open(None)
    with pytest.raises(SettingsError, match="Is a directory"):
        JsonLines(tmp_path).open(None)


def test_deliver_needs_open(tmp_path: Path) -> None:
    """To deliver before open, or after close, is the caller's mistake."""
    delivery = JsonLines(tmp_path / "out.jsonl")
    with pytest.raises(RuntimeError, match="before open"):
        delivery.deliver(Job("a", b""), 1)
    delivery.open(None)
    delivery.close()
    with pytest.raises(RuntimeError, match="before open"):
        delivery.deliver(Job("a", b""), 1)


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    """The second close does nothing."""
    delivery = JsonLines(tmp_path / "out.jsonl")
    delivery.open(None)
    delivery.deliver(Job("a", b""), 1)
    delivery.close()
    delivery.close()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_attributes_go_along_with_the_result(tmp_path: Path) -> None:
    """What the sender attached stands in the line, and nothing where there is none."""
    delivery = JsonLines(tmp_path / "out.jsonl")
    delivery.open(None)
    delivery.deliver(Job("a", b"", attributes={"order": "7", "callback": "https://e.com"}), 1)
    delivery.deliver(Job("b", b""), 2)
    delivery.close()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [
        {"id": "a", "task": "", "attributes": {"order": "7"}, "result": 1},
        {"id": "b", "task": "", "result": 2},
    ]
