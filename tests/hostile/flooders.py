"""Programs of users who want a daemon's work for themselves, and one of a user who wants nothing: each as a process of a user of its own.

    flooders.py functions|symbols|starts|steady FOLDER

`functions`: each stack has 950 functions that were not there before. `symbols`: an interpreter of a million symbols, touched and started again and
again. `starts`: forty processes at a time, of which one after the other ends and another begins. `steady`: a function `handle_request`, all the while.
"""

import os
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

DEPTH, KEPT, SYMBOLS, AT_ONCE = 950, 100, 1_000_000, 40
STEADY = "handle_request"


def call(functions: list, at: int, until: float) -> None:
    """Call the next one; the last one spins."""
    if at < len(functions):
        functions[at](functions, at + 1, until)
    while time.monotonic() < until:
        pass


def functions() -> None:
    """Invent functions."""
    sys.setrecursionlimit(10_000)
    made, kept = 0, deque(maxlen=KEPT)
    while True:
        chain = [type(call)(call.__code__.replace(co_name=f"invented_{made + at}"), globals()) for at in range(DEPTH)]
        made += DEPTH
        kept.append(chain)  # until somebody has read their names
        call(chain, 0, time.monotonic() + 0.012)


def with_symbols(path: Path, count: int = SYMBOLS) -> None:
    """A copy of this interpreter whose section of dynamic symbols has so many; its loader does not look at sections."""
    content = bytearray(Path(sys.executable).resolve().read_bytes())
    (at,) = struct.unpack_from("<Q", content, 40)
    size, sections, names = struct.unpack_from("<HHH", content, 58)
    headers = [list(struct.unpack_from("<IIQQQQIIQQ", content, at + size * number)) for number in range(sections)]
    text = headers[names][4]
    for header in headers:
        if content[text + header[0] :].startswith(b".dynsym\0"):
            old = content[header[4] : header[4] + header[5]]
            own = headers[header[6]]
            strings = bytes(content[own[4] : own[4] + own[5]])
            added = b"".join(f"a_symbol_{number:07d}\0".encode() for number in range(count))
            rows = b"".join(struct.pack("<IBBHQQ", len(strings) + 17 * number, 0x12, 0, 1, 4096 + number, 8) for number in range(count))
            header[4:6] = len(content), len(old) + len(rows)
            content += old + rows
            own[4:6] = len(content), len(strings) + len(added)
            content += strings + added
            break
    for number, header in enumerate(headers):
        struct.pack_into("<IIQQQQIIQQ", content, at + size * number, *header)
    path.write_bytes(content)
    path.chmod(0o755)


def symbols(folder: Path) -> None:
    """Start interpreters of many symbols, whose file has changed each time."""
    file = folder / "python-of-many-symbols"
    with_symbols(file)
    running: list[subprocess.Popen[bytes]] = []
    print("ready", flush=True)
    while True:
        os.utime(file)
        running.append(subprocess.Popen([str(file), "-c", "while True: pass"], preexec_fn=lambda: os.nice(19)))
        time.sleep(0.3)
        if len(running) > 4:
            running[0].kill()
            running.pop(0).wait()


def starts() -> None:
    """Start processes that do a little, and end."""
    running: list[subprocess.Popen[bytes]] = []
    while True:
        running.append(subprocess.Popen([sys.executable, "-S", "-c", "import time\ndef begun(): time.sleep(60)\nbegun()"]))
        if len(running) > AT_ONCE:
            running[0].kill()
            running.pop(0).wait()
            time.sleep(0.05)


def steady() -> None:
    """Handle requests: half of a core, always by the same names."""
    space: dict = {}
    exec(f"def {STEADY}(until, now):\n while now() < until: pass", space)
    while True:
        space[STEADY](time.monotonic() + 0.02, time.monotonic)
        time.sleep(0.02)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    what, place = sys.argv[1], Path(sys.argv[2])
    if what != "symbols":
        print("ready", flush=True)
    {"functions": functions, "symbols": lambda: symbols(place), "starts": starts, "steady": steady}[what]()
