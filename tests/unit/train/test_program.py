"""Programs that run as if nobody had started them: signals reach them, whoever in this process is given them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

import pytest

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


def test_a_program_does_not_outlive_who_started_it() -> None:
    """Who runs it is killed, and it gets SIGTERM: what it has inherited is closed."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = f"import os, time; os.write({write}, b'1'); time.sleep(600)"
    start = f"run_program([sys.executable, '-c', {program!r}], os.environ)"
    runner = f"import os, sys\nfrom headrace.train.program import run_program\n{start}"
    with subprocess.Popen([sys.executable, "-c", runner], pass_fds=[write]) as process:
        os.close(write)
        assert os.read(read, 1) == b"1"
        process.kill()
    is_closed, _, _ = select.select([read], [], [], 60)
    assert is_closed
    assert os.read(read, 1) == b""
    os.close(read)


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
