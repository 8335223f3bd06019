"""What is installed is pinned and hashed, the image is built without root and shells, and servers stay on the loopback."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> ModuleType:
    """Return a module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = tool("lock")
audit = tool("audit")


@pytest.mark.parametrize("name", sorted(lock.LOCKS))
def test_locks_have_all_that_is_asked_for(name: str) -> None:
    """Every requirement of pyproject.toml is pinned in the locks that are made from it; else: `make lock`."""
    assert lock.missing(name) == []


@pytest.mark.parametrize("name", sorted(lock.LOCKS))
def test_locks_pin_every_file(name: str) -> None:
    """Each line pins a version and a hash, and names no index, address or folder; nothing is as large as torch."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[a-zA-Z0-9._-]+==\S+ ", entry), entry
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}", entry), entry
        assert "://" not in entry
    assert "torch" not in lock.pinned(ROOT / "requirements" / f"{name}.lock")


def test_what_is_missing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requirement that is not locked, or locked too old, is named."""
    monkeypatch.setattr(lock, "wanted", lambda name: ["numpy>=99", "nothing-of-the-kind", "pillow[x]>=1"])
    first, second = lock.missing("container")
    assert first.startswith("numpy>=99: requirements/container.lock has 2.")
    assert second == "nothing-of-the-kind: requirements/container.lock has none"


def answer(*vulnerabilities: dict[str, object], skipped: bool = False) -> dict[str, object]:
    """Return what pip-audit says of two distributions."""
    first: dict[str, object] = {"name": "pillow", "version": "1.0", "vulns": list(vulnerabilities)}
    other: dict[str, object] = {"name": "six", "skip_reason": "not found"}
    return {"dependencies": [other if skipped else first, other]}


FLAW = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.1"]}


def test_an_audit_that_finds_something_fails() -> None:
    """A known vulnerability is named with the version that mends it; what could not be audited is named too."""
    is_bad, lines = audit.judge(answer(FLAW), "", {})
    assert is_bad
    assert list(lines) == [
        "1 of 2 distributions audited, 1 known vulnerabilities",
        "  not audited: six: not found",
        "  pillow 1.0: PYSEC-1, mended in 1.1",
    ]


def test_an_audit_that_was_looked_at_passes() -> None:
    """An accepted id, by any of its names, is not held against it."""
    assert not audit.judge(answer(FLAW), "", {"CVE-1": "not reached"})[0]


@pytest.mark.parametrize(("given", "trouble"), [(None, "no route"), (answer(skipped=True), "")])
def test_an_audit_without_an_answer_says_so(given: dict[str, object] | None, trouble: str) -> None:
    """Where the service does not answer nothing is claimed: neither a pass nor a failure."""
    is_bad, lines = audit.judge(given, trouble, {})
    assert not is_bad
    assert next(iter(lines)).startswith("NOT AUDITED: the vulnerability service does not answer here")


def test_accepted_vulnerabilities_have_reasons(tmp_path: Path) -> None:
    """The list is read, and an id without a reason is refused."""
    audit.accepted()
    (tmp_path / "list").write_text("# heading\nCVE-1 not reached\nCVE-2\n")
    with pytest.raises(ValueError, match="CVE-2 has no reason"):
        audit.accepted(tmp_path / "list")


def instructions() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions and their arguments."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_runs_without_root() -> None:
    """The last user is a number above 0, and nothing after it changes that."""
    users = [value for name, value in instructions() if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_the_image_uses_no_shell_and_no_foreign_files() -> None:
    """Commands are lists, not shell lines; nothing is added from an address; it installs by hash, or its own wheel alone."""
    for name, value in instructions():
        if name in ("RUN", "CMD", "ENTRYPOINT"):
            words = ast.literal_eval(value)
            assert isinstance(words, list)
            assert not {"sh", "bash", "curl", "wget", "-c"} & set(words)
            if "install" in words:
                assert "--require-hashes" in words or {"--no-index", "--no-deps"} <= set(words)
        assert name != "ADD"
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2  # what builds is not in what runs
    assert ("HEALTHCHECK", "NONE") in instructions()


def test_the_image_has_a_named_base() -> None:
    """The base is chosen by an argument, so that who builds can pin its digest, and is never `latest`."""
    base = dict(instructions())["ARG"].partition("=")[2]
    assert ":" in base.rpartition("/")[2]
    assert not base.endswith("latest")
    assert [value for name, value in instructions() if name == "FROM"] == ["${BASE} AS build", "${BASE}"]


def test_only_what_is_needed_goes_into_the_build() -> None:
    """Everything is left out but what the Containerfile copies: no secrets from a working folder."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        word.split("/")[0]
        for name, value in instructions()
        if name == "COPY" and "--from" not in value
        for word in shlex.split(value)[:-1]
    }
    assert copied == allowed


#: Calls that open a listening socket, and where the address stands.
_SERVERS = {
    "HTTPServer",
    "ThreadingHTTPServer",
    "TCPServer",
    "ThreadingTCPServer",
    "start_server",
    "create_server",
    "bind",
    "run_app",
    "TCPSite",
}


def test_servers_stay_on_the_loopback() -> None:
    """No address that other machines could reach stands in the package, benchmarks or examples where a server is opened."""
    for file in (file for folder in ("src", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")):
        if any(part.startswith(".") for part in file.relative_to(ROOT).parts):
            continue  # what a benchmark has installed is not ours
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in _SERVERS:
                arguments = ast.unparse(node)
                assert "0.0.0.0" not in arguments, file
                assert "'::'" not in arguments, file
                assert "('', " not in arguments, file
            if called.endswith("HTTPServer"):
                assert re.search(r"127\.0\.0\.1|localhost|LOOPBACK|::1", arguments), f"{file}: {arguments}"


def test_the_threat_model_names_what_is_there() -> None:
    """Every guide and every test that SECURITY.md points to exists."""
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`((?:tests|benchmarks)/[^`]+)`", text)) | set(
        re.findall(r"\]\(((?:docs/)?[\w/.-]+\.md)\)", text)
    )
    assert len(named) > 12
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_what_headrace_survives_is_tested() -> None:
    """Every test and benchmark that the page points to exists."""
    named = re.findall(
        r"`((?:tests|benchmarks)/[\w/.]+)(?:::(\w+))?`", (ROOT / "docs/reference/survives.md").read_text()
    )
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert missing == []
