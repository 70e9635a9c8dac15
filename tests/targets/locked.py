"""Threads that wait for locks in each way there is, all of which stand still after "ready": who has which, by native thread id, is written as JSON."""

import importlib.util
import json
import os
import sys
import threading
import time

outer = threading.Lock()
RELEASED = threading.Event()
numbers = {}
holding = []


class Shop:
    of_class = threading.Lock()

    def __init__(self):
        self._lock = threading.Lock()
        self.cond = threading.Condition(threading.Lock())
        self.reentrant = threading.RLock()
        self.by_name = {"a": threading.Lock()}
        self.acquired = threading.Lock()
        self.left = threading.Lock()


shop = Shop()


def holds():
    for _ in range(1):
        with shop._lock, shop.reentrant:
            with Shop.of_class:
                try:
                    with shop.by_name["a"]:
                        with shop.left:
                            pass
                        shop.left.acquire()  # and in no block of it
                        shop.acquired.acquire()
                        holding.append(1)
                        time.sleep(1000)
                finally:
                    pass


def lets_go():
    with shop.cond:
        shop.cond.wait()


def holds_condition():
    with shop.cond:
        holding.append(1)
        time.sleep(1000)


def waits_with(it):
    with it._lock:
        pass


def waits_acquire():
    shop._lock.acquire()


def waits_reentrant():
    shop.reentrant.acquire()


def waits_class():
    with Shop.of_class:
        pass


def waits_item():
    with shop.by_name["a"]:
        pass


def waits_condition():
    with shop.cond:
        pass


def waits_nobody():
    shop.acquired.acquire()


def waits_left():
    with shop.left:
        pass


def waits_cell():
    mine = threading.Lock()

    def inner():
        with mine:
            pass

    with mine:
        inner()


def waits_timed(lock):
    lock.acquire(timeout=1000)


def joins(thread):
    thread.join()


def first(one, other, both):
    with one:
        both.wait()
        with other:
            pass


def second(one, other, both):
    first(other, one, both)


def waits_for_joiner(lock):
    with lock:
        joined.wait()
        threads["joins_back"].join()


def joins_back(lock):
    joined.set()
    lock.acquire()


class Slowly:
    """Finds and loads a module that takes its time."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "slowly" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        holding.append(1)
        time.sleep(1000)


def imports():
    import slowly  # noqa: F401


def waits_import():
    import slowly  # noqa: F401


joined = threading.Event()
threads = {}


def start(function, *given):
    def run():
        numbers[function.__name__] = threading.get_native_id()
        function(*given)

    threads[function.__name__] = thread = threading.Thread(target=run, name=function.__name__, daemon=True)
    thread.start()
    while function.__name__ not in numbers:
        time.sleep(0.001)
    return thread


def until_held(count):
    while len(holding) < count:
        time.sleep(0.001)


start(lets_go)
start(holds)
until_held(1)
start(waits_with, shop)
for each in (waits_acquire, waits_reentrant, waits_class, waits_item, waits_nobody, waits_left, waits_cell):
    start(each)
start(waits_timed, shop._lock)
start(holds_condition)
until_held(2)
start(waits_condition)
start(joins, threads["holds"])
one, other, both = threading.Lock(), threading.RLock(), threading.Barrier(2)
start(first, one, other, both)
start(second, one, other, both)
sys.meta_path.insert(0, Slowly())
start(imports)
until_held(3)
start(waits_import)
lock = threading.Lock()
start(waits_for_joiner, lock)
start(joins_back, lock)
tasks = "/proc/self/task"
while any(open(f"{tasks}/{tid}/stat").read().rpartition(")")[2].split()[0] != "S" for tid in os.listdir(tasks) if int(tid) != os.getpid()):
    time.sleep(0.01)
time.sleep(0.1)
print(json.dumps(numbers), flush=True)
sys.stdin.readline()
os._exit(0)
