"""Addresses of queues."""

from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.cli.loading import parse_source
from headrace.sources.addresses import hide_secrets, open_queue, parse_address


def test_a_file_beside_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes name a file beside the working folder, and make it."""
    monkeypatch.chdir(tmp_path)
    queue = open_queue("sqlite:///jobs.db?queue=night&visibility=90s")
    assert queue.name == "sqlite:///jobs.db?queue=night"
    assert queue.visibility_seconds == 90
    assert (tmp_path / "jobs.db").exists()
    queue.close()


def test_an_absolute_file(tmp_path: Path) -> None:
    """Four slashes name an absolute file; what is escaped in the address is not in the name of the file."""
    queue = open_queue(f"sqlite:///{tmp_path}/my%20jobs.db")
    assert (tmp_path / "my jobs.db").exists()
    assert queue.visibility_seconds == 30
    queue.close()


def test_what_the_caller_says_wins(tmp_path: Path) -> None:
    """A visibility timeout of the caller's wins over the address."""
    queue = open_queue(f"sqlite:///{tmp_path}/jobs.db?visibility=90", visibility_seconds=5)
    assert queue.visibility_seconds == 5
    queue.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("jobs.db", "sqlite:///jobs.db"),
        ("amqp://user:geheim@host", "got 'amqp'"),
        ("sqlite://jobs.db", "third slash"),
        ("sqlite:jobs.db", "third slash"),
        ("sqlite:///", "third slash"),
        ("sqlite:///jobs.db?que=a", "unknown key 'que'. Did you mean 'queue'"),
        ("sqlite:///jobs.db?queue=", "says nothing for queue"),
        ("sqlite:///jobs.db?queue=a&queue=b", "queue twice"),
        ("sqlite:///jobs.db?visibility=soon", "visibility"),
        ("sqlite:///jobs.db?visibility=0s", "visibility = '0s' is not possible"),
        ("sqlite:///jobs.db#a", "after #"),
        ("redis://user:geheim@host:port/0", "port is not a number"),
        ("redis://user:geheim@host/jobs", r"\?queue=jobs"),
        ("redis://user:geheim@host/0?region=a", "unknown key 'region'"),
        ("redis://user:geheim@host:6379,other:6379/0", "port is not a number"),
        ("redis+sentinel://user:geheim@host:26379,other:port/main/0", "port is not a number"),
        ("redis+sentinel://user:geheim@host:26379", r"redis\+sentinel://HOST:26379,HOST:26379/SERVICE/0"),
        ("redis+sentinel://user:geheim@host:26379/main/jobs", r"\?queue=jobs"),
        ("sqs://", "QUEUE_NAME"),
        ("sqs://key:geheim@name", "keys do not belong"),
        ("sqs://name?queue=a", "unknown key 'queue'"),
        ("sqs://name.fifo", "FIFO"),
        ("https://e.com/a/b/c", "/ACCOUNT/QUEUE_NAME"),
        ("https://e.com/clip.mp4", "Download a file"),
        ("http://[::1", "not a URL"),
    ],
)
def test_a_wrong_address_is_explained(address: str, said: str) -> None:
    """What cannot be understood is a SettingsError that says what, without the password."""
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")) as raised:
        open_queue(address)
    assert "geheim" not in str(raised.value)


def test_parsing_opens_nothing(tmp_path: Path) -> None:
    """An address can be checked without its service."""
    parse_address(f"sqlite:///{tmp_path}/jobs.db")
    parse_address("redis://nowhere.invalid/0?queue=a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("sqlite:///jobs@home.db?queue=a", "sqlite:///jobs@home.db?queue=a"),
        ("redis://me:ge@heim@host/0?queue=a@b", "redis://...@host/0?queue=a@b"),
        ("kafka://a:1,b:2/t?sasl_Password=geheim&group=a#b", "kafka://a:1,b:2/t?sasl_Password=...&group=a#b"),
        ("amqp://host/?auth_token=geheim", "amqp://host/?auth_token=..."),
        ("https://a.example/c/x.jpg?sv=1&sig=ge%2Bheim&se=2", "https://a.example/c/x.jpg?sv=1&sig=...&se=2"),
        ("live+http://a:x@camera:8080/c?loginuse=a&loginpas=geheim", "live+http://...@camera:8080/c?..."),
        ("live+http://camera/c?p=geheim#fps=5&size=32x18", "live+http://camera/c?...#fps=5&size=32x18"),
        ("rtsp://a:p@ss/geheim@camera:554/x", "rtsp://...@camera:554/x"),
        ("RTSP://a:b#fps=5&pw=geheim@camera/main#fps=5", "RTSP://...@camera/main#fps=5"),
        ("rtsp://camera/main#pw=geheim", "rtsp://camera/..."),
        ("https://a.example/x?X-Amz-Signature=geheim&design=a", "https://a.example/x?X-Amz-Signature=...&design=a"),
    ],
)
def test_secrets_of_an_address_are_hidden(address: str, shown: str) -> None:
    """User and password, and parameters that are called like a secret, whatever the scheme."""
    assert hide_secrets(address) == shown


def test_an_unknown_scheme_of_a_source_is_answered_with_all_that_there_are() -> None:
    """Object stores are among them; queues, too."""
    with pytest.raises(SettingsError, match=r"got 'ftp'") as raised:
        parse_source("ftp://example.com/photos", drain=False)
    assert all(f"{scheme}://" in str(raised.value) for scheme in ("s3", "gs", "az", "sqs", "redis", "sqlite"))
