"""A program that notices everything: what it finds of itself before it is traced, while it is, and after.

Its threads lie in system calls of C's own, which nobody repeats for them: the main one in that which the first word names, the others in epoll_wait,
poll, a read with a time limit, one of a timer and sigtimedwait. Each comes back when it is sent something, or by an error that nobody should have caused.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

import ready
from ready import done, words

libc = ctypes.CDLL(None, use_errno=True)
FOREVER_MS = 600_000
caught, timers, errors, ran = [], [], [], set()


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def in_epoll(end):
    poller = libc.epoll_create1(0)
    libc.epoll_ctl(poller, 1, end.fileno(), struct.pack("<Iq", 1, 0))
    came = libc.epoll_wait(poller, ctypes.create_string_buffer(12), 1, FOREVER_MS)
    os.close(poller)
    return came


def in_poll(end):
    return libc.poll(ctypes.create_string_buffer(struct.pack("<ihh", end.fileno(), 1, 0)), 1, FOREVER_MS)


def in_timed_read(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("<qq", FOREVER_MS // 1000, 0))
    return libc.recv(end.fileno(), ctypes.create_string_buffer(8), 8, 0)


def in_timer(_):
    timers.append(libc.timerfd_create(time.CLOCK_MONOTONIC, 0))
    return libc.read(timers[0], ctypes.create_string_buffer(8), 8) - 7


def in_sigtimedwait(_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 3])
    signals = ctypes.create_string_buffer(128)
    libc.sigemptyset(signals)
    libc.sigaddset(signals, signal.SIGRTMIN + 3)
    return libc.sigtimedwait(signals, None, ctypes.byref(Timespec(FOREVER_MS // 1000, 0))) - signal.SIGRTMIN - 2


def lies(call, end):
    if call(end) != 1:
        errors.append("%s: %s" % (call.__name__, os.strerror(ctypes.get_errno())))


def in_thread(call, end):
    # The timer's signal is the main thread's alone: the kernel gives it to another one where that has not handled the last one yet.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    lies(call, end)


def line_on_stdin():
    lies(globals()[words()[0]], sys.stdin)
    assert os.read(0, 1) == b"\n"


def status(*names):
    with open("/proc/self/status") as lines:
        return {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(names)}


def files_mapped():
    with open("/proc/self/maps") as lines:
        return sorted({line.split(None, 5)[5].strip() for line in lines if len(line.split(None, 5)) == 6})


def handlers():
    return {number: str(signal.getsignal(number)) for number in range(1, signal.NSIG)}


def found():
    before = os.dup(0)  # the lowest number that is free
    os.close(before)
    return {
        "lowest free descriptor": before,
        "descriptors": sorted(os.readlink("/proc/self/fd/%s" % fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/%s" % fd)),
        "maps": files_mapped(),
        "threads": len(os.listdir("/proc/self/task")),
        "threading": sorted(thread.name for thread in threading.enumerate()),
        "status": status("SigB", "SigC", "SigI", "SigP", "Shd", "TracerPid", "Seccomp", "NoNewPrivs", "Uid", "Gid", "Cap", "CoreDumping"),
        "handlers": handlers(),
        "modules": sorted(sys.modules),
        "environment": sorted("%s=%s" % each for each in os.environ.items()),
        "hooks": [str(hook).partition(" at ")[0] for hook in (sys.gettrace(), sys.getprofile(), getattr(threading, "_profile_hook", None), threading.excepthook)],
        "tools": [sys.monitoring.get_tool(tool) for tool in range(6)] if hasattr(sys, "monitoring") else [],
        "threads that ran code": len(ran),
        "limits": [resource.getrlimit(limit) for limit in range(16)],
        "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
        "working directory": os.getcwd(),
        "switch interval": sys.getswitchinterval(),
        "recursion limit": sys.getrecursionlimit(),
        "signals": [number for number in caught if number != signal.SIGALRM],
    }


def work():
    """As long as the timer's ten ticks take."""
    caught.clear()
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    while len(caught) < 10:
        time.sleep(0.001)
    signal.setitimer(signal.ITIMER_REAL, 0)


def watch():
    """As a debugger does: whose thread runs code is one of the program's."""
    tools = sys.monitoring
    tools.use_tool_id(tools.DEBUGGER_ID, "notices")
    tools.register_callback(tools.DEBUGGER_ID, tools.events.PY_START, lambda code, at: ran.add(threading.get_ident()))
    tools.set_events(tools.DEBUGGER_ID, tools.events.PY_START)


if __name__ == "__main__":
    given = status("SigI", "SigB")
    if hasattr(sys, "monitoring"):
        watch()
    for number in set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33, signal.SIGRTMIN + 3}:
        signal.signal(number, lambda number, frame: caught.append(number))
        signal.siginterrupt(number, True)
    ends, threads = [], []
    for call in (in_epoll, in_poll, in_timed_read, in_timer, in_sigtimedwait):
        ours, theirs = socket.socketpair()
        ends.append(ours)
        threads.append(threading.Thread(target=in_thread, args=(call, theirs), name=call.__name__))
        threads[-1].start()
    work()
    found()
    before = found()
    ready.line_on_stdin = line_on_stdin
    ready.ready()
    work()
    during = found()
    done()
    after = found()
    for end, thread in zip(ends, threads):
        end.send(b"x")
        if thread.name == "in_timer":
            libc.timerfd_settime(timers[0], 0, struct.pack("<qqqq", 0, 0, 0, 1), None)
        if thread.name == "in_sigtimedwait":
            signal.pthread_kill(thread.ident, signal.SIGRTMIN + 3)
        thread.join()
    done(before=before, during=during, after=after, errors=errors, given=given)
