"""Groups of ranks, with programs that need no PyTorch: what they are told, and what happens when one of them fails."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.train.ranks import launch
from headrace.train.ranks.launch import Group, RanksFailed, run_group


def _group(folder: Path, program: str, *, ranks: int = 2, patience: float = 60.0) -> Group:
    return Group(
        argv=(sys.executable, "-c", program), ranks=ranks, environment=os.environ, logs=folder, patience=patience
    )


def test_each_rank_knows_who_it_is(tmp_path: Path) -> None:
    """The variables are those of torchrun, with one address for all."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    run_group(_group(tmp_path, f"import os; print(*(os.environ[name] for name in {names}))"))
    first, second = ((tmp_path / f"rank-{rank}.log").read_text().split() for rank in range(2))
    assert first[:4] == ["0", "0", "2", "2"]
    assert second[:4] == ["1", "1", "2", "2"]
    assert first[4:] == second[4:]
    assert first[4] == "127.0.0.1"


def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    """The error names it, its exit status and its last lines; the other one does not run on."""
    program = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    sys.exit('no such file: train.csv')\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    with pytest.raises(RanksFailed, match=r"rank 1 of 2 ended with exit status 1(.|\n)*no such file: train\.csv"):
        run_group(_group(tmp_path, program))
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


_GONE = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:400"


def _meet(folder: Path, ranks: int) -> str:
    """Return the beginning of a program: a rank goes on once all of them are there, however slow the machine is."""
    return (
        "import os, sys, time\n"
        f"rank, place = os.environ['RANK'], {str(folder / 'here-')!r}\n"
        "open(place + rank, 'w').close()\n"
        f"while not all(os.path.exists(place + str(one)) for one in range({ranks})):\n    time.sleep(0.01)\n"
    )


_GONE_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3763, remote process exited or there was a "
    "network error, NCCL version 2.28.8\nncclRemoteError: A call failed possibly due to a network error or a remote process "
    "exiting prematurely.\nLast error:\nNET/OFI Request 0x7f14cc5b60c0 completed with error. RC: 113."
)
_ABORTED = "NCCL communicator was aborted on rank 0."
_WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600000 ms"
)


@pytest.mark.parametrize("gone", [_GONE, _GONE_NCCL, _ABORTED, _WATCHDOG])
def test_the_rank_that_failed_first_is_named_not_those_that_lost_it(gone: str, tmp_path: Path) -> None:
    """A rank that leaves its process group, and raises later, is seen after the others that fail for want of it."""
    lost = f"if rank == '0':\n    sys.exit({gone!r})\n"
    program = f"{_meet(tmp_path, 2)}{lost}time.sleep(1); sys.exit('no such file: train.csv')"
    with pytest.raises(RanksFailed, match=r"rank 1 of 2 ended with exit status 1(.|\n)*no such file: train\.csv"):
        run_group(_group(tmp_path, program))


def test_a_rank_that_ends_well_too_early_is_named(tmp_path: Path) -> None:
    """The others fail with an error of the connection, which says nothing of it."""
    program = f"{_meet(tmp_path, 3)}if rank == '0':\n    sys.exit({_GONE!r})"
    with pytest.raises(RanksFailed, match=r"rank 0 of 3 ended with .*\. Ranks 1, 2 ended with exit status 0\. Do all"):
        run_group(_group(tmp_path, program, ranks=3))


@pytest.mark.real_clock
def test_a_rank_that_ended_while_others_hang_is_named(tmp_path: Path) -> None:
    """Beside those that still ran."""
    program = "import os, time\nif os.environ['RANK'] == '0':\n    time.sleep(600)"
    with pytest.raises(RanksFailed, match=r"rank 0 of 2 still ran after 3 s.*Rank 1 ended with exit status 0\. Do all"):
        run_group(_group(tmp_path, program, patience=3))


@pytest.mark.parametrize("keeps_logs", [True, False])
def test_a_log_is_named_only_if_it_is_kept(keeps_logs: bool, tmp_path: Path) -> None:
    """What is in a folder that is removed cannot be read."""
    group = dataclasses.replace(_group(tmp_path, "raise SystemExit('no such layer')", ranks=1), keeps_logs=keeps_logs)
    with pytest.raises(RanksFailed, match="no such layer") as raised:
        run_group(group)
    assert (str(tmp_path) in str(raised.value)) is keeps_logs


def test_a_rank_that_is_killed_is_named_with_the_signal(tmp_path: Path) -> None:
    """As the kernel does where memory runs out."""
    program = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(RanksFailed, match=r"rank 0 of 1 was ended by SIGKILL \(as the kernel .* memory runs out\)"):
        run_group(_group(tmp_path, program, ranks=1))


@pytest.mark.real_clock
def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    """The error names those that still ran."""
    program = "import os, time\nif os.environ['RANK'] == '1': time.sleep(600)"
    with pytest.raises(RanksFailed, match=r"rank 1 of 2 still ran after 3 s.*--patience"):
        run_group(_group(tmp_path, program, patience=3.0))


def test_another_ctrl_c_leaves_no_rank_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that goes on after SIGTERM is killed also if Ctrl-C is pressed again while it is waited for."""
    wait, calls = launch._wait_quietly, []
    pid = tmp_path / "pid"

    def interrupted_first(*_: Any) -> None:
        while not pid.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    def interrupted(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(*args)

    monkeypatch.setattr(launch, "_wait_all", interrupted_first)
    monkeypatch.setattr(launch, "_wait_quietly", interrupted)
    program = (
        "import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"new = pathlib.Path({str(tmp_path / 'new')!r}); new.write_text(str(os.getpid())); new.rename({str(pid)!r})\n"
        "time.sleep(600)"
    )
    with pytest.raises(KeyboardInterrupt):
        run_group(_group(tmp_path, program, ranks=1))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    """A script that listens on a port of its own cannot when another one does."""
    program = "raise OSError(98, 'Address already in use')"
    with pytest.raises(RanksFailed, match=r"Address already in use(.|\n)*does the script listen on a port of its own"):
        run_group(_group(tmp_path, program, ranks=1))


def test_what_a_rank_leaves_behind_is_ended(tmp_path: Path) -> None:
    """A loader worker of a rank that is done holds nobody up, and does not live on."""
    program = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=2)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(left.pid))"
    )
    run_group(_group(tmp_path, program, ranks=1))
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")

    def is_gone() -> bool:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    given_up = time.monotonic() + 60.0
    while not is_gone() and time.monotonic() < given_up:  # it was killed, and is on its way
        time.sleep(0.01)
    assert is_gone()


def test_a_program_that_does_not_exist_is_no_setting(tmp_path: Path) -> None:
    """It cannot be started."""
    group = Group(argv=("/no/such/python",), ranks=1, environment={}, logs=tmp_path, patience=1.0)
    with pytest.raises(SettingsError, match="cannot be started"):
        run_group(group)


@pytest.mark.full
@pytest.mark.parametrize("child", ["link_child", "parallel_child"])
def test_a_rank_does_not_outlive_who_started_it(child: str, tmp_path: Path) -> None:
    """Its parent died while it imported PyTorch: it ends, where it would wait for the other rank for ever."""
    pytest.importorskip("torch")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", f"headrace.train.ranks.{child}", "request", "answer"],
        env={**os.environ, **place, "HEADRACE_TRAIN_PARENT": str(dead.pid)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (1, "")
