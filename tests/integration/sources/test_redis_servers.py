"""The Redis queue on servers that are full, that change their roles, and that are three."""

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import QueueUnavailable
from headrace.base.records import Burial, Postponed
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.redis_queue import RedisQueue
from headrace.testing.conformance import QueueConformance
from headrace.testing.toxic_proxy import ToxicProxy
from tests.integration.sources.conftest import _free_port, _started, _stop

redis: Any = pytest.importorskip("redis") if not os.environ.get("CI") else __import__("redis")

pytestmark = pytest.mark.real_clock


def connected(port: int) -> Any:
    """Return a client of a server."""
    return contextlib.closing(redis.Redis(port=port))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


def sent(queue: Any, jobs: list[bytes]) -> bool:
    """Return whether the jobs could be sent."""
    try:
        queue.send(jobs)
    except QueueUnavailable:
        return False
    return True


# --- full


def test_a_full_server_can_be_emptied(start_redis: Callable[..., int]) -> None:
    """Where no memory is left, sends fail, and messages are received, extended, given back, buried, postponed and acked."""
    port = start_redis("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    address = f"redis://127.0.0.1:{port}/0"
    with contextlib.closing(open_queue(address)) as queue, connected(port) as server:
        queue.send([b"later"], delay_seconds=0.5)
        wait_until(lambda: not sent(queue, [os.urandom(10_000)] * 20))
        server.config_set("maxmemory", server.info("memory")["used_memory"] - 500_000)
        time.sleep(0.6)  # the delayed one is due: it is stored anew when somebody receives
        messages = queue.receive(20, wait_seconds=1.0)
        receipts = [message.receipt for message in messages]
        with contextlib.closing(open_queue(address)) as another:  # a worker that starts now
            assert another.receive(1)
        assert len(messages) == 20
        assert queue.extend(receipts, 60) == {}
        assert queue.nack(receipts[:1]) == {}
        assert queue.dead_letter([Burial(messages[1], "test")]) == {}
        assert queue.postpone([Postponed(messages[2], 60.0, b"{}")]) == {}
        assert queue.ack(receipts[3:]) == {}
        assert queue.statistics().dead == 1
        with pytest.raises(QueueUnavailable, match="OutOfMemory"):
            queue.send([b"x"])


# --- another server behind the same address


def test_a_failover_behind_one_address(start_redis: Callable[..., int]) -> None:
    """When the address moves to the replica and the old primary keeps its connections, a waiting worker follows."""
    old, new = start_redis(), start_redis()
    with connected(old) as old_server, connected(new) as new_server, ToxicProxy(old) as proxy:
        new_server.replicaof("127.0.0.1", old)
        wait_until(lambda: new_server.info("replication")["master_link_status"] == "up")
        address = f"redis://127.0.0.1:{proxy.port}/0"
        done: list[int] = []
        pipeline = hr.Pipeline(
            hr.queue(address, drain=False, visibility=5.0),
            stages=[hr.stage("work", lambda body: done.append(len(body)) or len(body))],
            delivery=hr.collect(),
        )
        worker = threading.Thread(target=hr.run, args=(pipeline,), kwargs={"limit": 8})
        with contextlib.closing(open_queue(address)) as queue:
            queue.send([encode_job(b"x" * (n + 1)) for n in range(4)])
            worker.start()
            wait_until(lambda: len(done) == 4)
            old_server.wait(1, 5000)
            new_server.replicaof("NO", "ONE")
            proxy.upstream = new
            old_server.replicaof("127.0.0.1", new)
            jobs = [encode_job(b"x" * (n + 1)) for n in range(4, 8)]
            wait_until(lambda: sent(queue, jobs))
            worker.join(60)
            assert not worker.is_alive()
            assert set(done) == set(range(1, 9))
            wait_until(lambda: queue.statistics().visible == queue.statistics().in_flight == 0)


# --- Sentinels


@pytest.fixture
def start_sentinel(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Return what starts a Sentinel that watches a server as `main`, two being enough for a failover, and returns its port."""
    processes = []

    def start(primary: int, *more: str) -> int:
        port = _free_port()
        folder = tmp_path / f"sentinel-{port}"
        folder.mkdir()
        settings = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor main 127.0.0.1 {primary} 2",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 5000",
            *more,
        ]
        (folder / "sentinel.conf").write_text("\n".join(settings) + "\n")
        command = ["redis-server", str(folder / "sentinel.conf"), "--sentinel"]
        processes.append(_started(command, port, folder / "log"))
        return port

    yield start
    for process in processes:
        _stop(process)


@pytest.fixture
def watched(start_redis: Callable[..., int], start_sentinel: Callable[..., int]) -> tuple[int, int, Sequence[int]]:
    """Start a primary, its replica, and three Sentinels that know of one another; return the ports."""
    old = start_redis()
    new = start_redis("--replicaof", f"127.0.0.1 {old}")
    with connected(new) as server:
        wait_until(lambda: server.info("replication")["master_link_status"] == "up")
    ports = [start_sentinel(old) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        sentinels = [stack.enter_context(connected(port)) for port in ports]
        for one in sentinels:
            wait_until(lambda one=one: _known(one) == (2, 1))  # type: ignore[misc]
    return old, new, ports


def _known(sentinel: Any) -> tuple[int, int]:
    """Return how many other Sentinels and replicas a Sentinel knows."""
    state = sentinel.sentinel_master("main")
    return state["num-other-sentinels"], state["num-slaves"]


def continue_process(process: int) -> None:
    """Let a process that was stopped go on, so that it can be ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def _is_primary(port: int) -> bool:
    with connected(port) as server:
        return bool(server.info("replication")["role"] == "master")


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_sentinels_lead_to_the_new_primary(watched: tuple[int, int, Sequence[int]], fault: str) -> None:
    """When the primary dies or stands still a worker and a sender follow to the replica, though one Sentinel is gone too."""
    old, new, ports = watched
    hosts = ",".join(f"127.0.0.1:{port}" for port in (_free_port(), *ports))
    address = f"redis+sentinel://{hosts}/main/0?visibility=5s"
    done: list[int] = []
    pipeline = hr.Pipeline(
        hr.queue(address),
        stages=[hr.stage("work", lambda body: done.append(len(body)) or len(body))],
        delivery=hr.collect(),
    )
    worker = threading.Thread(target=hr.run, args=(pipeline,), kwargs={"limit": 8})
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(contextlib.closing(open_queue(address)))
        assert queue.name == f"redis+sentinel://{hosts}/main/0?queue=jobs"
        queue.send([encode_job(b"x" * (n + 1)) for n in range(4)])
        worker.start()
        wait_until(lambda: len(done) == 4 and queue.statistics().in_flight == 0)
        with connected(old) as server:
            server.set("last", 1)
            server.wait(1, 5000)  # for what this connection wrote, and so for all before it
            process = server.info("server")["process_id"]
        stack.callback(continue_process, process)
        os.kill(process, signal.Signals[fault])
        wait_until(lambda: _is_primary(new))
        jobs = [encode_job(b"x" * (n + 1)) for n in range(4, 8)]
        wait_until(lambda: sent(queue, jobs))
        worker.join(60)
        assert not worker.is_alive()
        assert set(done) == set(range(1, 9))
        wait_until(lambda: queue.statistics().visible == queue.statistics().in_flight == 0)


@pytest.mark.parametrize("asked", [(), ("requirepass geheim",)])
def test_sentinels_with_and_without_a_password(
    asked: Sequence[str], start_redis: Callable[..., int], start_sentinel: Callable[..., int]
) -> None:
    """The servers' password is given to Sentinels that ask for one, and not to others, which would refuse it."""
    port = start_sentinel(start_redis("--requirepass", "geheim"), "sentinel auth-pass main geheim", *asked)
    with contextlib.closing(open_queue(f"redis+sentinel://:geheim@127.0.0.1:{port}/main/0")) as queue:
        queue.send([b"x"])
        assert "geheim" not in queue.name
        assert [message.body for message in queue.receive(1)] == [b"x"]


@pytest.mark.parametrize("service", ["main", "other"])
def test_sentinels_that_do_not_answer_or_do_not_know(
    service: str, start_redis: Callable[..., int], start_sentinel: Callable[..., int]
) -> None:
    """An error names the service and the address, without the password."""
    port = _free_port() if service == "main" else start_sentinel(start_redis())
    with pytest.raises(QueueUnavailable, match=f"No master found for '{service}'$") as caught:
        open_queue(f"redis+sentinel://user:geheim@127.0.0.1:{port}/{service}/0")
    assert "geheim" not in str(caught.value)


# --- a cluster


@pytest.fixture(scope="module")
def cluster(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Start three servers that share the slots, and return their ports."""
    from tests.integration.sources.conftest import start_redis as fixture

    starting = fixture.__wrapped__(redis_server, tmp_path_factory.mktemp("cluster"))  # type: ignore[attr-defined]
    start = next(starting)
    ports = [start("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(3)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(connected(port)) for port in ports]
        for number, server in enumerate(servers):
            first = number * 5462
            server.execute_command("CLUSTER", "ADDSLOTS", *range(first, min(first + 5462, 16384)))
            server.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            server.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
        wait_until(lambda: all(server.cluster("INFO")["cluster_state"] == "ok" for server in servers))
        wait_until(lambda: all(int(server.cluster("INFO")["cluster_known_nodes"]) == 3 for server in servers))
        yield ports
    next(starting, None)


class TestRedisCluster(QueueConformance):
    @pytest.fixture
    def name(self) -> str:
        """Name a queue that no other test uses."""
        return os.urandom(8).hex()

    @pytest.fixture
    def make_queue(self, cluster: list[int], name: str) -> Callable[[], RedisQueue]:
        """Open a queue by the address of one node, whichever has it."""
        address = f"redis://127.0.0.1:{cluster[0]}/0"
        return lambda: RedisQueue(address, queue=name, visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def put_malformed(self, cluster: list[int], name: str) -> Iterator[Sequence[Callable[[], object]]]:
        """Add an entry that no sender of ours would."""
        client = redis.RedisCluster(port=cluster[1], host="127.0.0.1")
        yield [lambda: client.xadd(f"headrace:{{{name}}}", {"id": b"\xff", "body": "bar"})]
        nodes = client.get_nodes()
        client.close()
        for node in nodes:  # which the client leaves open
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect()


def test_each_node_of_a_cluster_leads_to_the_queue(cluster: list[int]) -> None:
    """What is sent by the address of one node is received by that of another, wherever the queue lies."""
    name = os.urandom(8).hex()
    with contextlib.ExitStack() as stack:
        queues = [
            stack.enter_context(contextlib.closing(RedisQueue(f"redis://127.0.0.1:{port}/0", queue=name)))
            for port in cluster
        ]
        for queue, other in zip(queues, queues[1:] + queues[:1], strict=True):
            queue.send([b"x"])
            (message,) = other.receive(1, wait_seconds=5.0)
            assert queue.ack([message.receipt]) == {}


def test_no_connection_to_a_cluster_is_left_open(cluster: list[int]) -> None:
    """Neither of the client nor of what it knows of the nodes."""
    before = count_sockets()
    queue = RedisQueue(f"redis://127.0.0.1:{cluster[0]}/0", queue=os.urandom(8).hex())
    queue.send([b"x"])
    assert count_sockets() > before
    queue.close()
    assert count_sockets() == before


@pytest.fixture
def replicated(redis_server: str, tmp_path: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Start a cluster of three primaries with a replica each, and return their ports."""
    from tests.integration.sources.conftest import start_redis as fixture

    starting = fixture.__wrapped__(redis_server, tmp_path)  # type: ignore[attr-defined]
    start = next(starting)
    ports = [start("--cluster-enabled", "yes", "--cluster-node-timeout", "1000") for _ in range(6)]
    primaries, replicas = ports[:3], ports[3:]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(connected(port)) for port in ports]
        for number, server in enumerate(servers):
            if number < 3:
                first = number * 5462
                server.execute_command("CLUSTER", "ADDSLOTS", *range(first, min(first + 5462, 16384)))
            server.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            server.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
        wait_until(lambda: all(int(server.cluster("INFO")["cluster_known_nodes"]) == 6 for server in servers))
        for primary, replica in zip(servers[:3], servers[3:], strict=True):
            replica.execute_command("CLUSTER", "REPLICATE", primary.execute_command("CLUSTER", "MYID"))
        wait_until(lambda: all(server.cluster("INFO")["cluster_state"] == "ok" for server in servers))
        wait_until(lambda: all(one.info("replication").get("master_link_status") == "up" for one in servers[3:]))
        yield primaries, replicas
    next(starting, None)


def test_a_failover_within_a_cluster(replicated: tuple[list[int], list[int]], caplog: pytest.LogCaptureFixture) -> None:
    """The node with the queue, which the worker was given, is killed: it says so, follows to the replica, and ends all jobs."""
    primaries, _ = replicated
    name = os.urandom(8).hex()
    with connected(primaries[0]) as server:
        slot = server.execute_command("CLUSTER", "KEYSLOT", f"{{{name}}}")
        port = primaries[int(slot) // 5462]
    address = f"redis://127.0.0.1:{port}/0?queue={name}"
    done: list[int] = []
    pipeline = hr.Pipeline(
        hr.queue(address, drain=False, visibility=5.0),
        stages=[hr.stage("work", lambda body: done.append(len(body)) or len(body))],
        delivery=hr.collect(),
    )
    worker = threading.Thread(target=hr.run, args=(pipeline,), kwargs={"limit": 8})
    other = next(one for one in primaries if one != port)
    with contextlib.closing(open_queue(f"redis://127.0.0.1:{other}/0?queue={name}")) as queue:
        queue.send([encode_job(b"x" * (n + 1)) for n in range(4)])
        worker.start()
        wait_until(lambda: len(done) == 4 and not queue.statistics().in_flight)
        with connected(port) as server:
            server.wait(1, 5000)
            os.kill(server.info("server")["process_id"], signal.SIGKILL)
        jobs = [encode_job(b"x" * (n + 1)) for n in range(4, 8)]
        wait_until(lambda: sent(queue, jobs))
        worker.join(60)
        assert not worker.is_alive()
        assert set(done) == set(range(1, 9))
        assert "nothing can be received" in caplog.text
        wait_until(lambda: queue.statistics().visible == queue.statistics().in_flight == 0)


def count_sockets() -> int:
    """Return how many sockets this process has open, none of which the garbage collector would close."""
    gc.collect()
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{one}").startswith("socket:")
    return found


# --- many workers


def test_a_message_is_sent_to_one_of_those_that_wait(start_redis: Callable[..., int]) -> None:
    """What leaves the server for ten workers that wait is each message once, not once for each of them."""
    port = start_redis()
    address = f"redis://127.0.0.1:{port}/0"
    received: list[bytes] = []
    stop = threading.Event()

    def work() -> None:
        with contextlib.closing(open_queue(address)) as queue:
            while not stop.is_set():
                messages = queue.receive(10, wait_seconds=0.5)
                received.extend(message.body[:1] for message in messages)
                queue.ack([message.receipt for message in messages])

    workers = [threading.Thread(target=work) for _ in range(10)]
    with contextlib.closing(open_queue(address)) as queue, connected(port) as server:
        for worker in workers:
            worker.start()
        wait_until(lambda: int(server.info("clients")["blocked_clients"]) == 10)
        before = server.info("stats")["total_net_output_bytes"]
        for number in range(10):
            queue.send([b"x" * 300_000])
            wait_until(lambda count=number + 1: len(received) == count)  # type: ignore[misc]
        left = server.info("stats")["total_net_output_bytes"] - before
        stop.set()
        for worker in workers:
            worker.join()
    assert left < 2 * 10 * 300_000


def test_all_that_wait_are_woken_by_many_messages(start_redis: Callable[..., int]) -> None:
    """Who takes what it can hands the token on: one send of many messages sets all workers to work at once."""
    address = f"redis://127.0.0.1:{start_redis()}/0"
    shares: list[int] = []
    begin = threading.Barrier(6)

    def work() -> None:
        with contextlib.closing(open_queue(address)) as queue:
            begin.wait()
            shares.append(len(queue.receive(3, wait_seconds=20.0)))

    workers = [threading.Thread(target=work) for _ in range(5)]
    with contextlib.closing(open_queue(address)) as queue:
        for worker in workers:
            worker.start()
        begin.wait()
        queue.send([b"x"] * 15)
        for worker in workers:
            worker.join(30)
    assert shares == [3] * 5
