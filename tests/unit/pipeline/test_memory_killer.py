"""Whether the kernel killed for want of memory is read where this machine keeps it."""

from pathlib import Path

from headrace.pipeline.memory_killer import memory_kills


def write(file: Path, text: str) -> None:
    """Write a file and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_control_group_of_this_process(tmp_path: Path) -> None:
    """With control groups v2 the own group's counter is read, not the machine's."""
    write(tmp_path / "proc/self/cgroup", "0::/system.slice/worker.service\n")
    write(tmp_path / "cgroup/system.slice/worker.service/memory.events", "low 0\noom 5\noom_kill 3\n")
    write(tmp_path / "proc/vmstat", "oom_kill 9\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path / "proc") == 3


def test_old_control_groups(tmp_path: Path) -> None:
    """With control groups v1 it is in memory.oom_control."""
    write(tmp_path / "proc/self/cgroup", "7:pids:/x\n4:memory:/x/y\n0::/\n")
    write(tmp_path / "cgroup/memory/x/y/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path / "proc") == 2


def test_container_sees_its_group_at_the_root(tmp_path: Path) -> None:
    """Where the path of the group leads nowhere, the group that is mounted is read."""
    write(tmp_path / "proc/self/cgroup", "0::/docker/0123\n")
    write(tmp_path / "cgroup/memory.events", "oom_kill 1\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path / "proc") == 1


def test_without_groups_the_machine_is_asked(tmp_path: Path) -> None:
    """The machine's own counter is better than none, and none is told as such."""
    assert memory_kills(tmp_path / "cgroup", tmp_path / "proc") is None
    write(tmp_path / "proc/vmstat", "nr_free_pages 7\noom_kill 4\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path / "proc") == 4
