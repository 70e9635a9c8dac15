"""What an unprivileged user can do to whoever reads his memory: pages of a file system of his own (FUSE), in his own user namespace, that never answers.

page_server.py KIND     says "ready PID..." and stays

runtime   a Python with such a page over its _PyRuntime
flicker   the same, but the page is there and gone again, as quickly as that goes, so that no look at it holds for the next moment
holder    holds the lock of his own memory map, which has the interpreter's file in it: a thread reads such a page by /proc/self/mem
library   one that runs from a copy of the interpreter in that file system, which answers at first and then no more
"""

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
NEWUSER_NEWNS = 0x10000000 | 0x00020000
DIRECTORY, FILE = 1, 2  # nodes
LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR = 1, 3, 14, 15, 18, 25, 26, 27
FORGET, BATCH_FORGET, INTERRUPT = 2, 42, 36
ENOSYS, ENOENT = 38, 2
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
FIXED = 0x10  # MAP_FIXED

# Puts the one and the other in place, for ever, without a word of Python's in between.
FLICKER = r"""
#include <sys/mman.h>
#include <unistd.h>
void flicker(char *page, int kept, int served, unsigned pause) {
    for (;;) {
        mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, kept, 0);
        *(volatile char *)page;
        if (pause) usleep(pause);
        mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, served, 0);
    }
}
"""


def serve(device: int, content: bytes, answers: "list[bool]") -> None:
    """One file, `file`; a read of it is answered while answers[0] is true, and else never."""
    attributes = {
        DIRECTORY: struct.pack("<6Q10I", DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 0, 0o040755, 2, 0, 0, 0, PAGE, 0),
        FILE: struct.pack("<6Q10I", FILE, len(content), 8, 0, 0, 0, 0, 0, 0, 0o100755, 1, 0, 0, 0, PAGE, 0),
    }
    held = []
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError:
            return
        _, kind, unique, node = struct.unpack_from("<IIQQ", request)
        body, error, answer = request[40:], 0, b""
        if kind in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        if kind == INIT:
            answer = struct.pack("<4I2H2I2H8I", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, *[0] * 8)
        elif kind == LOOKUP:
            answer = struct.pack("<4Q2I", FILE, 1, 3600, 3600, 0, 0) + attributes[FILE]
            error = 0 if body.rstrip(b"\0") == b"file" else -ENOENT
        elif kind == GETATTR:
            answer = struct.pack("<QII", 3600, 0, 0) + attributes[node]
        elif kind in (OPEN, OPENDIR):
            answer = struct.pack("<QII", 1, 0, 0)
        elif kind == READ:
            if not answers[0]:
                held.append(unique)
                continue
            _, offset, size = struct.unpack_from("<QQI", body)
            answer = content[offset : offset + size]
        elif kind not in (RELEASE, FLUSH):
            error = -ENOSYS
        os.write(device, struct.pack("<IiQ", 16 + (0 if error else len(answer)), error, unique) + (b"" if error else answer))


def mounted(content: bytes, answers: "list[bool]") -> str:
    """The path of the file, in namespaces of this process's own."""
    uid, gid = os.getuid(), os.getgid()
    if uid:
        check(LIBC.unshare(NEWUSER_NEWNS))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    device = os.open("/dev/fuse", os.O_RDWR)
    place = tempfile.mkdtemp(prefix="pages-")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    check(LIBC.mount(b"pages", place.encode(), b"fuse", 6, options))
    threading.Thread(target=serve, args=(device, content, answers), daemon=True).start()
    return f"{place}/file"


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def runtime_page() -> int:
    """The page of this interpreter's _PyRuntime."""
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")) // PAGE * PAGE


def put(address: int, file: int) -> None:
    LIBC.mmap(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | FIXED, file, 0)


def other_process(path: str, do: str, *args: str) -> subprocess.Popen:
    """One that this one serves: it must not stand still when its pages do."""
    return subprocess.Popen([sys.executable, "-I", "-S", __file__, do, path, *args], stdin=subprocess.DEVNULL)


def stay() -> None:
    threading.Event().wait()


def main(kind: str, *args: str) -> None:
    if kind == "put-runtime":
        file = os.open(args[0], os.O_RDONLY)
        print("ready", os.getpid(), flush=True)
        put(runtime_page(), file)
        stay()
    elif kind == "put-flicker":
        library = ctypes.CDLL(args[1])
        page = runtime_page()
        kept = os.memfd_create("kept")
        os.write(kept, ctypes.string_at(page, PAGE))
        print("ready", os.getpid(), flush=True)
        library.flicker(ctypes.c_void_p(page), kept, os.open(args[0], os.O_RDONLY), 20)
    elif kind == "put-holder":
        mapped = mmap.mmap(os.open(args[0], os.O_RDONLY), PAGE, prot=mmap.PROT_READ)
        address = _address()
        memory = os.open("/proc/self/mem", os.O_RDONLY)
        print("ready", os.getpid(), flush=True)
        os.pread(memory, 8, address)
        mapped.close()
    else:
        answers = [False]
        path = mounted(Path(sys.executable).read_bytes() if kind == "library" else bytes(PAGE), answers)
        library = []
        if kind == "flicker":
            library = [f"{tempfile.mkdtemp()}/flicker.so"]
            subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library[0], "-"], input=FLICKER, text=True, check=True)
        other_process(path, f"put-{kind}", *library)
        stay()


def _address() -> int:
    """Where the page lies: looked up, as nothing of it is to be touched."""
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/file"))
    return int(line.partition("-")[0], 16)


if __name__ == "__main__":
    main(*sys.argv[1:])
