"""Unix time that does not jump, for processes of one host that share a SQLite file.

How this works: the kernel's boot clock runs on whatever somebody does to the wall clock, and every process of a boot reads
it alike. The first user of the file after a boot writes down the difference to the wall clock; from then on all add it. So
when the wall clock is set, loans neither run out at once nor last an hour longer. What the wall clock said at that first
moment is believed until the next boot, except that time never begins before the last message was sent.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from headrace.base.clock import SystemClock

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Containers may have boot clocks of their own.
_TIME_NAMESPACE = "/proc/self/ns/time"


class SteadyClock(SystemClock):
    """The host's clock, but for Unix time that no setting of the wall clock moves.

    Args:
        connection: To the file that the processes share; its table `messages` exists.

    Raises:
        sqlite3.Error: If the file cannot be written.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._ahead = _ahead(connection)

    def unix_seconds(self) -> float:
        """Return Unix seconds; never jumps between two boots."""
        return self._ahead + time.clock_gettime(time.CLOCK_BOOTTIME)


def _ahead(connection: sqlite3.Connection) -> float:
    """Return what is to be added to the boot clock."""
    boot = _name_of_boot()
    for _ in range(2):
        try:
            found = connection.execute("SELECT ahead FROM boots WHERE name = ?", (boot,)).fetchone()
        except sqlite3.OperationalError:  # a file of before
            found = None
        if found is not None:
            return float(found[0])
        _write(connection, boot)
    raise sqlite3.OperationalError("the table boots cannot be read")


def _write(connection: sqlite3.Connection, boot: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Additive: a headrace of before reads and writes the file as it did.
        connection.execute("CREATE TABLE IF NOT EXISTS boots (name TEXT PRIMARY KEY, ahead REAL NOT NULL)")
        (sent_at,) = connection.execute("SELECT coalesce(max(sent_at), 0) FROM messages").fetchone()
        ahead = max(time.time(), sent_at) - time.clock_gettime(time.CLOCK_BOOTTIME)
        connection.execute("INSERT OR IGNORE INTO boots VALUES (?, ?)", (boot, ahead))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _name_of_boot() -> str:
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_TIME_NAMESPACE)}"
    except OSError:  # neither told: the boot is what began when it did, to the hour
        return f"{round((time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) / 3600)}"
