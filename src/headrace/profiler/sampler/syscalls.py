"""What a thread that is blocked in a system call waits for, as far as the call's number tells; x86_64 and aarch64.

References:
    Linux kernel: arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

from typing import Literal

#: What to make of a call: `futex`, `fd`, `out`, `poll` and `select` depend on the arguments, the others are a letter of
#: `STATES` each.
Kind = Literal["futex", "fd", "out", "poll", "select", "l", "s", "n", "p", "d"]

#: {kind: {name of the call: (number on x86_64, on aarch64)}}; None where the architecture does not have it.
_CALLS: dict[Kind, dict[str, tuple[int | None, int | None]]] = {
    "futex": {"futex": (202, 98), "futex_waitv": (449, 449), "futex_wait": (455, 455)},
    "fd": {  # the first argument is a file descriptor, and its type tells
        "read": (0, 63),
        "ioctl": (16, 29),
        "pread64": (17, 67),
        "readv": (19, 65),
        "sendfile": (40, 71),
        "connect": (42, 203),
        "accept": (43, 202),
        "recvfrom": (45, 207),
        "recvmsg": (47, 212),
        "splice": (275, 76),
        "accept4": (288, 242),
        "preadv": (295, 69),
        "recvmmsg": (299, 243),
        "copy_file_range": (326, 285),
        "preadv2": (327, 286),
    },
    "out": {  # the same, and it has something to hand over
        "write": (1, 64),
        "pwrite64": (18, 68),
        "writev": (20, 66),
        "sendto": (44, 206),
        "sendmsg": (46, 211),
        "pwritev": (296, 70),
        "sendmmsg": (307, 269),
        "pwritev2": (328, 287),
    },
    "poll": {"poll": (7, None), "ppoll": (271, 73)},
    "select": {"select": (23, None), "pselect6": (270, 72)},
    "l": {"flock": (73, 32), "fcntl": (72, 25), "semop": (65, 193), "semtimedop": (220, 192)},
    "s": {"pause": (34, None), "nanosleep": (35, 101), "clock_nanosleep": (230, 115)},
    "n": {"epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441)},
    "p": {
        "wait4": (61, 260),
        "waitid": (247, 95),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "mq_timedsend": (242, 182),
        "mq_timedreceive": (243, 183),
    },
    "d": {
        "open": (2, None),
        "close": (3, 57),
        "stat": (4, None),
        "fstat": (5, 80),
        "lstat": (6, None),
        "access": (21, None),
        "msync": (26, 227),
        "fsync": (74, 82),
        "fdatasync": (75, 83),
        "truncate": (76, 45),
        "ftruncate": (77, 46),
        "getdents": (78, None),
        "rename": (82, None),
        "mkdir": (83, None),
        "rmdir": (84, None),
        "creat": (85, None),
        "link": (86, None),
        "unlink": (87, None),
        "symlink": (88, None),
        "readlink": (89, None),
        "sync": (162, 81),
        "readahead": (187, 213),
        "io_getevents": (208, 4),
        "getdents64": (217, 61),
        "fadvise64": (221, 223),
        "openat": (257, 56),
        "mkdirat": (258, 34),
        "newfstatat": (262, 79),
        "unlinkat": (263, 35),
        "renameat": (264, 38),
        "readlinkat": (267, 78),
        "faccessat": (269, 48),
        "sync_file_range": (277, 84),
        "fallocate": (285, 47),
        "syncfs": (306, 267),
        "renameat2": (316, 276),
        "statx": (332, 291),
        "io_uring_enter": (426, 426),
        "openat2": (437, 437),
        "faccessat2": (439, 439),
    },
}

_COLUMN = {"x86_64": 0, "aarch64": 1}


def calls_of(machine: str) -> dict[bytes, Kind] | None:
    """Return {number of the call, as `/proc/PID/task/TID/syscall` writes it: kind}, or None for an unknown architecture.

    Args:
        machine: As `uname -m` names it.
    """
    column = _COLUMN.get(machine)
    if column is None:
        return None
    return {
        str(numbers[column]).encode(): kind
        for kind, calls in _CALLS.items()
        for numbers in calls.values()
        if numbers[column] is not None
    }


def state_of_file(target: str, protocol: str, *, is_write: bool = False) -> str:
    """Return the letter of what a thread waits for that is blocked on a file descriptor.

    Args:
        target: What `/proc/PID/fd/N` points to.
        protocol: The socket's protocol as the kernel names it, `TCP`, `UNIX-STREAM`; empty if it is no socket.
        is_write: It writes: to a pipe or terminal, as logs do, it waits until somebody at the other end reads.
    """
    if target.startswith("socket:["):
        return "n" if not protocol.startswith("UNIX") else "w" if is_write else "p"
    if target.startswith(("pipe:[", "anon_inode:[pidfd]")):
        return "w" if is_write else "p"
    if is_write and target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return "w"
    if target.startswith("anon_inode:[eventfd]"):  # how native pools wake one another
        return "l"
    if target.startswith("anon_inode:[timerfd]"):
        return "s"
    # Devices and the kernel's own files are no disk.
    is_file = target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/", "/memfd:"))
    return "d" if is_file else "o"
