"""What a loop that sleeps is woken by."""

import select
import signal
import threading

import pytest

from pytrace_ebpf.record.wakeup import Wakeup
from pytrace_ebpf.terminal import stopping
from tests.conftest import PATIENCE_S


def test_it_wakes_who_sleeps_or_is_about_to_once() -> None:
    wakeup, poll = Wakeup(), select.poll()
    poll.register(wakeup, select.POLLIN)
    for _ in range(2):
        threading.Timer(0.05, wakeup.set).start()
        assert poll.poll(1000 * PATIENCE_S)
        wakeup.set()
        wakeup.clear()
        assert not poll.poll(0)
    wakeup.set()
    assert poll.poll(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_stops_a_recording_wakes_its_loop(number: signal.Signals) -> None:
    wakeup, poll = Wakeup(), select.poll()
    poll.register(wakeup, select.POLLIN)
    with stopping.stop_signals(number) as stopped:
        stopped.wake = wakeup.set
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident or 0, number))
        timer.start()
        assert poll.poll(1000 * PATIENCE_S) and stopped()
