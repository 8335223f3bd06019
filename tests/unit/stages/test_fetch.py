"""Address or path -> bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.calls import Call
from headrace.base.carrier import Carrier
from headrace.base.errors import FetchFailed, FetchPostponed, FetchRejected, SettingsError
from headrace.base.network_rules import NetworkPlan
from headrace.stages import fetch as fetch_stage
from headrace.stages.fetch import FetchStage


@pytest.fixture(autouse=True, params=["waiting", "carried"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways to wait: in the worker's thread, and in one thread that carries the calls of many."""
    if request.param == "waiting":
        yield
        return
    carrier = Carrier()

    def carry(call: Call[Any]) -> Any:
        carrier.begin(call, "call")
        (ended,) = carrier.wait(None)
        if ended.error is not None:
            raise ended.error
        return ended.value

    monkeypatch.setattr(fetch_stage, "run_call", carry)
    yield
    carrier.close()


@pytest.fixture
def fetch(make_context: Any) -> Callable[[Any], Any]:
    """An opened stage that takes up to 1000 bytes."""
    return FetchStage("fetch").open(make_context(options={"max_bytes": 1000, "timeout_seconds": 10}))


def test_http(fetch: Any, server: Any) -> None:
    """An address gives the body behind it."""
    server.answers["/a.jpg"] = (200, b"image")
    assert fetch(f"{server.url}/a.jpg?size=1") == b"image"
    assert fetch(f"HTTP{server.url.removeprefix('http')}/a.jpg") == b"image"


def test_http_keeps_its_connection(fetch: Any, server: Any) -> None:
    """A worker's downloads from one server share a connection."""
    server.answers["/a.jpg"] = (200, b"image")
    for _ in range(3):
        fetch(f"{server.url}/a.jpg")
    assert len(server.connections) == 1


def test_connections_are_counted(make_context: Any, server: Any) -> None:
    """The run learns how many connections a stage opened, under the stage's name; requests that reuse one do not count."""
    server.answers["/a.jpg"] = (200, b"image")
    context = make_context()
    stage = FetchStage("photos.fetch")
    for worker in [stage.open(context), stage.open(context)]:
        for _ in range(3):
            worker(f"{server.url}/a.jpg")
    assert context.counts["photos.fetch.connections"] == len(server.connections) == 2
    assert context.counts["photos.fetch.connect_microseconds"] > 0


def test_files_need_no_connection(make_context: Any, tmp_path: Path) -> None:
    """Reading a file counts nothing."""
    (tmp_path / "a.jpg").write_bytes(b"image")
    context = make_context()
    FetchStage("fetch").open(context)(tmp_path / "a.jpg")
    assert context.counts == {}


@pytest.mark.parametrize("status", [201, 206, 304, 400, 401, 403, 404, 410])
def test_statuses_that_stay(fetch: Any, server: Any, status: int) -> None:
    """What the server will never serve is rejected, with the address without its query."""
    server.answers["/a.jpg"] = (status, b"")
    with pytest.raises(FetchRejected) as caught:
        fetch(f"{server.url}/a.jpg?token=secret")
    assert str(caught.value) == f"http.status: {server.url}/a.jpg?... answered {status}, expected 200"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_statuses_that_pass(fetch: Any, server: Any, status: int) -> None:
    """What may work later is worth another try."""
    server.answers["/a.jpg"] = (status, b"")
    with pytest.raises(FetchFailed, match=f"answered {status}"):
        fetch(f"{server.url}/a.jpg")


def test_http_too_large(fetch: Any, server: Any) -> None:
    """A body over max_bytes is rejected."""
    server.answers["/a.jpg"] = (200, b"x" * 1001)
    with pytest.raises(FetchRejected, match=r"a\.jpg"):
        fetch(f"{server.url}/a.jpg")


def test_no_server(fetch: Any, server: Any) -> None:
    """A server that is not there may come back."""
    server.server_close()
    with pytest.raises(FetchFailed):
        fetch(f"{server.url}/a.jpg")


@pytest.mark.parametrize("url", ["ftp://example.com/a.jpg", "s3://bucket/key", "a.jpg", ""])
def test_other_addresses(fetch: Any, url: str) -> None:
    """Schemes that cannot be fetched are rejected with those that can."""
    with pytest.raises(FetchRejected) as caught:
        fetch(url)
    assert str(caught.value) == f"ssrf.scheme: address {url!r} cannot be fetched; expected http, https or file"


def test_a_text_is_no_address(fetch: Any) -> None:
    """The reason says how a program gives texts."""
    with pytest.raises(FetchRejected, match=r"expected http, https or file; texts .* hr\.items\(values, texts=True\)"):
        fetch("A text of some words")


@pytest.mark.parametrize("payload", [{"text": "a"}, 7, ["a.jpg"]], ids=str)
def test_what_is_no_address(fetch: Any, payload: Any) -> None:
    """Trying it again would not help; the reason names the input that takes such values."""
    with pytest.raises(FetchRejected, match=r"^fetch\.type: the job holds \w+; expected .* hr\.ArrayInput\(\)$"):
        fetch(payload)


