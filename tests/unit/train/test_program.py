"""Programs that run as if nobody had started them: signals reach them, whoever in this process is given them."""

from __future__ import annotations

import os
import signal
import sys
import threading

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
