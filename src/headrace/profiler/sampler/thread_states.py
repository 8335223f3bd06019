"""The states of worker threads, each read from `/proc/PID/task/TID/syscall`.

How this works: that file says `running` for a thread that runs or could, else the number of the system call that it is blocked
in, with the arguments. `futex` on an address inside `_PyRuntime` is waiting for the GIL (see `gil`); for a file descriptor its
type tells; for `poll` and `select` the descriptors are read from the process's memory. The files stay open, so that a look
costs one system call. A thread that is still blocked in the very same call (same line, stack pointer included) is not looked
at more closely for a while: descriptors are reused, so for a short one.

Who has the GIL stands in the process's memory. It is read after each thread that runs, not once for all: a look at many threads
takes longer than many a thread keeps the GIL.

What a thread writes to while nobody reads it is noted: workers with a pipe each do not wait for one another.

Everything about one thread that cannot be read makes that sample `ABSENT`: it may just have ended. Only what cannot be read
for lack of permission, or because the kernel does not offer it, is told in `not_measured`.

References:
    proc_pid_syscall(5). The permission is that of ptrace(2); Linux kernel: Documentation/admin-guide/LSM/Yama.rst.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from headrace.profiler.sampler.gil import gil_range
from headrace.profiler.sampler.messages import GilPlace, ThreadPlace
from headrace.profiler.sampler.syscalls import calls_of, state_of_file
from headrace.runs.resource_files import ABSENT

#: Looks for which the same line needs no closer look: 0.1 s at 100 Hz.
_SAME_LOOKS = 10
#: A line has a number, six arguments and two pointers.
_MAX_BYTES = 256
_MAX_DESCRIPTORS = 16
#: Pipes that are noted of each thread at most: one that opens a new one for each item needs no more.
_MOST_OUTPUTS = 4
#: Of several descriptors waited for at once the first of these that is among them.
_FIRST_OF = "npdls"

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class _Process:
    """What is known of a process whose threads are looked at."""

    def __init__(self, number: int, proc: Path, gil: GilPlace | None) -> None:
        self.root = proc / str(number)
        self.gil: tuple[int, int] | None = None
        self._place = gil
        self._memory = -1
        if gil is not None:
            self.gil = gil_range(gil, number, proc)

    def find_holder(self) -> int:
        """Return the kernel's number of the thread that has the GIL; -1 if none has it, or that is not known."""
        if self.gil is None or self._place is None or self._place.holder is None:
            return -1
        try:
            state, has_it = struct.unpack("=Qi", self.read(self.gil[0] + self._place.holder, 12))
            if not has_it:
                return -1
            number: int = struct.unpack("=Q", self.read(state + self._place.number, 8))[0]
        except (OSError, EOFError, OverflowError):
            return -1  # it has just ended, or its memory may not be read, which the states of its threads tell
        return number

    def state_of_descriptor(self, descriptor: int, outputs: set[str] | None = None) -> str:
        """Return the letter for waiting on one file descriptor; `o` if it is closed meanwhile.

        Args:
            descriptor: Its number.
            outputs: Of a thread that writes: takes the name of the pipe or terminal. None: it reads.
        """
        path = f"{self.root}/fd/{descriptor}"
        try:
            target, protocol = os.readlink(path), b""
            if target.startswith("socket:["):
                protocol = os.getxattr(path, "system.sockprotoname")  # the kernel's own, not of a file system
        except OSError as error:
            return "n" if error.errno in (errno.ENOTSUP, errno.ENODATA) else "o"
        letter = state_of_file(target, protocol.decode(errors="replace"), is_write=outputs is not None)
        if letter == "w" and outputs is not None and len(outputs) < _MOST_OUTPUTS:
            outputs.add(target)
        return letter

    def state_of_descriptors(self, descriptors: Sequence[int]) -> str:
        """Return the letter for waiting on several; sleep for none."""
        if not descriptors:
            return "s"
        letters = {self.state_of_descriptor(descriptor) for descriptor in descriptors[:_MAX_DESCRIPTORS]}
        return next((letter for letter in _FIRST_OF if letter in letters), "o")

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the process's memory.

        Raises:
            OSError: If they cannot be read.
            EOFError: If there are fewer.
        """
        if self._memory < 0:
            self._memory = os.open(f"{self.root}/mem", os.O_RDONLY | os.O_CLOEXEC)
        content = os.pread(self._memory, size, address)
        if len(content) < size:
            raise EOFError
        return content

    def close(self) -> None:
        """Close what is open."""
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)


class _Thread:
    """A thread that is looked at, and what was seen last."""

    __slots__ = ("file", "letter", "line", "looks_left", "number", "outputs", "process")

    def __init__(self, process: _Process, number: int, file: int, outputs: set[str]) -> None:
        self.process = process
        self.number = number
        self.outputs = outputs
        self.file = file
        self.line = b""
        self.letter = ABSENT
        self.looks_left = 0


class ThreadStates:
    """Looks at threads.

    Attributes:
        not_measured: {what: why}.
        outputs: {worker: pipes and terminals that it waited for somebody to read}, as `/proc/PID/fd` names them.
    """

    def __init__(
        self, gil: GilPlace | None, *, gil_reason: str = "", machine: str | None = None, proc: Path = Path("/proc")
    ) -> None:
        """Look at no thread yet.

        Args:
            gil: Where the GIL is; None if it is not known.
            gil_reason: Why it is not.
            machine: Architecture, by default this machine's.
            proc: Where the process file system is mounted.
        """
        machine = machine or os.uname().machine
        self.not_measured: dict[str, str] = {}
        self.outputs: dict[str, set[str]] = {}
        self._calls = calls_of(machine) or {}
        self._gil = gil
        self._proc = proc
        self._threads: list[_Thread | None] = []
        self._processes: dict[int, _Process] = {}
        if gil is None:
            self.not_measured["gil"] = gil_reason
        if not self._calls:
            self.not_measured["thread states"] = (
                f"the system calls of {machine} are not known, of x86_64 and aarch64 they are"
            )

    @property
    def can_look(self) -> bool:
        """Whether some thread can be looked at."""
        return any(thread is not None for thread in self._threads)

    def set_threads(self, workers: Sequence[ThreadPlace]) -> None:
        """Look at these threads from now on, in this order."""
        self.close()
        if self._calls:
            self._threads = [self._open(worker) for worker in workers]

    def close(self) -> None:
        """Look at no thread any more."""
        for thread in self._threads:
            if thread is not None:
                os.close(thread.file)
        for process in self._processes.values():
            process.close()
        self._threads, self._processes = [], {}

    def look(self) -> str:
        """Return a letter of `STATES` for each thread, a capital one if it runs with the GIL, or `ABSENT`."""
        letters = []
        pread = os.pread
        for index, thread in enumerate(self._threads):
            if thread is None:
                letters.append(ABSENT)
                continue
            try:
                line = pread(thread.file, _MAX_BYTES, 0)
            except OSError as error:
                self._lose(index, thread, error)
                letters.append(ABSENT)
                continue
            if line == b"running\n":
                letters.append("R" if thread.process.find_holder() == thread.number else "r")
            elif line == thread.line and thread.looks_left:
                thread.looks_left -= 1
                letters.append(thread.letter)
            else:
                thread.line, thread.looks_left = line, _SAME_LOOKS
                thread.letter = self._state(line, thread)
                letters.append(thread.letter)
        return "".join(letters)

    def _open(self, worker: ThreadPlace) -> _Thread | None:
        try:
            process = self._processes.get(worker.process)
            if process is None:
                process = self._processes[worker.process] = self._open_process(worker.process)
            path = self._proc / str(worker.process) / "task" / str(worker.thread_id) / "syscall"
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return _Thread(process, worker.thread_id, file, self.outputs.setdefault(worker.name, set()))
        except OSError as error:
            self._note(error, f"process {worker.process}")
            return None

    def _open_process(self, number: int) -> _Process:
        process = _Process(number, self._proc, self._gil)
        if self._gil is not None and process.gil is None:
            self.not_measured["gil"] = f"process {number} runs another Python; its waiting for the GIL counts as lock"
        return process

    def _lose(self, index: int, thread: _Thread, error: OSError) -> None:
        os.close(thread.file)
        self._threads[index] = None
        self._note(error, str(thread.process.root.name))

    def _note(self, error: OSError, who: str) -> None:
        """Tell of what is not a thread's natural end."""
        if error.errno in (errno.EPERM, errno.EACCES):
            self.not_measured["thread states"] = f"the kernel forbids to look at {who}; {_permission()}"
        elif error.errno == errno.ENOENT and not (self._proc / "self/syscall").exists():
            self.not_measured["thread states"] = (
                "this kernel has no /proc/PID/task/TID/syscall (CONFIG_HAVE_ARCH_TRACEHOOK)"
            )

    def _state(self, line: bytes, thread: _Thread) -> str:
        """Return the letter of a blocked thread."""
        words, process = line.split(), thread.process
        if not words:
            return ABSENT  # it has just ended
        if words[0] == b"-1":
            return "d"  # outside any system call: it waits for a page
        kind = self._calls.get(words[0], "o")
        try:
            if kind == "futex":
                return "g" if process.gil and process.gil[0] <= int(words[1], 16) < process.gil[1] else "l"
            if kind in ("fd", "out"):
                return process.state_of_descriptor(int(words[1], 16), thread.outputs if kind == "out" else None)
            if kind == "poll":
                return process.state_of_descriptors(_read_polled(process, int(words[1], 16), int(words[2], 16)))
            if kind == "select":
                return process.state_of_descriptors(_read_selected(process, *(int(word, 16) for word in words[1:5])))
        except (OSError, EOFError, ValueError, IndexError, OverflowError):
            return "o"  # it went on meanwhile
        return kind


def _read_polled(process: _Process, address: int, count: int) -> list[int]:
    """Return the descriptors of an array of `struct pollfd`; negative ones are not waited for."""
    content = process.read(address, 8 * min(count, _MAX_DESCRIPTORS)) if count else b""
    return [descriptor for descriptor, _ in struct.iter_unpack("=ii", content) if descriptor >= 0]


def _read_selected(process: _Process, count: int, *sets: int) -> list[int]:
    """Return the descriptors below `count` in three `fd_set`, given by their addresses."""
    found = []
    for address in sets:
        content = process.read(address, (min(count, 1024) + 7) // 8) if address and count else b""
        bits = int.from_bytes(content, "little")
        found += [number for number in range(min(count, 1024)) if bits >> number & 1]
    return found


def _permission() -> str:
    try:
        scope = _YAMA.read_text().strip()
    except OSError:
        return "it takes the right to trace it: the same user, or the capability SYS_PTRACE"
    return f"kernel.yama.ptrace_scope is {scope}; sysctl kernel.yama.ptrace_scope=0 lets it"
