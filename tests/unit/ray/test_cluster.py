"""Which cluster is joined: Ray itself tries for minutes to reach one that is gone. A stand-in for Ray notes what is asked."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import SettingsError
from headrace.ray.cluster import RayCluster


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Put a stand-in in the place of Ray, with a folder of its own; returns the addresses that it is asked to join."""
    addresses: list[str] = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address, **_: addresses.append(address),
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}],
        remote=lambda kind: kind,
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return addresses


@contextlib.contextmanager
def listen(says: bytes) -> Iterator[int]:
    """Listen at a port, and say this to whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    connection.sendall(says)
                    connection.recv(4096)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def open_port() -> Iterator[int]:
    """Listen at a port as Ray does: settings of HTTP/2 come first."""
    with listen(b"\0\0\6\4\0\0\0\0\0" + b"\0\3\0\0\0\1") as port:
        yield port


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Keep a port at which nobody listens."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def note_last(tmp_path: Path, port: int) -> None:
    """Leave what Ray does of the cluster that it began last."""
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")


def test_one_that_was_killed_is_not_waited_for(asked: list[str], tmp_path: Path, closed_port: int) -> None:
    """Another is begun, as where there never was one."""
    note_last(tmp_path, closed_port)
    RayCluster("ray", 2)
    assert asked == ["local"]


def test_one_that_is_there_is_joined(asked: list[str], tmp_path: Path, open_port: int) -> None:
    """And so is one that Ray itself may find, where nothing is noted."""
    RayCluster("ray", 2)
    note_last(tmp_path, open_port)
    RayCluster("ray", 2)
    assert asked == ["auto", "auto"]


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray"])
def test_one_that_is_named_and_gone_is_told(
    address: str, asked: list[str], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the option or by Ray's own variable: nothing else is begun in its place."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(SettingsError, match=f"nobody listens at .*127.0.0.1:{closed_port}"):
        RayCluster(address.format(closed_port), 2)
    assert asked == []


def test_one_that_is_named_and_there_is_joined(asked: list[str], open_port: int) -> None:
    """As it was named."""
    RayCluster(f"127.0.0.1:{open_port}", 2)
    assert asked == [f"127.0.0.1:{open_port}"]


@pytest.mark.parametrize("says", [b"", b"-ERR unknown command", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_ray_is_told(says: bytes, asked: list[str]) -> None:
    """Ray itself would try for minutes."""
    with listen(says) as port, pytest.raises(SettingsError, match=f"127.0.0.1:{port} does not answer as Ray does"):
        RayCluster(f"127.0.0.1:{port}", 2)
    assert asked == []


def test_a_worker_removes_its_files_before_it_is_killed(asked: list[str]) -> None:
    """Also where it does not answer, it is killed."""
    done: list[str] = []

    def close() -> None:
        done.append("close")
        raise OSError("gone")

    cluster = RayCluster("ray", 1)
    cluster._ray.wait, cluster._ray.kill = print, lambda worker: done.append("kill")
    called = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=close))
    cluster.end(SimpleNamespace(close=called))
    assert done == ["close", "kill"]
