"""Joins a Ray cluster, or starts one on this machine, and puts workers into actors: the only module that imports Ray.

Ray chooses the nodes and starts an actor again when it or its node dies (`max_restarts`). It sees no stage and no item.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import MissingExtra, SettingsError
from headrace.ray.crew import Lost, NoPlace
from headrace.ray.leases import Setting
from headrace.ray.worker import Worker

#: Of a cluster that is started here. Leases and reports are small, and go nowhere near the object store.
_OBJECT_STORE_BYTES = 80 << 20
#: Calls that a worker takes at once: one works, others ask for news and for its end.
_CALLS_AT_ONCE = 4
#: Ray itself tries for minutes, and says nothing meanwhile.
_ANSWER_SECONDS = 5.0
#: What a client of HTTP/2 says first, with a frame of no settings (type 4), as the server does; see RFC 9113, 3.4.
_NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _NO_SETTINGS
#: One that never came does not answer.
_CLOSE_SECONDS = 1.0


class RayCluster:
    """A cluster with a worker's needs; see `crew.Cluster`.

    Args:
        address: `ray`: the cluster of RAY_ADDRESS or of this machine, else one that is started here. `ray://HOST:PORT`: the
            one that a Ray Client server leads to. `HOST:PORT`: the one with this head; this machine is one of its nodes.
        cores: For each worker; None: as many as give all workers a place.
        gpus: For each worker.

    Raises:
        MissingExtra: If Ray is not installed.
        SettingsError: If there is no such cluster.
    """

    def __init__(self, address: str, num_workers: int, *, cores: int | None = None, gpus: float = 0.0) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra(f"--on {address}", "ray") from error
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._join(address)
        sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self.num_nodes = len(sizes)
        self.cores = cores or share_cores(sizes, num_workers)
        self._options = {
            "num_cpus": self.cores,
            "num_gpus": gpus,
            "max_restarts": -1,
            "max_concurrency": _CALLS_AT_ONCE,
        }
        self._actor = ray.remote(Worker)

    def _join(self, address: str) -> None:
        options: dict[str, Any] = {"namespace": "headrace", "log_to_driver": False, "logging_level": "ERROR"}
        named = os.environ.get("RAY_ADDRESS", "") if address == "ray" else address
        if why := _why_none(named):
            raise SettingsError(f"--on {address}: no Ray cluster could be joined there: {why}")
        try:
            if address != "ray":
                self._ray.init(address, **options)
                return
            if named or not _why_none(_last_cluster()):
                with contextlib.suppress(ConnectionError):
                    self._ray.init("auto", **options)
                    return
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **options)
        except Exception as error:  # of many types, plain ones among them
            why = _last_line(str(error))  # a server's whole traceback may be in it
            # Ray says it on its own lines alone, and `ray start` asks for a token wherever one lies in ~/.ray.
            token = "" if os.environ.get("RAY_AUTH_MODE") else "; if it asks for a token, set RAY_AUTH_MODE=token"
            raise SettingsError(f"--on {address}: no Ray cluster could be joined there: {why}{token}") from None

    def start(self, setting: Setting) -> Any:
        """Ask for a worker; Ray places it once there is room."""
        return self._actor.options(**self._options).remote(setting)

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a worker, and return what stands for its answer."""
        called = getattr(worker, method)
        # Waits until Ray has started the actor again, however often that takes.
        return called.options(max_task_retries=-1 if method == "ready" else 0).remote(*arguments)

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Return those of the calls that have been answered; waits for the first."""
        return list(self._ray.wait(list(calls), num_returns=1, timeout=seconds)[0])

    def answer(self, call: Any) -> Any:
        """Return the answer.

        Raises:
            Lost: If the worker died.
            NoPlace: If it cannot begin.
            Exception: What the method raised.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None
        except (errors.ActorUnschedulableError, errors.RuntimeEnvSetupError) as error:
            raise NoPlace(str(error)) from None
        except errors.RayActorError as error:
            if error.actor_init_failed:
                raise NoPlace(_last_line(str(error))) from None
            raise Lost(_last_line(str(error))) from None
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        ) as error:
            raise Lost(_last_line(str(error))) from None

    def free_cores(self) -> float:
        """Return how many cores nobody has."""
        return float(self._ray.available_resources().get("CPU", 0.0))

    def end(self, worker: Any) -> None:
        """End a worker."""
        with contextlib.suppress(
            Exception
        ):  # Ray kills its processes too, so they cannot remove their files themselves
            self._ray.wait([self.call(worker, "close")], timeout=_CLOSE_SECONDS)
        with contextlib.suppress(Exception):
            self._ray.kill(worker)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._is_ours:
            self._ray.shutdown()


def share_cores(sizes: Sequence[int], num_workers: int) -> int:
    """Return the most cores for each worker with which all of them have a place, at least 1.

    Args:
        sizes: Cores of each node.
        num_workers: How many.
    """
    for cores in range(max(sizes, default=1), 1, -1):
        if sum(size // cores for size in sizes) >= num_workers:
            return cores
    return 1


def _why_none(address: str) -> str:
    """Return why no Ray cluster can be at `HOST:PORT`; empty: one may be. What names no port is for Ray to judge."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return ""
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS)
    except (OSError, OverflowError):
        return f"nobody listens at {address}"
    with connection:
        return "" if _speaks_http2(connection) else f"what listens at {address} does not answer as Ray does"


def _speaks_http2(connection: socket.socket) -> bool:
    """Return whether the other side begins with its settings, as all of Ray's ports do; one with TLS is for Ray to judge."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    try:
        connection.sendall(_HTTP2_PREFACE)
        return connection.recv(len(_NO_SETTINGS))[3:4] == _NO_SETTINGS[3:4]
    except OSError:  # with nothing said in time, too
        return False


def _last_cluster() -> str:
    """Return the address of the cluster that was begun last on this machine; Ray's note of it outlives one that is killed."""
    with contextlib.suppress(OSError):
        return Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster").read_text().strip()
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"


def assigned_cores() -> int | None:
    """Return how many cores Ray gave the actor that this is called in; None: it is called in none."""
    try:
        import ray
    except ImportError:
        return None
    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    return int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0)) or None
