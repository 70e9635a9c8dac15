"""Takes memory page by page and gives some of it back: known numbers of page faults, and known growth."""

import mmap
import os
import threading

from ready import done, ready

PAGE = mmap.PAGESIZE
KEPT, GIVEN_BACK, BY_CHILD = 2_000, 3_000, 1_000  # pages
TIMES = 3


def touch(memory, pages):
    for page in range(pages):
        memory[page * PAGE] = 1


def take(pages):
    return mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def keep(pages):
    memory = take(pages)
    touch(memory, pages)
    return memory


def give_back(pages):
    memory = take(pages)
    touch(memory, pages)
    memory.close()


def of_a_child(pages):
    return keep(pages)


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


if __name__ == "__main__":
    ready()
    before = resident()
    kept = [keep(KEPT) for _ in range(TIMES)]
    grown = resident() - before
    thread = threading.Thread(target=give_back, args=(GIVEN_BACK,))
    thread.start()
    thread.join()
    if not (child := os.fork()):
        memory = of_a_child(BY_CHILD)
        os._exit(0)
    os.waitpid(child, 0)
    done(page=PAGE, kept=KEPT * TIMES, given_back=GIVEN_BACK, by_child=BY_CHILD, grown=grown)
