"""What the operator allows on the command line and in the environment."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main

PIPELINE = """
import headrace as hr
pipeline = hr.Pipeline(
    hr.urls("photos.txt"), stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=hr.jsonl("sizes.jsonl")
)
"""


class _Photo(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"image")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A working folder with a pipeline over a server on this machine; what that was asked."""
    handler = type("Handler", (_Photo,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_ALLOW", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "allowed_jobs", raising=False)
    Path("allowed_jobs.py").write_text(PIPELINE)
    Path("photos.txt").write_text(f"http://127.0.0.1:{server.server_port}/a.jpg?token=secret\n")
    yield handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_this_machine_has_to_be_allowed(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word of the operator's the job is rejected with the rule, and no log holds the address's secrets."""
    assert main(["run", "allowed_jobs.py:pipeline", "-o", "run"]) == 1
    assert asked == []
    written = Path("run/errors.jsonl").read_text() + "".join(capsys.readouterr())
    error = json.loads(Path("run/errors.jsonl").read_text().splitlines()[0])
    assert "ssrf.port: " in str(error)
    assert "to allow it: --allow 127.0.0.1:" in str(error)
    assert "secret" not in written
    assert not Path("sizes.jsonl").read_text()


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8"])
def test_allow(asked: list[str], entry: str) -> None:
    """`--allow` lets jobs name an address of this machine, and the run's Plan says so."""
    assert main(["run", "allowed_jobs.py:pipeline", "--allow", "10.0.0.0/8", "--allow", entry, "-o", "run"]) == 0
    assert asked == ["/a.jpg?token=secret"]
    (plan,) = json.loads(Path("run/run.json").read_text())["plans"].values()
    assert plan["network"]["allow"] == ["10.0.0.0/8", entry]


def test_the_environment_adds_to_the_plan(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_ALLOW holds entries separated by commas, beside those of the Plan."""
    Path("plan.toml").write_text('[network]\nallow = ["store.internal"]\n')
    monkeypatch.setenv("HEADRACE_ALLOW", "10.0.0.0/8, 127.0.0.1,")
    assert main(["run", "allowed_jobs.py:pipeline", "--plan", "plan.toml", "-o", "run"]) == 0
    assert len(asked) == 1
    (plan,) = json.loads(Path("run/run.json").read_text())["plans"].values()
    assert plan["network"]["allow"] == ["store.internal", "10.0.0.0/8", "127.0.0.1"]


def test_a_denied_address_stays_denied(asked: list[str]) -> None:
    """The Plan's deny beats `--allow`."""
    Path("plan.toml").write_text('[network]\ndeny = ["127.0.0.0/8"]\n')
    assert main(["run", "allowed_jobs.py:pipeline", "--plan", "plan.toml", "--allow", "127.0.0.1"]) == 1
    assert asked == []


@pytest.mark.parametrize("command", ["run", "profile", "tune", "ladder"])
def test_an_entry_that_means_nothing_is_misuse(
    asked: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no host and no network is told before anything runs."""
    assert main([command, "allowed_jobs.py:pipeline", "--allow", "http://127.0.0.1"]) == 2
    assert "HOST, .DOMAIN, ADDRESS or NETWORK/BITS" in capsys.readouterr().err


def test_an_entry_of_the_environment_is_told_as_such(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who never wrote `allow` is told where the value stands."""
    monkeypatch.setenv("HEADRACE_ALLOW", "http://127.0.0.1")
    assert main(["run", "allowed_jobs.py:pipeline", "--allow", "10.0.0.0/8"]) == 2
    assert "HEADRACE_ALLOW: allow = 'http://127.0.0.1' is not possible" in capsys.readouterr().err
