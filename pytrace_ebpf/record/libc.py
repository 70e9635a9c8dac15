"""The C library of this process, loaded once, for what the standard library does not offer; errors are in ctypes.get_errno().

rights/drop_privileges.py and workers/parsing.py load it themselves: they run alone, with Python's own library.
"""

from ctypes import CDLL, c_int, c_long, c_size_t, c_void_p

libc = CDLL(None, use_errno=True)
libc.syscall.restype = c_long
libc.ptrace.argtypes, libc.ptrace.restype = (c_long, c_long, c_void_p, c_void_p), c_long
libc.mmap.argtypes, libc.mmap.restype = (c_void_p, c_size_t, c_int, c_int, c_int, c_long), c_void_p
libc.munmap.argtypes = (c_void_p, c_size_t)
