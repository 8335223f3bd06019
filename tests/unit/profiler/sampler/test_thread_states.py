"""States read from `/proc/PID/task/TID/syscall`, on a made-up process file system."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.profiler.sampler.gil import gil_range
from headrace.profiler.sampler.messages import GilPlace, ThreadPlace
from headrace.profiler.sampler.syscalls import calls_of, state_of_file
from headrace.profiler.sampler.thread_states import ThreadStates
from headrace.runs.resource_files import ABSENT, STATES

#: libpython of the made-up process: mapped from 0x1000, `_PyRuntime` from 0x1000 + 0x500 to 0x1600.
MAPS = """\
00400000-00401000 r--p 00000000 fe:00 77                   /usr/bin/python3.11
00001000-00002000 r--p 00000000 fe:00 26933                /usr/lib/libpython3.11.so.1.0
00002000-00003000 rw-p 00001000 fe:00 26933                /usr/lib/libpython3.11.so.1.0 (deleted)
7ffd0000-7ffd1000 rw-p 00000000 00:00 0                    [stack]
"""
GIL = GilPlace(device="fe:00", inode=26933, offset=0x500, size=0x100)
TAIL = " 0x0 0x0 0x0 0x0 0x7ffd0000 0x401000\n"

Make = Callable[..., ThreadStates]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the states of process 5, one thread for each line."""

    def made(*lines: str, gil: GilPlace | None = GIL, machine: str = "x86_64") -> ThreadStates:
        process = tmp_path / "5"
        (process / "fd").mkdir(parents=True, exist_ok=True)
        (process / "maps").write_text(MAPS)
        for number, line in enumerate(lines):
            (process / "task" / str(number)).mkdir(parents=True, exist_ok=True)
            (process / "task" / str(number) / "syscall").write_text(line)
        states = ThreadStates(gil, gil_reason="none here", machine=machine, proc=tmp_path)
        states.set_threads([ThreadPlace(5, number, f"w-{number}") for number in range(len(lines))])
        return states

    return made


def futex(address: int, number: int = 202) -> str:
    """Return the line of a thread in futex."""
    return f"{number} {address:#x} 0x189{TAIL}"


def test_a_futex_inside_the_runtime_is_the_gil(make: Make) -> None:
    """The first and the last byte of _PyRuntime are the GIL; the ones before and after are other locks."""
    states = make(futex(0x14FF), futex(0x1500), futex(0x15FF), futex(0x1600))
    assert states.look() == "lggl"
    assert states.not_measured == {}


def test_who_runs_with_the_gil_is_told(make: Make, tmp_path: Path) -> None:
    """Thread 1 runs with the GIL; once the GIL is free nobody does; memory that cannot be read tells nothing."""
    place = GilPlace(device="fe:00", inode=26933, offset=0x500, size=0x100, holder=0x10, number=0x20)
    states = make("running\n", "running\n", futex(0x1500), gil=place)
    memory = tmp_path / "5" / "mem"
    memory.write_bytes(bytes(0x1510) + struct.pack("=Qi", 0x2000, 1) + bytes(0x2020 - 0x151C) + struct.pack("=Q", 1))
    assert states.look() == "rRg"
    with memory.open("r+b") as file:
        file.seek(0x1518)
        file.write(struct.pack("=i", 0))
    assert states.look() == "rrg"
    with memory.open("r+b") as file:
        file.truncate(0x1510)
    assert states.look() == "rrg"


def test_aarch64_has_other_numbers(make: Make) -> None:
    """On aarch64 futex is 98, and 202 is accept."""
    states = make(futex(0x1500, 98), f"115 0x0 0x0{TAIL}", f"101 0x0 0x0{TAIL}", machine="aarch64")
    assert states.look() == "gss"


