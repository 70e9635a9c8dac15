"""no_perf.py COMMAND...: run a command where perf_event_open is refused, as under a container's default seccomp filter."""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
EPERM, ALLOW = 0x00050001, 0x7FFF0000
# struct sock_filter: load the call's number; if it is that one, refuse it; else allow it.
FILTER = [(0x20, 0, 0, 0), (0x15, 0, 1, PERF_EVENT_OPEN), (0x06, 0, 0, EPERM), (0x06, 0, 0, ALLOW)]


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in FILTER))
program = Program(len(FILTER), ctypes.addressof(code))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
    sys.exit(f"no filter can be set: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
