"""A task of CPython 3.11 that writes into its own name, and where that is, what cannot be, and computes meanwhile."""
import asyncio
import ctypes
import time

from ready import done, ready

NAME, LENGTH, STATE = 144, 16, 32  # of a task, of a str
FORGED = [
    (STATE, 4, 0x64),  # one byte, compact: as it is
    (LENGTH, 8, 1 << 62),
    (LENGTH, 8, (1 << 64) - 1),
    (STATE, 4, 0x2C),  # characters of three bytes
    (STATE, 4, 0x30),  # of four, most of them none
    (STATE, 4, 0),
    (None, 8, 0x10),  # where the name is
    (None, 8, 0xFFFFFFFF_80000000),
    (None, 8, 0x1234_5678_9ABC_DEF0),
]


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


async def forges():
    task = asyncio.current_task()
    task.set_name("x" * 30)
    name = task.get_name()
    for offset, size, value in FORGED:
        kind = ctypes.c_uint64 if size == 8 else ctypes.c_uint32
        place = kind.from_address(id(task) + NAME if offset is None else id(name) + offset)
        before, place.value = place.value, value
        compute(0.15)
        place.value = before
    return task.get_name()


if __name__ == "__main__":
    ready()
    done(name=asyncio.run(forges()))
