"""Programs that run as if nobody had started them: signals reach them, whoever in this process is given them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from headrace.train.lookout import Lookout
from headrace.train.program import run_program


def test_a_signal_that_another_thread_is_given_reaches_the_program() -> None:
    """NumPy's threads do not block signals: one of them would have ended this process, and the program would have gone on."""
    read, write = os.pipe()
    os.set_inheritable(write, True)

    def give() -> None:
        os.read(read, 1)  # the program is there
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=give)
    thread.start()  # before signals are blocked, so that this thread does not block them
    handler = signal.getsignal(signal.SIGTERM)
    program = f"import os, time; os.write({write}, b'1'); time.sleep(60)"
    ending = run_program([sys.executable, "-c", program], os.environ)
    thread.join()
    os.close(read)
    os.close(write)
    assert ending.signal == "SIGTERM"
    assert ending.was_asked
    assert signal.getsignal(signal.SIGTERM) is handler


def test_what_is_ignored_stays_ignored() -> None:
    """Of a program under `nohup` too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        program = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)"
        assert run_program([sys.executable, "-c", program], os.environ).exit_status == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("how", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_a_program_does_not_outlive_who_started_it(how: str) -> None:
    """Who runs it is killed, and it gets SIGTERM, or is killed if it ignores that: what it has inherited is closed."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = f"import os, signal, time; signal.signal(signal.SIGTERM, {how}); os.write({write}, b'1'); time.sleep(600)"
    start = f"lookout.GRACE_SECONDS = 0.1\nrun_program([sys.executable, '-c', {program!r}], os.environ)"
    runner = (
        f"import os, sys\nfrom headrace.train import lookout\nfrom headrace.train.program import run_program\n{start}"
    )
    with subprocess.Popen([sys.executable, "-c", runner], pass_fds=[write]) as process:
        os.close(write)
        assert os.read(read, 1) == b"1"
        process.kill()
    is_closed, _, _ = select.select([read], [], [], 60)
    assert is_closed
    assert os.read(read, 1) == b""
    os.close(read)


def test_what_all_were_sent_reaches_a_program_once() -> None:
    """`timeout` and batch systems send to the whole group, which the program is in: it is not passed on."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = (
        f"import os, signal, sys, time\ncame = []\n"
        f"def note(number, _): came.append(number); os.write({write}, b'1')\n"
        f"signal.signal(signal.SIGINT, note)\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(40 + len(came)))\n"
        f"os.write({write}, b'1')\nwhile True: time.sleep(1)"
    )
    start = f"sys.exit(run_program([sys.executable, '-c', {program!r}], os.environ).exit_status)"
    runner = (
        "import os, sys\nfrom headrace.train import lookout\nfrom headrace.train.program import run_program\n"
        f"lookout._LATE_SECONDS = 60\n{start}"
    )
    with subprocess.Popen([sys.executable, "-c", runner], pass_fds=[write], start_new_session=True) as process:
        os.read(read, 1)  # the program is there
        os.killpg(process.pid, signal.SIGINT)
        os.read(read, 1)
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.wait(60) == 41
    os.close(read)
    os.close(write)


def test_one_is_told_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to this process alone was seen by nobody else, so it has to be passed on."""
    monkeypatch.setattr("headrace.train.lookout._LATE_SECONDS", 0.01)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    lookout = Lookout([signal.SIGUSR1])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert not lookout.saw(signal.SIGUSR1)
    monkeypatch.setattr("headrace.train.lookout._LATE_SECONDS", 60)
    assert lookout._process is not None
    os.kill(lookout._process.pid, signal.SIGUSR1)
    assert lookout.saw(signal.SIGUSR1)
    lookout.close()


@pytest.mark.full
def test_a_second_interrupt_ends_a_program_that_goes_on() -> None:
    """It ignores Ctrl-C; it is killed, and that was asked for."""
    read, write = os.pipe()
    os.set_inheritable(write, True)

    own = threading.get_ident()

    def interrupt_twice() -> None:
        os.read(read, 1)  # the program is there
        signal.pthread_kill(own, signal.SIGINT)
        os.read(read, 1)  # and has seen the first one: two at once would be one
        signal.pthread_kill(own, signal.SIGINT)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    tell = f"lambda *_: os.write({write}, b'1')"
    program = (
        f"import os, signal, time\nsignal.signal(signal.SIGINT, {tell})\nos.write({write}, b'1')\n"
        "while True: time.sleep(1)"
    )
    ending = run_program([sys.executable, "-c", program], os.environ)
    thread.join()
    os.close(read)
    os.close(write)
    assert (ending.signal, ending.status) == ("SIGKILL", "interrupted")
