"""A worker needs no root and writes nowhere but in its own folder: tried under a root file system that is read-only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import headrace as hr

class Double(hr.Module):
    input = hr.BytesInput()
    def preprocess(self, content):
        return int(content)
    def process(self, batch):
        return [2 * number for number in batch]

pipeline = hr.Pipeline(hr.folder("files", patterns=["*.txt"]), module=Double(), delivery=hr.jsonl("results.jsonl"))
"""
#: Makes every mount but the folder read-only, then goes on as a user who is not root and may not become it.
_SCRIPT = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro /
cd "$1"
shift
exec unshare --user --map-user=10001 --map-group=10001 -- "$@"
"""
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "--", "bash", "-c", _SCRIPT, "bash"]
_TRY = "import os; assert os.getuid() == 10001; open('inside', 'w'); print(open('/usr/outside', 'w'))"


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must not skip")
    pytest.skip(what)


def test_a_run_under_a_read_only_root(tmp_path: Path) -> None:
    """Threads, a process executor, results, checkpoint and run folder work as user 10001 with no /tmp and no home."""
    if shutil.which("unshare") is None:
        _missing("unshare (util-linux) is not installed")
    tried = subprocess.run(
        [*_NAMESPACE, tmp_path, sys.executable, "-c", _TRY], capture_output=True, text=True, check=False
    )
    if not (tmp_path / "inside").exists():
        _missing(f"this machine does not allow namespaces for users: {tried.stderr.strip()[-200:]}")
    assert "Read-only file system" in tried.stderr
    (tmp_path / "jobs.py").write_text(MODULE)
    (tmp_path / "files").mkdir()
    for number in range(20):
        (tmp_path / "files" / f"{number}.txt").write_text(str(number))
    command = [
        sys.executable,
        "-c",
        "from headrace.cli import main; raise SystemExit(main())",
        "run",
        "jobs.py:pipeline",
    ]
    options = ["--set", 'preprocess.executor="process"', "--set", "preprocess.workers=1", "-o", "runs/first"]
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "TMPDIR")}
    ended = subprocess.run(
        [*_NAMESPACE, tmp_path, *command, *options],
        env={**environment, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(line["result"] for line in lines) == [2 * number for number in range(20)]
    assert json.loads((tmp_path / "runs" / "first" / "run.json").read_text())["status"] == "finished"
