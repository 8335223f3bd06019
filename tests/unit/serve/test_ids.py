"""Ids that are made for requests."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from headrace.serve.ids import make_id


def test_no_id_comes_twice() -> None:
    """Whichever threads ask, however many."""
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: make_id(), range(5_000)))
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


_FORKED = """
import os
from headrace.serve.ids import make_id

make_id()  # fills the store
if not os.fork():
    print(make_id(), flush=True)
    os._exit(0)
os.wait()
print(*(make_id() for _ in range(1_000)))
"""


def test_a_forked_process_has_its_own() -> None:
    """Workers that share a port are forked: none hands out what its parent still holds."""
    ids = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(ids)) == 1_001