def test_running_waiting_for_a_page_and_ended(make: Make) -> None:
    """Running, blocked outside a system call, nothing to read, an unknown call."""
    states = make("running\n", "-1 0x7ffd0000 0x401000\n", "", f"9999 0x0 0x0{TAIL}", f"61 0x5 0x0{TAIL}")
    assert states.look() == f"rd{ABSENT}op"


def test_without_the_place_of_the_gil_a_futex_is_a_lock(make: Make) -> None:
    """Where the GIL cannot be found, that is said, and its waits count as lock."""
    states = make(futex(0x1500), gil=None)
    assert states.look() == "l"
    assert states.not_measured == {"gil": "none here"}


def test_another_interpreter_is_told(make: Make) -> None:
    """A process without the object that holds _PyRuntime has no known GIL, and the report says which."""
    states = make(futex(0x1500), gil=GilPlace(device="fe:00", inode=1, offset=0, size=10))
    assert states.look() == "l"
    assert "process 5" in states.not_measured["gil"]


def test_an_unknown_architecture_is_told(make: Make) -> None:
    """Where the numbers of system calls are not known no thread is looked at."""
    states = make("running\n", machine="riscv64")
    assert (states.look(), states.can_look) == ("", False)
    assert "riscv64" in states.not_measured["thread states"]


@pytest.mark.parametrize(
    ("target", "letter"),
    [("/data/photo.jpg", "d"), ("pipe:[123]", "p"), ("/dev/nvidia0", "o"), ("/memfd:x (deleted)", "o"), (None, "o")],
)
def test_reading_a_descriptor_is_told_by_its_type(make: Make, tmp_path: Path, target: str | None, letter: str) -> None:
    """Read on a file is disk, on a pipe another process; one that is closed meanwhile is other."""
    states = make(f"0 0x7 0x1000{TAIL}")
    if target:
        (tmp_path / "5" / "fd" / "7").symlink_to(target)
    assert states.look() == letter


@pytest.mark.parametrize(
    ("target", "protocol", "letter"),
    [
        ("socket:[9]", "TCPv6", "n"),
        ("socket:[9]", "UNIX-STREAM", "p"),
        ("socket:[9]", "UNIX", "p"),
        ("anon_inode:[eventfd]", "", "l"),
        ("anon_inode:[timerfd]", "", "s"),
        ("anon_inode:[pidfd]", "", "p"),
        ("anon_inode:[eventpoll]", "", "o"),
        ("/proc/self/stat", "", "o"),
    ],
)
def test_types_of_descriptors(target: str, protocol: str, letter: str) -> None:
    """Sockets to this machine's processes are told from the network's."""
    assert state_of_file(target, protocol) == letter


@pytest.mark.parametrize(
    ("target", "letter"), [("pipe:[123]", "w"), ("/dev/pts/3", "w"), ("/data/log.txt", "d"), ("/dev/nvidia0", "o")]
)
def test_writing_to_a_pipe_is_output(make: Make, tmp_path: Path, target: str, letter: str) -> None:
    """A write that is blocked on a pipe or a terminal waits for somebody who reads; to a file, for the disk."""
    states = make(f"1 0x7 0x1000{TAIL}")
    (tmp_path / "5" / "fd" / "7").symlink_to(target)
    assert states.look() == letter


def test_what_is_written_to_is_noted(make: Make, tmp_path: Path) -> None:
    """Of each thread that waits for a reader: its pipe; of one that waits for the disk, and of one that reads, nothing."""
    states = make(*(f"{call} {number:#x} 0x1000{TAIL}" for call, number in ((1, 5), (1, 6), (1, 7), (0, 5))))
    for number, target in ((5, "pipe:[123]"), (6, "pipe:[124]"), (7, "/data/log.txt")):
        (tmp_path / "5" / "fd" / f"{number}").symlink_to(target)
    assert states.look() == "wwdp"
    assert states.outputs == {"w-0": {"pipe:[123]"}, "w-1": {"pipe:[124]"}, "w-2": set(), "w-3": set()}


