"""Code that comes while the program runs: a library that is loaded late, and instructions that it wrote itself, of which no file says anything."""
import ctypes
import mmap
import time

from ready import done, ready, seconds

SPIN = b"\x89\xf9\xff\xc9\x75\xfc\xc3"  # mov ecx, edi; again: dec ecx; jnz again; ret


def compresses(zlib, data):
    zlib.compress(data, 6)


def spins(spin):
    spin(20_000_000)


ready()
import zlib  # noqa: E402

memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(SPIN)
spin = ctypes.CFUNCTYPE(None, ctypes.c_uint)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
data, end, spun = bytes(range(256)) * 2000, time.monotonic() + seconds(4), 0
while time.monotonic() < end:
    compresses(zlib, data)
    spins(spin)
    spun += 1
done(spun=spun)