@pytest.mark.parametrize("payload", [b"bytes", np.zeros(3)], ids=["bytes", "array"])
def test_what_is_at_hand_passes(fetch: Any, payload: Any) -> None:
    """Bytes and arrays need no fetching."""
    assert fetch(payload) is payload


@pytest.mark.parametrize("name", ["a.jpg", "with space.jpg", "ünï 100%.jpg"])
def test_file(fetch: Any, make_context: Any, tmp_path: Path, name: str) -> None:
    """A path, and a file address with its escapes, give the file's bytes."""
    path = tmp_path / name
    path.write_bytes(b"image")
    assert fetch(path) == b"image"
    read_address = FetchStage("fetch").open(make_context(network=NetworkPlan(files=[str(tmp_path)])))
    assert read_address(path.as_uri()) == read_address(f"file://localhost{path.as_uri()[7:]}") == b"image"


@pytest.mark.parametrize("size", [0, 999, 1000])
def test_file_of_any_size(fetch: Any, tmp_path: Path, size: int) -> None:
    """A file up to max_bytes is read whole, an empty one too."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x" * size)
    assert len(fetch(path)) == size


def test_file_too_large(fetch: Any, tmp_path: Path) -> None:
    """A file over max_bytes is rejected, and no more of it is read."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x" * 1001)
    with pytest.raises(FetchRejected) as caught:
        fetch(path)
    assert str(caught.value) == f"file.too_large: {path} is larger than max_bytes = 1000"


def test_file_missing(fetch: Any, tmp_path: Path) -> None:
    """A file that is not there is rejected by its name."""
    with pytest.raises(FetchRejected) as caught:
        fetch(tmp_path / "none.jpg")
    assert str(caught.value) == f"file.unreadable: {tmp_path / 'none.jpg'} cannot be read: No such file or directory"


def test_file_within_a_file(fetch: Any, tmp_path: Path) -> None:
    """A path through a file is rejected."""
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FetchRejected, match="Not a directory"):
        fetch(tmp_path / "a" / "b.jpg")


def test_directory(fetch: Any, tmp_path: Path) -> None:
    """A folder is no image."""
    with pytest.raises(FetchRejected, match="Is a directory"):
        fetch(tmp_path)


def test_what_is_no_path(fetch: Any) -> None:
    """A file address with a NUL byte is rejected, not tried again."""
    with pytest.raises(FetchRejected, match="is not a path"):
        fetch("file:///tmp/a%00b.jpg")


def test_a_file_that_does_not_tell_its_size(make_context: Any) -> None:
    """A file whose size the system gives as 0 is read to its end."""
    path = Path("/proc/self/limits")
    assert path.stat().st_size == 0
    read = FetchStage("fetch").open(make_context(network=NetworkPlan(files=["/proc"])))
    assert read(path).startswith(b"Limit")
    assert len(read(path)) > 500


@pytest.mark.parametrize("special", ["/dev/zero", "/dev/tty", "pipe", "socket", "link to a pipe"])
def test_special_files_are_refused_at_once(fetch: Any, tmp_path: Path, special: str) -> None:
    """What is no regular file is neither opened nor waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(FetchRejected, match=r"^file\.special: .* is a device, pipe or socket"):
            fetch(tmp_path / special)


@pytest.mark.parametrize(
    "way",
    ["/proc/self/environ", "/proc/1/../self/environ", "/sys/devices/system/cpu/online", "link", "memory"],
)
@pytest.mark.parametrize("files", [None, ["/"]])
def test_the_systems_own_files_are_refused(
    make_context: Any, tmp_path: Path, way: str, files: list[str] | None
) -> None:
    """No path leads to a process's environment or memory, neither through a link nor where all of the disk may be read."""
    (tmp_path / "link").symlink_to("/proc/self/environ")
    fetch = FetchStage("fetch").open(make_context(network=NetworkPlan(files=files)))
    memory = os.memfd_create("secret")
    try:
        os.write(memory, b"secret")
        path = Path(f"/proc/self/fd/{memory}") if way == "memory" else tmp_path / way
        with pytest.raises(FetchRejected, match=r"^file\.(special: .* leads into /proc|refused)"):
            fetch(path)
    finally:
        os.close(memory)


def test_a_file_address_needs_a_folder_that_the_plan_names(fetch: Any, tmp_path: Path) -> None:
    """What is written as an address may be a stranger's: without [network] files no file is read on its word."""
    (tmp_path / "a.jpg").write_bytes(b"image")
    assert fetch(tmp_path / "a.jpg") == b"image"
    with pytest.raises(FetchRejected, match=r"^file\.refused: .*\[network\] files"):
        fetch((tmp_path / "a.jpg").as_uri())


@pytest.mark.parametrize("url", ["file://evil/etc/hostname", "file://127.0.0.1/etc/hostname", "file://[/etc/hostname"])
def test_a_file_of_another_machine_is_refused(fetch_from: Any, url: str) -> None:
    """The host of a file address is not passed over."""
    with pytest.raises(FetchRejected, match=r"^ssrf\.url: "):
        fetch_from("/")(url)