def test_poll_reads_its_descriptors_from_memory(make: Make, tmp_path: Path) -> None:
    """Poll on nothing sleeps; on a pipe it waits for a process; on a negative descriptor alone it sleeps."""
    states = make(f"7 0x0 0x0{TAIL}", f"7 0x100 0x2{TAIL}", f"271 0x108 0x1{TAIL}", f"7 0xffffffffffff 0x1{TAIL}")
    (tmp_path / "5" / "fd" / "7").symlink_to("pipe:[1]")
    (tmp_path / "5" / "mem").write_bytes(b"\0" * 0x100 + struct.pack("=ihhihh", 7, 1, 0, -1, 1, 0))
    assert states.look() == "spso"


def test_select_reads_its_sets_from_memory(make: Make, tmp_path: Path) -> None:
    """Select without descriptors sleeps; with one in its set that one tells."""
    states = make(f"270 0x0 0x0 0x0 0x0{TAIL}", f"23 0x46 0x10 0x0 0x0{TAIL}")
    (tmp_path / "5" / "fd" / "69").symlink_to("/data/x")
    (tmp_path / "5" / "mem").write_bytes(b"\0" * 0x10 + (1 << 69).to_bytes(128, "little"))
    assert states.look() == "sd"


def test_a_reused_descriptor_is_noticed(make: Make, tmp_path: Path) -> None:
    """The same line is believed for some looks only: the descriptor may be another file meanwhile."""
    states = make(f"0 0x7 0x1000{TAIL}")
    link = tmp_path / "5" / "fd" / "7"
    link.symlink_to("pipe:[1]")
    before = states.look()
    link.unlink()
    link.symlink_to("/data/x")
    after = [states.look() for _ in range(40)]
    assert before == "p"
    assert after[-1] == "d"


def test_threads_that_end_are_dropped(make: Make, tmp_path: Path) -> None:
    """A thread or process that is not there any more has no state, and is no problem."""
    states = make("running\n")
    states.set_threads([ThreadPlace(5, 0, "a"), ThreadPlace(5, 99, "b"), ThreadPlace(6, 1, "c")])
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "syscall").touch()
    assert states.look() == f"r{ABSENT}{ABSENT}"
    states.set_threads([])
    assert states.look() == ""


def test_a_refused_look_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the permission to trace the reason is told, once, and the thread is dropped."""
    states = make("running\n", "running\n")

    def refuse(*_: object) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        assert states.look() == ABSENT * 2
    assert not states.can_look
    assert "trace" in states.not_measured["thread states"]
    assert states.look() == ABSENT * 2


def test_a_kernel_without_the_file_is_told(make: Make, tmp_path: Path) -> None:
    """Where no process has such a file, the kernel does not offer it."""
    states = make("running\n")
    (tmp_path / "5" / "task" / "0" / "syscall").unlink()
    states.set_threads([ThreadPlace(5, 0, "a")])
    assert "CONFIG_HAVE_ARCH_TRACEHOOK" in states.not_measured["thread states"]


def test_every_kind_of_call_leads_to_a_state() -> None:
    """No two calls share a number, and whatever the table names is a state or depends on arguments."""
    for machine in ("x86_64", "aarch64"):
        calls = calls_of(machine)
        assert calls is not None
        assert set(calls.values()) <= {*STATES, "futex", "fd", "out", "poll", "select"}
    x86, arm = calls_of("x86_64"), calls_of("aarch64")
    assert x86 is not None
    assert arm is not None
    assert (x86[b"0"], arm[b"63"], x86[b"202"], arm[b"98"]) == ("fd", "fd", "futex", "futex")


def test_the_range_of_the_gil_follows_the_mapping(tmp_path: Path) -> None:
    """Its place is counted from the lowest mapping of its object, whatever else is mapped."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "maps").write_text(MAPS)
    assert gil_range(GIL, 5, tmp_path) == (0x1500, 0x1600)
    with pytest.raises(FileNotFoundError):
        gil_range(GIL, 6, tmp_path)
