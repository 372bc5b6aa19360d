"""Ctrl-C and workers: it waits while they start, and they never hear of it."""

import os
import signal
import subprocess
import sys

import pytest

from paper import pool
from paper.experiment import Task

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
TO_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    return "alive"


def test_an_interrupt_waits_for_the_end_of_the_block():
    before, reached = signal.getsignal(signal.SIGINT), []

    def block():
        with pool._interrupts_held():
            interrupt()
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_is_born_deaf_to_interrupts():
    with pool._interrupts_held():
        done = subprocess.run([sys.executable, "-c", TO_ITSELF], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("alive\n", "")


def test_a_worker_stays_deaf_to_interrupts():
    with pool.workers(1) as started:
        assert [answer.value for answer in pool.answers(started, [Task(interrupt, ())])] == ["alive"]
        assert [answer.value for answer in pool.answers_alone(started, [Task(interrupt, ())])] == ["alive"]