@pytest.fixture
def fetch_from(make_context: Any) -> Callable[..., Callable[[Any], Any]]:
    """Opens a stage whose jobs may name files in these folders."""
    return lambda *folders: FetchStage("fetch").open(
        make_context(network=NetworkPlan(files=[str(folder) for folder in folders]))
    )


def test_files_in_an_allowed_folder(fetch_from: Any, tmp_path: Path) -> None:
    """Files anywhere below an allowed folder are read, by path and by address, also through a link to the folder."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "real" / "deep" / "a.jpg"
    path.write_bytes(b"image")
    for fetch in (fetch_from(tmp_path / "real"), fetch_from("/nowhere", tmp_path / "link"), fetch_from("/")):
        assert fetch(path) == fetch(path.as_uri()) == fetch(tmp_path / "link" / "deep" / "a.jpg") == b"image"


@pytest.mark.parametrize("way", ["beside", "longer name", "dots", "link", "link to a folder", "escaped"])
def test_files_outside_of_the_allowed_folders(fetch_from: Any, tmp_path: Path, way: str) -> None:
    """No path leads out of an allowed folder: neither dots nor links nor a folder whose name begins alike."""
    inside = tmp_path / "photos"
    inside.mkdir()
    (tmp_path / "photos-secret").mkdir()
    for secret in (tmp_path / "secret", tmp_path / "photos-secret" / "secret"):
        secret.write_bytes(b"secret")
    (inside / "link").symlink_to("../secret")
    (inside / "folder").symlink_to("../photos-secret")
    paths = {
        "beside": tmp_path / "secret",
        "longer name": tmp_path / "photos-secret" / "secret",
        "dots": inside / ".." / "secret",
        "link": inside / "link",
        "link to a folder": inside / "folder" / "secret",
        "escaped": f"file://{inside}/%2e%2e/secret",
    }
    with pytest.raises(FetchRejected, match=r"^file\.refused: .*\[network\] files"):
        fetch_from(inside)(paths[way])


def test_no_folder_allows_no_file(fetch_from: Any, tmp_path: Path) -> None:
    """An empty list, which is what jobs from a network's queue get, refuses every file."""
    (tmp_path / "a.jpg").write_bytes(b"image")
    for payload in (tmp_path / "a.jpg", (tmp_path / "a.jpg").as_uri(), "file:/etc/passwd", "FILE:///etc/passwd"):
        with pytest.raises(FetchRejected, match=r"^file\.refused"):
            fetch_from()(payload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 3}, r"\[stages\.fetch\.options\]: unknown key 'timeout'\. Did you mean 'timeout_seconds'\?"),
        ({"max_bytes": 0}, r"\[stages\.fetch\.options\]: max_bytes = 0 is not possible"),
        ({"max_bytes": "lots"}, r"\[stages\.fetch\.options\]: max_bytes = 'lots': expected a size"),
    ],
)
def test_options_are_checked(make_context: Any, options: dict[str, Any], message: str) -> None:
    """Unknown and impossible options are told before the first item, with their place in the Plan."""
    with pytest.raises(SettingsError, match=message):
        FetchStage("fetch").open(make_context(options=options))


def test_a_server_that_does_not_answer_is_left_alone(make_context: Any) -> None:
    """After failures in a row it is not called, by any worker of the stage; jobs for it are to come later, others go on."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    context = make_context(options={"breaker_failures": 3, "breaker_seconds": 60})
    stage = FetchStage("fetch")
    first, second = stage.open(context), stage.open(context)
    for _ in range(3):
        with pytest.raises(FetchFailed, match=r"^http\.connect: "):
            first(f"http://127.0.0.1:{port}/a")
    with pytest.raises(FetchPostponed, match=r"^http\.left_alone: .* was not called") as caught:
        second(f"http://127.0.0.1:{port}/b")
    assert 0 < caught.value.retry_after_seconds <= 60
    assert context.counts["fetch.breaker_opened"] == context.counts["fetch.refused_while_open"] == 1


def test_how_long_nothing_is_counted_is_an_option(make_context: Any) -> None:
    """What is postponed says how old its job may be: a run that drains a queue must not wait a day for a host that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    fetch = FetchStage("fetch").open(make_context(options={"breaker_failures": 1, "give_up_seconds": 2}))
    with pytest.raises(FetchFailed, match=r"^http\.connect: "):
        fetch(address)
    with pytest.raises(FetchPostponed) as caught:
        fetch(address)
    assert caught.value.patience_seconds == 2


def test_an_error_status_leaves_nobody_alone(make_context: Any, server: Any) -> None:
    """A server that answers works, whatever it answers."""
    server.answers["/a"] = (503, b"")
    fetch = FetchStage("fetch").open(make_context(options={"breaker_failures": 1}))
    for _ in range(3):
        with pytest.raises(FetchFailed, match=r"^http\.status: "):
            fetch(f"{server.url}/a")
