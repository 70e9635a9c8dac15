"""One thread that never stops calling, under a seccomp filter that allows everything."""
import ctypes

from busy import forever
from ready import ready

ALLOW = (6).to_bytes(2, "little") + b"\0\0" + (0x7FFF0000).to_bytes(4, "little")  # BPF_RET, SECCOMP_RET_ALLOW


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


if __name__ == "__main__":
    program = ctypes.create_string_buffer(ALLOW, len(ALLOW))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(Filter(1, ctypes.addressof(program))), 0, 0) == 0  # PR_SET_SECCOMP
    ready()
    forever()
