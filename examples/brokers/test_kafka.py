"""Jobs from a topic of Kafka, on the broker inside librdkafka: it is made for tests, keeps all in memory, and is no Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from headrace_brokers import kafka
from headrace_brokers.kafka import KafkaSource

from headrace.base.plan import SourcePlan
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.sources.jobs import encode_job

DELIVERED = Outcome(OutcomeKind.DELIVERED)
APP = """
import time
import headrace as hr

def work(value):
    time.sleep(0.01)
    if value == b"bad":
        raise hr.ItemRejected("size.odd: not this one")
    return value.decode()

pipeline = hr.Pipeline(hr.items([]), stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"))
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """The address of a broker, that lives as long as its client."""
    owner = Producer({"test.mock.num.brokers": 1})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(1)


def send(servers: str, topic: str, bodies: list[bytes]) -> None:
    """Send jobs in headrace's form, all to one partition."""
    producer = Producer({"bootstrap.servers": servers})
    for body in bodies:
        producer.produce(topic, encode_job(body), partition=0)
    assert producer.flush(20) == 0


def committed(servers: str, topic: str, group: str) -> int:
    """Return the group's offset; below 0 if it has none."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    return int(found.offset)


def opened(servers: str, topic: str, words: str = "") -> KafkaSource:
    """Return a source that has joined its group."""
    source = KafkaSource(f"kafka://{servers}/{topic}?group={topic}{words}", drain=True)
    source.open(SourcePlan())
    return source


def take(source: KafkaSource, count: int) -> list[Job]:
    """Return so many jobs."""
    jobs: list[Job] = []
    give_up_at = time.monotonic() + 60
    while len(jobs) < count:
        assert time.monotonic() < give_up_at, "waited in vain"
        jobs += source.receive(count - len(jobs), 0.5) or []
    return jobs


def test_the_lowest_that_is_not_done_is_committed(servers: str) -> None:
    """One job that is not done keeps back the offset of what was done behind it, which comes again to whoever reads next."""
    send(servers, "slow", [b"%d" % number for number in range(10)])
    source = opened(servers, "slow")
    jobs = take(source, 10)
    for job in [*jobs[:3], *jobs[4:]]:
        job.settle(DELIVERED)
    source.close()
    assert committed(servers, "slow", "slow") == 3
    source = opened(servers, "slow")
    assert [job.payload for job in take(source, 7)] == [b"%d" % number for number in range(3, 10)]
    source.close()


def test_the_end_of_a_drained_topic(servers: str) -> None:
    """It ends when all is done, and not before; all is committed then."""
    send(servers, "drained", [b"a", b"b"])
    source = opened(servers, "drained")
    first, second = take(source, 2)
    second.settle(DELIVERED)
    assert all(source.receive(5, 0.1) == [] for _ in range(10))
    first.settle(DELIVERED)
    give_up_at = time.monotonic() + 60
    while source.receive(5, 0.1) is not None:
        assert time.monotonic() < give_up_at
    source.close()
    assert committed(servers, "drained", "drained") == 2


def test_what_fails_is_tried_again_and_then_dead(servers: str) -> None:
    """So many times in all; then it is in the topic of the dead with its reason, and the offset goes on."""
    send(servers, "fails", [b"x"])
    send(servers, "fails.dead", [])
    source = opened(servers, "fails", "&dead=fails.dead")
    for attempt in (1, 2, 3):
        (job,) = take(source, 1)
        assert job.attempt == attempt
        job.settle(Outcome(OutcomeKind.RETRY, "not found"))
    source.close()
    assert committed(servers, "fails", "fails") == 1
    reader = Consumer({"bootstrap.servers": servers, "group.id": "look", "auto.offset.reset": "earliest"})
    reader.subscribe(["fails.dead"])
    give_up_at = time.monotonic() + 60
    while (letter := reader.poll(1.0)) is None or letter.error():
        assert time.monotonic() < give_up_at
    assert dict(letter.headers())["reason"] == b"not found"
    reader.close()


def test_a_partition_far_ahead_waits_for_its_lowest_job(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more of it is received until that one is done."""
    monkeypatch.setattr(kafka, "AHEAD", 5)
    send(servers, "ahead", [b"x"] * 20)
    source = opened(servers, "ahead")
    jobs = take(source, 5)
    for job in jobs[1:]:
        job.settle(DELIVERED)
    assert all(source.receive(20, 0.1) == [] for _ in range(20))
    jobs[0].settle(DELIVERED)
    assert len(take(source, 5)) == 5
    source.close()


def test_a_killed_worker_loses_nothing(servers: str, tmp_path: Path) -> None:
    """The command, killed in the middle and started again: every good job is delivered, the bad one left behind."""
    send(servers, "killed", [b"bad" if number == 7 else b"%d" % number for number in range(200)])
    (tmp_path / "app.py").write_text(APP)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "headrace",
        "run",
        "app.py:pipeline",
        "--source",
        f"kafka://{servers}/killed?group=k",
    ]

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, text=True, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    first = start("--results", "out-1.jsonl")
    while len(results(tmp_path)) < 40:
        time.sleep(0.05)
        assert first.poll() is None, first.communicate()
    first.kill()
    first.communicate()
    second = start("--results", "out-2.jsonl", "--drain")
    _, said = second.communicate(timeout=120)
    assert second.returncode == 0, said
    assert set(results(tmp_path)) == {str(number) for number in range(200) if number != 7}


def results(folder: Path) -> list[str]:
    """Return what was delivered."""
    lines = [line for file in folder.glob("out-*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line)["result"] for line in lines if line.endswith("}")]
