"""What an unprivileged user can do to whoever reads his memory: pages of a file system of his own (FUSE), in his own user namespace, that never answers.

page_server.py KIND     says "ready PID..." and stays

states, frames, codes, names, runtime
          a Python with such pages over its thread states, frames, code objects, their names, or _PyRuntime, which waits for ever
flicker, flicker-states ...
          the same, but the pages are there and gone again, as quickly as that goes, so that no look at them holds for the next moment
holder    holds the lock of his own memory map, which has the interpreter's file in it: a thread reads such a page by /proc/self/mem. Another thread
          waits to change that map, and so whoever only wants to look at it waits, too
stubborn  a process for each core that hold it, each by file after file, as soon as the one before was disconnected
library   one that runs from a copy of the interpreter in that file system, which answers at first and then no more
layer     one that has mapped a library which is to be traced from there
"""

import contextlib
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
MANY = 50  # file systems of a stubborn one

# Puts the one and the other in place, for ever, without a word of Python's in between. Its stack lies elsewhere, and all that it uses.
COVERS = r"""
#include <sys/mman.h>
#include <unistd.h>
static void put(char *page, int file, long at) { mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, at); }
void cover(char **pages, int count, int kept, int served, int flickers) {
    for (;;) {
        for (int n = 0; n < count; n++) put(pages[n], served, 0);
        while (!flickers) pause();
        for (int n = 0; n < count; n++) {
            put(pages[n], kept, 4096L * n);
            *(volatile char *)pages[n];
        }
        usleep(20);
    }
}
"""
PARTS = ("states", "frames", "codes", "names", "runtime")


def serve(device: int, name: str, content: bytes, answers: "list[bool]") -> None:
    """One file; a read of it is answered while answers[0] is true, and else never."""
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
            error = 0 if body.rstrip(b"\0") == name.encode() else -ENOENT
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


def enter_namespaces() -> None:
    """In which he may mount."""
    uid, gid = os.getuid(), os.getgid()
    check(LIBC.unshare(NEWUSER_NEWNS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def mounted(name: str, content: bytes, answers: "list[bool]") -> str:
    """The path of the file."""
    device = os.open("/dev/fuse", os.O_RDWR)
    place = tempfile.mkdtemp(prefix="pages-")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    check(LIBC.mount(b"pages", place.encode(), b"fuse", 6, options))
    threading.Thread(target=serve, args=(device, name, content, answers), daemon=True).start()
    return f"{place}/{name}"


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def runtime_page() -> int:
    """The page of this interpreter's _PyRuntime."""
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")) // PAGE * PAGE


def pages_of(part: str) -> "set[int]":
    """Where what a reader of this thread's stack comes by lies."""
    api = ctypes.pythonapi
    if part == "runtime":
        return {runtime_page()}
    api.PyThreadState_Get.restype = ctypes.c_void_p
    if part == "states":
        return {api.PyThreadState_Get() // PAGE * PAGE}
    frame, found = sys._getframe(), set()
    while frame is not None:
        code = frame.f_code
        if part == "frames":  # in a frame object stands where the interpreter has it (3.11)
            found.add(ctypes.c_void_p.from_address(id(frame) + 24).value)
        else:
            found |= {id(code)} if part == "codes" else {id(code.co_name), id(code.co_qualname), id(code.co_filename)}
        frame = frame.f_back
    return {address // PAGE * PAGE for address in found if address}


def cover(library: str, path: str, parts: "list[str]", flickers: bool) -> None:
    """This thread's, from now on and for ever."""
    pages = sorted(set().union(*map(pages_of, parts)))
    kept = os.memfd_create("kept")
    for page in pages:
        os.write(kept, ctypes.string_at(page, PAGE))
    places = (ctypes.c_void_p * len(pages)).from_buffer(mmap.mmap(-1, 8 * len(pages)))  # which is in no such page itself
    places[:] = pages
    act, served = ctypes.CDLL(library).cover, os.open(path, os.O_RDONLY)
    print("ready", os.getpid(), flush=True)
    act(places, len(pages), kept, served, flickers)


def hold(paths: "list[str]") -> None:
    """The lock of this process's own memory map, by one file after the other."""
    mapped = [mmap.mmap(os.open(path, os.O_RDONLY), PAGE, prot=mmap.PROT_READ) for path in paths]
    places = addresses()
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    threading.Timer(0.2, lambda: mmap.mmap(-1, PAGE)).start()
    print("ready", os.getpid(), flush=True)
    for place in places:
        with contextlib.suppress(OSError):
            os.pread(memory, 8, place)
    print("all are gone", len(mapped), file=sys.stderr, flush=True)
    stay()


def addresses() -> "list[int]":
    """Where such pages lie: looked up, as nothing of them is to be touched."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.partition("-")[0], 16) for line in lines if line.endswith("/file")]


def other_process(*words: str, program: str = sys.executable, **options: object) -> subprocess.Popen:
    """One that this one serves: it must not stand still when its pages do. A shell begins it, since this one could not serve while it waits for that."""
    return subprocess.Popen(["sh", "-c", 'exec "$0" "$@"', program, "-I", "-S", __file__, *words], stdin=subprocess.DEVNULL, **options)


def stay() -> None:
    threading.Event().wait()


def main(kind: str, *args: str) -> None:
    _, flickers, part = kind.rpartition("flicker-")
    part = "runtime" if kind == "flicker" else part
    if kind == "hold":
        hold(list(args))
    elif kind == "cover":
        cover(args[0], args[1], args[3:], args[2] == "1")
    elif kind == "be-layer":
        mmap.mmap(os.open(args[0], os.O_RDONLY), PAGE, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
        print("ready", os.getpid(), flush=True)
        stay()
    elif kind == "be-library":
        print("ready", os.getpid(), flush=True)
        stay()
    else:
        serve_for(kind, part, bool(flickers) or kind == "flicker")


def serve_for(kind: str, part: str, flickers: bool) -> None:
    enter_namespaces()
    answers = [kind == "library"]
    if kind == "library":
        path = mounted("python3.11", Path(sys.executable).resolve().read_bytes(), answers)
        began = other_process("be-library", program=path, stdout=subprocess.PIPE, text=True)
        said = began.stdout.readline()
        answers[0] = False
        print(said, end="", flush=True)
    elif kind == "layer":
        other_process("be-layer", mounted("libtorch_cpu.so", bytes(PAGE), answers))
    elif kind in ("holder", "stubborn"):
        for _ in range(os.cpu_count() or 1 if kind == "stubborn" else 1):
            other_process("hold", *(mounted("file", bytes(PAGE), answers) for _ in range(MANY if kind == "stubborn" else 1)))
    else:
        library = f"{tempfile.mkdtemp()}/covers.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=COVERS, text=True, check=True)
        parts = [part] if part in PARTS else [*PARTS[:-1]]
        other_process("cover", library, mounted("file", bytes(PAGE), answers), "1" if flickers else "0", *parts)
    stay()


if __name__ == "__main__":
    main(*sys.argv[1:])
