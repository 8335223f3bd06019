"""Jobs that name files: from a queue on the network they may not, unless the Plan says where."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.delivery.collect import Collect
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job


@pytest.fixture(params=["redis", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A queue on the network, and one in a file."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: str = request.getfixturevalue("redis_server")
    return f"{server}?queue={uuid.uuid4().hex}"


def run(address: str, payloads: list[Any], plan: hr.Plan) -> tuple[dict[str, Any], dict[str, str]]:
    """Run jobs over a queue; return results and reasons of dead letters, by job."""
    queue = open_queue(address)
    queue.send([encode_job(payload, id=str(number)) for number, payload in enumerate(payloads)])
    delivery = Collect()
    pipeline = hr.Pipeline(
        hr.queue(address, drain=True), stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=delivery
    )
    hr.run(pipeline, plan)
    dead = {letter.body.decode(): letter.reason for letter in queue.peek(100, dead=True)}
    queue.close()
    return dict(delivery.results), dead


@pytest.mark.smoke
def test_files_of_strangers_are_refused(address: str, tmp_path: Path) -> None:
    """Over the network a path and a file: address end as dead letters with the reason; from a local queue the path is read."""
    (tmp_path / "a.jpg").write_bytes(b"image")
    results, dead = run(address, [tmp_path / "a.jpg", (tmp_path / "a.jpg").as_uri(), b"bytes"], hr.Plan())
    if address.startswith("sqlite"):
        assert results == {"0": 5, "2": 5}
        assert len(dead) == 1
    else:
        assert results == {"2": 5}
        assert len(dead) == 2
    assert all("file.refused: " in reason and "[network] files" in reason for reason in dead.values())


def test_folders_that_the_plan_names(address: str, tmp_path: Path) -> None:
    """Files below a folder of the Plan are read from any queue, files beside it from none."""
    (tmp_path / "photos").mkdir()
    for path in (tmp_path / "photos" / "a.jpg", tmp_path / "b.jpg"):
        path.write_bytes(b"image")
    plan = hr.Plan.from_table({"network": {"files": [str(tmp_path / "photos")]}})
    results, dead = run(address, [tmp_path / "photos" / "a.jpg", tmp_path / "b.jpg"], plan)
    assert results == {"0": 5}
    assert len(dead) == 1


def test_the_plan_that_is_stored_refuses_no_file_elsewhere(redis_server: str, tmp_path: Path) -> None:
    """What holds for the queue's jobs is not written into the Plan: run over a folder, it reads its files."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"image")
    delivery = Collect()
    stages = [hr.fetch("fetch"), hr.stage("size", len)]
    source = hr.queue(f"{redis_server}?queue={uuid.uuid4().hex}", drain=True)
    first = hr.run(hr.Pipeline(source, stages=stages, delivery=delivery))
    hr.run(hr.Pipeline(hr.folder(tmp_path / "photos"), stages=stages, delivery=delivery), first.plan)
    assert [result for _, result in delivery.results] == [5]
